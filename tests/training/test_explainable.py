"""Training for explanations: off it changes no bit, on it does what an explanation means, and it can be interrupted."""

from types import SimpleNamespace

import pytest
import torch
import torch.nn.functional as F

from tests.support.tiny_runs import PLAIN, fingerprint
from vitreous import record
from vitreous.errors import InputError
from vitreous.layers.cluster_training import ClusterTraining, map_overlap
from vitreous.models.paca import PaCa
from vitreous.registry import create_model
from vitreous.runs.run_folder import read_metrics
from vitreous.train import Training, train
from vitreous.training.build import model_arguments
from vitreous.training.clusters import ClusterLoss
from vitreous.training.recipe import with_recipe
from vitreous.training.settings import TrainSettings

SHAPE = dict(dims=(8, 8, 16, 16), depths=(1, 1, 2, 1), heads=(1, 1, 2, 2), clusters=(0, 5, 6, 0), num_classes=3)
OFF = dict.fromkeys(
    (
        *("cluster_dropout", "cluster_group_dropout", "cluster_overlap"),
        *("cluster_map_entropy", "cluster_place_entropy", "cluster_read_entropy"),
    ),
    0.0,
) | dict(cluster_terms_on="all")
TERMS = dict(cluster_overlap=0.5, cluster_map_entropy=0.25, cluster_place_entropy=0.125)
ON = OFF | TERMS | dict(cluster_dropout=0.3, cluster_group_dropout=0.5)
IMAGES, LABELS = torch.randn(4, 3, 64, 64, generator=torch.Generator().manual_seed(0)), torch.tensor([0, 1, 2, 0])


def learnt(settings: dict, *, compiled: bool = False, frugal: bool = False, **changes):
    """Loss, gradients, terms and the random state after one step of a fresh model."""
    torch.manual_seed(0)
    model = PaCa(**{**SHAPE, **changes}).train()
    model.set_grad_checkpointing(frugal)
    clusters = ClusterLoss(model, SimpleNamespace(model="paca", **settings))
    learner = torch.compile(model, backend="aot_eager", dynamic=False) if compiled else model
    torch.manual_seed(1)
    loss = F.cross_entropy(learner(IMAGES), LABELS)
    terms = clusters.take()
    (loss + sum(clusters.weights[name] * term for name, term in terms.items())).backward()
    gradients = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    made = [*model.stages, *(model.readout or {}).values()]
    assert all(stage.cluster_terms is None or not stage.cluster_terms for stage in made)
    return loss.detach(), gradients, terms, torch.get_rng_state()


def assert_same_bits(one, other) -> None:
    assert torch.equal(one[0], other[0])
    assert one[1].keys() == other[1].keys()
    assert all(torch.equal(gradient, other[1][name]) for name, gradient in one[1].items())


def test_off_changes_no_bit_and_draws_no_random_number() -> None:
    plain = learnt(OFF)
    torch.manual_seed(0)
    model = PaCa(**SHAPE).train()
    for stage in model.stages:
        stage.cluster_training = ClusterTraining()
    torch.manual_seed(1)
    loss = F.cross_entropy(model(IMAGES), LABELS)
    loss.backward()
    there = {name: p.grad for name, p in model.named_parameters() if p.grad is not None}
    assert_same_bits(plain, (loss, there))
    assert torch.equal(plain[3], torch.get_rng_state())
    assert plain[2] == {}


def test_terms_without_dropout_leave_the_answer_alone() -> None:
    plain, on = learnt(OFF), learnt(OFF | TERMS)
    assert torch.equal(plain[0], on[0])
    assert torch.equal(plain[3], on[3])
    assert set(on[2]) == set(TERMS)
    name = "stages.1.blocks.0.clustering.logits.weight"
    assert not torch.equal(plain[1][name], on[1][name])


def test_blocks_that_are_computed_twice_drop_the_same_clusters() -> None:
    assert_same_bits(learnt(ON), learnt(ON, frugal=True))


@pytest.mark.slow
def test_compiled_terms_are_the_same() -> None:
    """Without dropout, whose random numbers a compiled program draws in its own way."""
    torch._dynamo.reset()
    plain, compiled = learnt(OFF | TERMS), learnt(OFF | TERMS, compiled=True)
    for name, term in plain[2].items():
        torch.testing.assert_close(compiled[2][name], term, rtol=1e-5, atol=1e-6)  # sums in another order
    for name, gradient in plain[1].items():
        torch.testing.assert_close(compiled[1][name], gradient, rtol=1e-3, atol=1e-5)


