"""Teaching where to look: the term is what its formula says, it can be learnt, and what cannot be used is one line."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch import nn

from tests.support.tiny_runs import PLAIN, fingerprint
from vitreous import record
from vitreous.data.guides import AWAY, OBJECT
from vitreous.errors import InputError
from vitreous.layers.attention import Gates
from vitreous.models.paca import PaCa
from vitreous.runs.run_folder import read_metrics
from vitreous.train import train
from vitreous.training.attention import TERM, AttentionLoss, share_elsewhere
from vitreous.training.settings import TrainSettings

SHAPE = dict(dims=(8, 16), depths=(1, 1), heads=(1, 2), clusters=(0, 4), mlp_ratios=(2, 2), num_classes=3)
GUIDED = dict(
    attend_to="masks", attend_away=None, attend_weight=1.0, compile=False, grad_checkpointing="off", shard=False
)
IMAGES, LABELS = torch.randn(4, 3, 32, 32, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])
ARGUMENTS = ("dims=(8,16)", "depths=(1,1)", "heads=(1,2)", "clusters=4", "mlp_ratios=(2,2)", "readout=clusters")
READER = dict(PLAIN, train_count=16, val_count=8, model="paca_tiny", model_args=ARGUMENTS)


def guide() -> dict[str, torch.Tensor]:
    allowed, away = torch.zeros(2, 4, 32, 32, dtype=torch.bool)
    allowed[:, 8:16, 8:16] = True
    allowed[3] = True
    return {OBJECT: allowed, AWAY: away, "labels": LABELS}


def asked(model: nn.Module, **changes: Any) -> AttentionLoss:
    return AttentionLoss(model, SimpleNamespace(model="paca", **{**GUIDED, **changes}))


def test_the_term_of_a_readout_is_the_attention_off_the_object() -> None:
    model = PaCa(**SHAPE, readout="clusters").train()
    loss = asked(model)
    with record(model, "readout.1.attention.map") as maps:
        model(IMAGES)
    places = maps["readout.1.attention.map"].sum((1, 2))  # (B, H, W) of a_m Z_m
    allowed = F.max_pool2d(guide()[OBJECT][:, None].float(), 8)[:, 0]
    expected = (places * (1 - allowed)).sum((1, 2))[:3].mean()  # the fourth has no guide
    assert torch.isclose(loss.take(IMAGES, guide(), {})[TERM], expected)
    assert all(readout.places is None for readout in loss.readouts)


def cluster_loss(model: nn.Module) -> tuple[torch.Tensor, AttentionLoss]:
    """The cross-entropy after a pass, and what has taken note of it."""
    loss = asked(model)
    return F.cross_entropy(model(loss.watched(IMAGES)), LABELS), loss


def test_the_term_of_clusters_is_their_maps_off_the_object_by_importance() -> None:
    torch.manual_seed(0)
    model = PaCa(**dict(SHAPE, clusters=(3, 4), depths=(1, 2))).train()
    learnt, loss = cluster_loss(model)
    assert len(loss.attentions) == 3
    term = loss.take(IMAGES, guide(), {"cross_entropy": learnt})[TERM]
    assert all(attention.noted is None for attention in loss.attentions)

    maps, importance = [], []  # the latter by changing the gate of every cluster a little, which tells the slope
    with torch.no_grad(), record(model, "stages.*.clusters") as recorded:
        model(IMAGES)
    double = model.double()
    for attention, stage in zip(loss.attentions, (0, 1, 1), strict=True):
        maps.append(recorded[f"stages.{stage}.clusters"].numpy())
        slopes = np.zeros((4, maps[-1].shape[1]))
        for m in range(slopes.shape[1]):
            losses = []
            for step in (1e-4, -1e-4):
                gate = torch.ones(1, slopes.shape[1], dtype=torch.float64)
                gate[0, m] += step
                attention.gates = Gates(value=gate)
                with torch.no_grad():
                    losses.append(F.cross_entropy(double(IMAGES.double()), LABELS, reduction="none").numpy())
            slopes[:, m] = np.abs(losses[0] - losses[1]) / 2e-4
        attention.gates = None
        importance.append(slopes)
    total = sum(slopes.sum(1) for slopes in importance)
    expected = np.zeros(4)
    for places, slopes in zip(maps, importance, strict=True):
        cell = 32 // places.shape[2]
        off = 1 - guide()[OBJECT].numpy().reshape(4, places.shape[2], cell, -1, cell).max((2, 4))
        expected += ((slopes / total[:, None])[..., None, None] * places * off[:, None]).sum((1, 2, 3))
    assert term.item() == pytest.approx(expected[:3].mean(), rel=1e-3)  # the fourth has no guide


def test_the_slope_of_the_term_moves_maps_to_the_object_and_nothing_else() -> None:
    torch.manual_seed(0)
    model = PaCa(**SHAPE).train()
    learnt, loss = cluster_loss(model)
    assignment, values = loss.attentions[0].noted
    term = loss.take(IMAGES, guide(), {"cross_entropy": learnt})[TERM]
    (slope,) = torch.autograd.grad(term, assignment, retain_graph=True)
    off = F.max_pool2d(guide()[OBJECT][:, None].float(), 8) == 0
    assert (slope[off.expand_as(slope)] >= 0).all()  # downhill leads away from there
    assert slope[:3].sum() > 0
    assert not slope[~off.expand_as(slope)].any()
    assert torch.autograd.grad(term, values, allow_unused=True, retain_graph=True) == (None,)  # importance is given
    (learnt + term).backward()  # the graph is still there


@pytest.mark.parametrize("amp", [torch.float32, torch.bfloat16])
def test_recomputed_blocks_give_the_same_term_and_gradients(amp: torch.dtype) -> None:
    found = []
    for recompute in (False, True):
        torch.manual_seed(0)
        model = PaCa(**SHAPE).train()
        model.set_grad_checkpointing(recompute)
        with torch.autocast("cpu", amp, enabled=amp != torch.float32):
            learnt, loss = cluster_loss(model)
        term = loss.take(IMAGES, guide(), {"cross_entropy": learnt})[TERM]
        (learnt + term).backward()
        assert all(attention.noted is None for attention in loss.attentions)
        found.append([term.detach(), *(parameter.grad for parameter in model.parameters())])
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


@pytest.mark.slow
def test_a_compiled_step_gives_the_same_term_and_gradients() -> None:
    found = []
    for compiled in (False, True):
        torch.manual_seed(0)
        model = PaCa(**SHAPE, readout="clusters").train()
        loss = asked(model)
        learner = torch.compile(model, backend="aot_eager", dynamic=False) if compiled else model
        learnt = F.cross_entropy(learner(IMAGES), LABELS)
        (learnt + loss.take(IMAGES, guide(), {})[TERM]).backward()
        found.append([parameter.grad for parameter in model.parameters()])
    assert all(torch.allclose(one, other, atol=1e-6) for one, other in zip(*found, strict=True))


def test_regions_count_where_they_touch_a_place_and_objects_where_they_do_not() -> None:
    places = torch.full((1, 2, 2), 0.25)
    allowed, away = torch.ones(1, 8, 8, dtype=torch.bool), torch.zeros(1, 8, 8, dtype=torch.bool)
    assert share_elsewhere(places, allowed, away).item() == 0
    away[0, 0, 0] = True
    assert share_elsewhere(places, allowed, away).item() == 0.25
    allowed[0], allowed[0, 7, 7] = False, True
    assert share_elsewhere(places, allowed, away).item() == 0.75


@pytest.mark.parametrize("readout", ["clusters", "mean"])
@pytest.mark.parametrize("clusters", [(0, 4), (0, 0)])
def test_looking_at_the_object_is_learnt(readout: str, clusters: tuple[int, int]) -> None:
    torch.manual_seed(0)
    model = PaCa(**dict(SHAPE, clusters=clusters), readout=readout).train()
    loss, optimizer, found = asked(model), torch.optim.Adam(model.parameters(), 2e-2), []
    shown = IMAGES.clone()
    shown[:, :, 8:16, 8:16] += 4  # something to look at
    for _ in range(15):
        images = loss.watched(shown.clone())
        with loss.differentiable():
            terms = {"cross_entropy": F.cross_entropy(model(images), LABELS)}
        term = loss.take(images, guide(), terms)[TERM]
        optimizer.zero_grad()
        (terms["cross_entropy"] + term).backward()
        optimizer.step()
        found.append(term.item())
    assert 0 < found[-1] < 0.7 * found[0] < 0.7


def test_without_guides_nothing_is_added_or_kept() -> None:
    model = PaCa(**SHAPE, readout="clusters").train()
    loss = asked(model, attend_to=None)
    model(IMAGES)
    assert loss.take(IMAGES, {}, {}) == {}
    assert not any(hasattr(module, "places") and module.places is not None for module in model.modules())


def test_a_run_learns_it_and_continues_to_the_same_bits(tmp_path) -> None:
    settings = dict(READER, attend_to="masks", attend_share=0.5, attend_away="upper left", epochs=2)
    whole = train(**settings, out=tmp_path / "whole")
    terms = [line[TERM] for line in read_metrics(whole) if line["split"] == "train"]
    assert len(terms) == 4
    assert all(0 < term < 1 for term in terms)
    changed = train(**dict(settings, workers=1), out=tmp_path / "worker")
    assert fingerprint(whole) == fingerprint(changed)


def test_fine_tuning_takes_the_readout_from_the_run(tmp_path) -> None:
    first = train(**READER, out=tmp_path / "first")
    tuned = dict(READER, model_args=(), weights=str(first), attend_to="masks")
    second = train(**tuned, out=tmp_path / "second")
    assert TERM in read_metrics(second)[0]
    heads = dict(READER, weights=str(first), train_only="head")
    third = train(**heads, out=tmp_path / "third")
    before, after = load(first), load(third)
    different = [name for name in before if not torch.equal(before[name], after[name])]
    assert sorted(different) == ["head.bias", "head.weight"]


def load(run) -> dict[str, torch.Tensor]:
    from safetensors.torch import load_file

    return load_file(run / "final" / "model.safetensors")


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (dict(attend_to="masks", mixup=0.2), "mixup 0.2 cannot be used.*do not follow"),
        (dict(attend_away="border", augment="rand-m5-n1"), "augment .* turns and moves pictures"),
        (dict(attend_share=0.5), "given together with attend_to"),
        (dict(attend_away="border", attend_share=0.5), "given with attend_to"),
        (dict(attend_to="boxes"), "it must be masks"),
        (dict(attend_to="masks", task="segment"), "attend_to masks cannot be used.*classify"),
        (dict(train_only="head"), "given together with weights"),
        (dict(train_only="head", attend_to="masks", pretrained=True), "cannot look elsewhere"),
    ],
)
def test_what_does_not_go_together_is_one_line(changes: dict[str, Any], says: str) -> None:
    with pytest.raises(InputError, match=says):
        TrainSettings("paca_b0", "shapes", **changes)


def test_a_gradient_of_a_gradient_is_refused_where_there_is_none() -> None:
    model = PaCa(**dict(SHAPE, clusters=0))
    for changes, says in ((dict(compile=True), "--compile"), (dict(grad_checkpointing="mlp"), "--grad-checkpointing")):
        with pytest.raises(InputError, match=f"{says} cannot give"):
            asked(model, **changes)
    with pytest.raises(InputError, match="several processes"):
        AttentionLoss(model, SimpleNamespace(model="paca", **GUIDED), 2)
    assert asked(PaCa(**SHAPE, readout="clusters"), compile=True).weights == {TERM: 1.0}
    for option in ("compile", "shard"):
        with pytest.raises(InputError, match=f"slopes of its clusters, which --{option} cannot give"):
            asked(PaCa(**SHAPE), **{option: True})
    assert AttentionLoss(PaCa(**SHAPE), SimpleNamespace(model="paca", **GUIDED), 2).attentions


def test_data_without_masks_are_refused(tmp_path) -> None:
    from PIL import Image

    for number in range(8):
        for split in ("train", "val"):
            file = tmp_path / "data" / split / "ab"[number % 2] / f"{number}.png"
            file.parent.mkdir(parents=True, exist_ok=True)
            Image.fromarray(np.full((32, 32, 3), number, np.uint8)).save(file)
    settings = dict(READER, data=str(tmp_path / "data"), attend_to="masks", train_count=None, val_count=None)
    with pytest.raises(InputError, match="has no masks of objects"):
        train(**settings, out=tmp_path / "run")
    assert not (tmp_path / "run" / "run.json").exists()
