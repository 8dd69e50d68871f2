"""Contributions that are true about pixels: the term by hand, what it changes, and what it leaves alone."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tests.support.explained_models import family, pictures
from tests.support.tiny_runs import PLAIN, TINY_PACA, fingerprint
from vitreous.attribution.marking import marking_loss
from vitreous.attribution.method import readouts, to_image
from vitreous.clusters.contributions import contributions
from vitreous.clusters.gates import cluster_layer
from vitreous.errors import InputError
from vitreous.runs.run_folder import read_metrics
from vitreous.train import train
from vitreous.training.faithful import FaithfulLoss, frozen
from vitreous.training.settings import TrainSettings

IMAGES, LABELS = pictures(4), torch.tensor([0, 1, 2, 3])
READS = dict(readout="clusters", readout_clusters=3, drop_path_rate=0.0)


def asked(**changes):
    return SimpleNamespace(
        **(dict(model="paca", cluster_faithful=0.5, compile=False, shard=False, grad_checkpointing="off") | changes)
    )


@pytest.mark.parametrize("stages", [None, (3, 4)], ids=["last stage", "two stages"])
def test_the_term_is_the_loss_of_the_contributions_as_marks(stages):
    model = family(**READS, **({} if stages is None else dict(readout_stages=stages)))
    whole = sum(
        to_image(found.maps(LABELS).sum(1), (64, 64))
        for found in (contributions(model, IMAGES, cluster_layer(model, stage)) for stage in readouts(model))
    )
    loss = FaithfulLoss(model, asked())
    model.train()(IMAGES)
    torch.manual_seed(3)
    term = loss.take(IMAGES, {"labels": LABELS})["cluster_faithful"]
    torch.manual_seed(3)
    random = torch.Generator().manual_seed(int(torch.randint(2**31, ())))
    torch.testing.assert_close(term, marking_loss(model.eval(), IMAGES, whole, LABELS, random), atol=1e-4, rtol=1e-4)


def test_its_slope_reaches_weights_through_the_map_alone():
    """With a map that does not learn, nothing of the model does; and nothing stays behind."""
    model = family(**READS).train()
    loss = FaithfulLoss(model, asked())
    F.cross_entropy(model(IMAGES), LABELS)
    loss.take(IMAGES, {"labels": F.one_hot(LABELS, 5).float()})["cluster_faithful"].backward()
    assert next(model.readout["3"].clustering.parameters()).grad.abs().sum() > 0
    assert model.training
    assert all(module.training for module in model.modules())
    assert all(parameter.requires_grad for parameter in model.parameters())
    assert all(readout.read is None for readout in loss.readouts)
    still = family(**READS)
    with frozen(still), torch.enable_grad():
        assert not marking_loss(still, IMAGES, torch.rand(4, 8, 8), LABELS, torch.Generator()).requires_grad


def test_steps_make_contributions_keep_and_take_the_class():
    model = family(scale=1, **READS).train()
    loss = FaithfulLoss(model, asked())
    optimiser = torch.optim.Adam(model.parameters(), lr=2e-3)
    found = []
    for step in range(30):
        torch.manual_seed(step % 2)
        cross_entropy = F.cross_entropy(model(IMAGES), LABELS)
        term = loss.take(IMAGES, {"labels": LABELS})["cluster_faithful"]
        optimiser.zero_grad()
        (cross_entropy + term).backward()
        optimiser.step()
        found.append(term.item())
    assert sum(found[-4:]) < sum(found[:4]) - 0.2


def test_what_cannot_be_asked_is_one_line():
    with pytest.raises(InputError, match=r"does not read clusters, but cluster_faithful 0\.5 .*readout=clusters"):
        FaithfulLoss(family(), asked())
    for name, value in (("compile", True), ("shard", True), ("grad_checkpointing", "blocks")):
        with pytest.raises(InputError, match=f"--{name.replace('_', '-')} cannot"):
            FaithfulLoss(family(**READS), asked(**{name: value}))
    with pytest.raises(InputError, match=r"train_only.*cluster_faithful"):
        TrainSettings("paca_b0_readout", "shapes", train_only="head", pretrained=True, cluster_faithful=1.0)


def test_a_run_has_the_term_and_ends_with_the_same_bits_again(tmp_path):
    read = (*TINY_PACA["model_args"], "readout=clusters", "readout_clusters=3")
    settings = PLAIN | TINY_PACA | dict(model_args=read, cluster_faithful=0.5)
    whole = train(**settings, out=tmp_path / "whole")
    assert all("cluster_faithful" in line for line in read_metrics(whole) if line["split"] == "train")
    assert fingerprint(train(**settings, out=tmp_path / "again")) == fingerprint(whole)
    plain = train(**(settings | dict(cluster_faithful=0.0)), out=tmp_path / "plain")
    assert fingerprint(plain) != fingerprint(whole)