def test_terms_are_in_full_precision_under_autocast() -> None:
    plain = learnt(OFF | TERMS)[2]
    with torch.autocast("cpu", torch.bfloat16):
        half = learnt(OFF | TERMS)[2]
    for name, term in half.items():
        assert term.dtype == torch.float32
        torch.testing.assert_close(term, plain[name], rtol=0.02, atol=0)  # logits carry 8 bits


def test_terms_of_a_model_are_means_over_its_stages_and_blocks() -> None:
    one = learnt(OFF | TERMS, recluster=(0, 0, 1, 0))[2]["cluster_overlap"]
    torch.manual_seed(0)
    model = PaCa(**{**SHAPE, "recluster": (0, 0, 1, 0)})
    with record(model, "stages.*.clusters*") as maps:
        model(IMAGES)
    found = {name: z.detach().flatten(2) for name, z in maps.items()}
    assert list(found) == ["stages.1.clusters", "stages.2.clusters.0", "stages.2.clusters.1"]
    pairs = {name: (F.cosine_similarity(z[:, :, None], z[:, None], dim=3)) for name, z in found.items()}
    off = {
        name: p.flatten(1).sum(1).sub(p.shape[1]).div(p.shape[1] * (p.shape[1] - 1)).mean() for name, p in pairs.items()
    }
    second, *third = off.values()
    torch.testing.assert_close(one.detach(), (second + sum(third) / 2) / 2, rtol=1e-5, atol=1e-6)


def test_the_clusters_of_a_readout_are_trained_like_any_others() -> None:
    reads = dict(readout="clusters", clusters=(0, 0, 0, 0), readout_clusters=4)
    plain, on = learnt(OFF, **reads), learnt(OFF | TERMS, **reads)
    assert torch.equal(plain[0], on[0])
    assert set(on[2]) == set(TERMS)
    name = "readout.3.clustering.logits.weight"
    assert not torch.equal(plain[1][name], on[1][name])
    assert not torch.equal(plain[0], learnt(OFF | dict(cluster_dropout=0.5), **reads)[0])


def test_how_evenly_a_readout_reads_is_a_term_of_its_own() -> None:
    reads = dict(readout="clusters", readout_clusters=4)
    torch.manual_seed(0)
    model = PaCa(**{**SHAPE, **reads}).train()
    with record(model, "readout.3.attention.map") as maps:
        model(IMAGES)
    share = maps["readout.3.attention.map"].sum((1, 3, 4))  # (B, M)
    plain, on = learnt(OFF, **reads), learnt(OFF | dict(cluster_read_entropy=0.5), **reads)
    assert torch.equal(plain[0], on[0])
    entropy = -(share * share.log()).sum(1).mean() / torch.tensor(4.0).log()
    torch.testing.assert_close(on[2]["cluster_read_entropy"], entropy, rtol=1e-4, atol=1e-6)
    name = "readout.3.attention.score.weight"
    assert not torch.equal(plain[1][name], on[1][name])
    together = learnt(
        OFF | dict(cluster_read_entropy=0.5, cluster_overlap=0.5), **reads
    )  # stages have only one of both
    assert set(together[2]) == {"cluster_read_entropy", "cluster_overlap"}
    with pytest.raises(InputError, match=r"does not read clusters, but cluster_read_entropy 0\.5 .*readout=clusters"):
        learnt(OFF | dict(cluster_read_entropy=0.5))


def test_terms_can_be_about_the_readout_alone() -> None:
    reads = dict(readout="clusters", readout_clusters=4)
    torch.manual_seed(0)
    model = PaCa(**{**SHAPE, **reads}).train()
    with record(model, "readout.3.clusters") as maps:
        model(IMAGES)
    alone = OFF | dict(cluster_overlap=0.5, cluster_terms_on="readout")
    on = learnt(alone, **reads)
    torch.testing.assert_close(on[2]["cluster_overlap"], map_overlap(maps["readout.3.clusters"]))
    assert not torch.equal(
        on[2]["cluster_overlap"], learnt(alone | dict(cluster_terms_on="all"), **reads)[2]["cluster_overlap"]
    )
    with pytest.raises(
        InputError, match=r"cluster_terms_on readout given, .* does not read clusters.*readout=clusters"
    ):
        learnt(alone)


