"""Mending without training: closed clusters and hidden regions are part of the model folder, for all who load it."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous import load_model
from vitreous.clusters.gates import cluster_layer, gated, maps_of, without
from vitreous.data.regions import Region, named_regions, painted_over, write_regions
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.explanations.dataset import object_mask
from vitreous.layers.attention import Gates
from vitreous.layers.cluster_training import READ_TERM, ClusterTraining
from vitreous.layers.readout import ClusterReadout
from vitreous.layers.tap import record
from vitreous.mend import comparison, mend
from vitreous.runs.model_config import read_config

IMAGES = torch.randn(2, 3, 64, 64, generator=torch.Generator().manual_seed(0))


@pytest.fixture(scope="module")
def reader(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("reader") / "model", readout="clusters")


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("plain") / "model")


@pytest.mark.parametrize(("kind", "stage"), [("reader", None), ("reader", 2), ("plain", None)])
def test_a_closed_cluster_is_as_if_it_had_never_been(
    kind: str, stage: int | None, tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    source = request.getfixturevalue(kind)
    mended = mend(source, out=tmp_path / "mended", without_clusters=("1,3",), stage=stage)
    before, after = load_model(source).model, load_model(mended).model
    layer = cluster_layer(before, stage)
    with torch.no_grad(), gated(before, layer, logit_gate=without([1, 3], 8 if layer.is_readout else 6)):
        expected = before(IMAGES)
    with torch.no_grad():
        assert torch.allclose(after(IMAGES), expected, atol=1e-6)
        assert not torch.allclose(after(IMAGES), before(IMAGES), atol=1e-6)
        by_timm = timm.create_model(f"local-dir:{mended}", pretrained=True).eval()
        assert torch.equal(by_timm(IMAGES), after(IMAGES))


def test_gates_do_not_open_what_is_closed(reader: str, tmp_path: Path) -> None:
    model = load_model(mend(reader, out=tmp_path / "mended", without_clusters=("0",))).model
    with torch.no_grad(), record(model, "readout.3.attention.map") as maps, gated(model, logit_gate=torch.ones(8)):
        model(IMAGES)
    shares = maps["readout.3.attention.map"].sum((1, 3, 4))  # (B, M)
    assert shares[:, 0].max() < 1e-30
    assert torch.allclose(shares.sum(1), torch.ones(2))
    alone = torch.zeros(8)
    alone[0] = 1
    with torch.no_grad(), gated(model, logit_gate=alone):
        assert model(IMAGES).isfinite().all()  # nothing else is there to be read


def test_what_is_closed_counts_for_no_term_and_in_half_precision_too() -> None:
    readout = ClusterReadout(8, 2, 1.0)
    readout.attention.closed = (0,)
    readout.train()
    readout.cluster_training = ClusterTraining(0.0, 0.0, (READ_TERM,))
    readout(torch.randn(1, 4, 4, 8))
    assert readout.cluster_terms is not None
    assert readout.cluster_terms[READ_TERM].item() < 1e-6  # one of two is read: nothing is left to be even about
    half = Gates(logit=torch.tensor([[1.0, 0.0]], dtype=torch.float16)).closing((0,), 2, torch.device("cpu"))
    assert half.logit is not None
    assert half.logit.log()[0, 0].isfinite()


def test_mending_again_adds_to_what_was_mended(reader: str, tmp_path: Path) -> None:
    first = mend(reader, out=tmp_path / "first", without_clusters=("5", "1"))
    second = mend(str(first), out=tmp_path / "second", without_clusters=("2",), hide="upper left")
    third = mend(str(second), out=tmp_path / "third", hide="border")
    config = read_config(third)
    assert config.model_args["closed_clusters"] == {"readout.3.attention": (1, 2, 5)}
    assert [region.name for region in config.preprocess.hidden] == ["upper left", *["border"] * 4]
    with pytest.raises(InputError, match="all 8 clusters of readout of stage 4 would be closed"):
        mend(str(third), out=tmp_path / "fourth", without_clusters=("0 3 4 6 7",))
    assert not (tmp_path / "fourth").exists()
    many = tmp_path / "many.json"
    write_regions(many, [Region(f"strip {n}", (0, n / 100, 1, (n + 1) / 100)) for n in range(96)])
    with pytest.raises(InputError, match="would have 101 regions; at most 100"):
        mend(str(third), out=tmp_path / "fourth", hide=str(many))


def test_nothing_of_a_hidden_region_reaches_the_model(plain: str, tmp_path: Path) -> None:
    regions = tmp_path / "regions.json"
    write_regions(regions, [Region("mark", (0, 0, 0.25, 0.25))])
    trained = load_model(mend(plain, out=tmp_path / "mended", hide=str(regions)))
    ground = np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8)
    marked = ground.copy()
    marked[:16, :16] = (255, 0, 0)
    one, other = (trained.predict(Image.fromarray(pixels)) for pixels in (ground, marked))
    assert one.probabilities.tolist() == other.probabilities.tolist()
    assert trained.preprocess.hidden[0].name == "mark"
    mask = object_mask(trained.preprocess, Image.new("L", (64, 64), 255))
    assert mask is not None
    assert mask.shape == (64, 64)
    assert mask.all()  # masks tell where things are, and have nothing to hide


def test_a_region_is_filled_from_around_it_and_the_rest_stays() -> None:
    pixels = np.full((40, 30, 3), 90, np.uint8)
    pixels[:10, :8] = (255, 0, 0)
    pixels[30:, :] = 200
    shown = np.array(painted_over(Image.fromarray(pixels), named_regions("upper left")))
    assert (shown[:10, :8] == 90).all()
    assert (shown[10:] == pixels[10:]).all()
    whole = painted_over(Image.fromarray(pixels), [Region("all", (0, 0, 1, 1))])
    assert whole.size == (30, 40)  # nothing is left to fill from, and nothing fails


def test_the_effect_is_measured_and_kept(reader: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mended = mend(reader, out=tmp_path / "mended", without_clusters=("0",), data="shapes", count=20, workers=0)
    table = (mended / "mended.md").read_text()
    known = json.loads((mended / "mended.json").read_text())
    assert "| | before | after |" in table
    assert "closed in readout.3.attention: clusters 0" in table
    assert set(known["before"]) == set(known["after"])
    assert "mended:" in capsys.readouterr().out
    mend(reader, out=mended, without_clusters=("1",))  # replaces the earlier one, with its table
    assert not (mended / "mended.md").exists()


def test_groups_stand_in_the_table_as_evaluate_measures_them(reader: str, tmp_path: Path) -> None:
    data, options = "shapes:corner_mark=0.5,test=train", dict(groups=("agrees",), count=20, workers=0, device="cpu")
    mended = mend(reader, out=tmp_path / "mended", hide="upper left", data=data, **options)
    known = json.loads((mended / "mended.json").read_text())
    assert known["groups"] == ["agrees"]
    for when, model in (("before", reader), ("after", str(mended))):
        measured = evaluate(model, data, **options)
        for name in ("top1", "group_mean", "worst_group", "agrees=no", "agrees=yes"):
            assert known[when][name] == measured[name], (when, name)
        assert known[when]["worst_group"] == min(known[when]["agrees=no"], known[when]["agrees=yes"])
    table = (mended / "mended.md").read_text()
    worst = [f"{known[when]['worst_group']:.2%}" for when in ("before", "after")]
    assert f"| worst_group | {worst[0]} | {worst[1]} |" in table
    assert "| agrees=no |" in table


def test_a_group_of_any_name_is_a_share_in_the_table() -> None:
    rows = comparison({"loss": 0.5, "kind=glossy | a": 0.5}, {"loss": 0.25, "kind=glossy | a": 1.0}).splitlines()[2:]
    assert rows == ["| loss | 0.5000 | 0.2500 |", "| kind=glossy \\| a | 50.00% | 100.00% |"]


def test_bad_requests_are_one_line_and_write_nothing(reader: str, plain: str, tmp_path: Path) -> None:
    pure = save_tiny_model(tmp_path / "pure", clusters=0)
    dense = save_tiny_dense(tmp_path / "dense", "segment", ("a", "b"))
    outside = tmp_path / "outside.json"
    outside.write_text(json.dumps({"regions": [{"name": "a", "box": [0.5, 0.5, 1.5, 1]}]}))
    for source, options, says in (
        (reader, dict(without_clusters=("0,1,2,3,4,5,6,7",)), "all 8 clusters"),
        (reader, dict(without_clusters=("9",)), "cluster 9 does not exist"),
        (reader, dict(without_clusters=("-1",)), "give numbers from 0"),
        (reader, dict(without_clusters=("1",), stage=9), "stage 9 has no clusters"),
        (pure, dict(without_clusters=("1",)), "has no clusters"),
        (plain, dict(hide=str(outside)), "lies outside the picture"),
        (plain, dict(hide="nowhere"), "unknown place"),
        (dense, dict(hide="border"), "--hide is for classifiers"),
        (plain, {}, "nothing to mend"),
        (plain, dict(hide="border", stage=1), "add --without-clusters"),
        ("paca_tiny", dict(hide="border"), "is a name"),
        (plain, dict(hide="border", groups=("agrees",)), "--groups agrees says .*; add --data"),
        (plain, dict(hide="border", data="shapes", groups=("place",), workers=0), "--groups place: .* no such column"),
        (plain, dict(hide="border", data="shapes:stripe=1,test=absent", groups=("agrees",), workers=0), "one group"),
        (dense, dict(without_clusters=("0",), data="shapes", groups=("class",)), "--groups is for classifiers"),
        (plain, dict(hide="border", data=str(tmp_path / "none"), workers=0), "none"),
    ):
        with pytest.raises(InputError, match=says) as caught:
            mend(source, out=tmp_path / "out", **options)
        assert says == "none" or "\n" not in str(caught.value)  # the layouts of data are a list
        assert not (tmp_path / "out").exists()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").touch()
    with pytest.raises(InputError, match="is not empty"):
        mend(plain, out=tmp_path / "full", hide="border")


def test_dense_models_can_be_mended_by_their_clusters(tmp_path: Path) -> None:
    dense = save_tiny_dense(tmp_path / "dense", "segment", ("a", "b"))
    model = load_model(mend(dense, out=tmp_path / "mended", without_clusters=("2",))).model
    assert maps_of(model, IMAGES, cluster_layer(model))[1].shape[1] == 6


@pytest.mark.parametrize(
    "closed", [{"stages.9": [0]}, {"readout.3.attention": [0, 8]}, {"readout.3.attention": 1}, [1]]
)
def test_a_forged_description_is_refused(reader: str, closed: object) -> None:
    arguments = dict(read_config(Path(reader)).model_args, closed_clusters=closed)
    with pytest.raises(InputError, match="closed_clusters"):
        timm.create_model("paca_tiny", **arguments)