@pytest.mark.parametrize("model", ["xcit_nano_12_p16", "paca_b0_pure", "resnet10t"])
def test_models_without_clusters_are_refused(tmp_path, model) -> None:
    with pytest.raises(
        InputError, match=rf"'{model}' has no clusters, but cluster_dropout 0.2 is about clusters; leave it out"
    ):
        train(**PLAIN | dict(model=model, size=64, out=tmp_path / "run", cluster_dropout=0.2))
    assert not (tmp_path / "run" / "checkpoints").exists()


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(cluster_dropout=1.0), "at least 0 and below 1"),
        (dict(cluster_group_dropout=1.5), "between 0 and 1"),
        (dict(cluster_overlap=-1.0), "0 or more"),
        (dict(cluster_temperature=0.0), "above 0"),
    ],
)
def test_values_that_make_no_sense_are_refused(wrong, message) -> None:
    with pytest.raises(InputError, match=message):
        TrainSettings("paca_b0", "shapes", **wrong)


def test_temperature_and_number_of_clusters_are_arguments_of_the_model() -> None:
    settings = TrainSettings("paca_b0", "shapes", cluster_temperature=0.5, model_args=("clusters=(4,8,16,0)",))
    assert model_arguments(settings) == {"cluster_temperature": 0.5, "clusters": (4, 8, 16, 0)}
    model = create_model("paca_b0", **model_arguments(settings))
    assert model.settings.cluster_temperature == 0.5
    logits = [stage.blocks[0].clustering.logits.out_features for stage in model.stages[:3]]
    assert logits == [4, 8, 16]
    with pytest.raises(InputError, match=r"unknown XCiT argument 'cluster_temperature'"):
        create_model("xcit_nano_12_p16", cluster_temperature=0.5)


# ---- runs -------------------------------------------------------------------------------------------------------

TINY = tuple(f"{name}={value}" for name, value in SHAPE.items() if name != "num_classes")
RUN = PLAIN | ON | dict(
    model="paca_tiny", model_args=TINY, train_count=24, val_count=4, drop_path=0.1, accumulate=2, log_every=3, epochs=2
)  # fmt: skip


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory):
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over threads come in no fixed order on a busy machine
    yield train(**RUN, out=tmp_path_factory.mktemp("run") / "run")
    torch.set_num_threads(threads)


def test_terms_have_columns_of_their_own(uninterrupted, tmp_path) -> None:
    lines = [line for line in read_metrics(uninterrupted) if line["split"] == "train"]
    assert len(lines) == 2
    for line in lines:
        assert all(0 < line[name] < 1 for name in TERMS)
        assert not {"cluster_dropout", "cluster_group_dropout"} & set(line)
    plain = train(**RUN | OFF | dict(epochs=1), out=tmp_path / "plain")
    assert not any(key.startswith("cluster") for line in read_metrics(plain) for key in line)


def test_a_run_that_broke_off_between_two_lines_ends_with_the_same_bits(uninterrupted, tmp_path, monkeypatch) -> None:
    step = Training.step

    def failing(self, pieces, epoch):
        if self.state.position.step == 5:
            raise RuntimeError("power cut")
        return step(self, pieces, epoch)

    with monkeypatch.context() as patched:
        patched.setattr(Training, "step", failing)
        with pytest.raises(RuntimeError, match="power cut"):
            train(**RUN, out=tmp_path / "run")
    assert fingerprint(train(**RUN, out=tmp_path / "run")) == fingerprint(uninterrupted)


def test_the_recipe_is_for_models_with_clusters() -> None:
    settings = with_recipe("paca_b0", "shapes", recipe="explainable")
    assert any(getattr(settings, name) for name in TERMS)
    for name in ("paca_b0", "paca_tiny", "paca_b1_cifar", "paca_b0_pure", "paca_b0_readout"):
        own = model_arguments(with_recipe(name, "shapes", recipe="explainable"))
        with torch.device("meta"):
            model = create_model(name, num_classes=3, **own)
        assert model.readout is not None
    for name in ("paca_tiny", "paca_b0"):  # on photographs: four stages whose published weights fit
        own = model_arguments(with_recipe(name, "photos", recipe="finetune_explainable"))
        with torch.device("meta"):
            model, published = create_model(name, num_classes=3, **own), create_model(name)
        assert model.readout is not None
        kept = {key: value.shape for key, value in published.state_dict().items() if not key.startswith("head.")}
        assert kept.items() <= {key: value.shape for key, value in model.state_dict().items()}.items()
    with pytest.raises(InputError, match="made for the family paca, and xcit_nano_12_p16 is not of it"):
        with_recipe("xcit_nano_12_p16", "shapes", recipe="explainable")
