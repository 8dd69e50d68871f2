"""The verb: every kind writes figures, a chart and how to read it; what has no meaning is told."""

import json
import re
import sys
from pathlib import Path
from xml.etree import ElementTree

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from timm.data import ImageNetInfo

from tests.support.families import save_small
from tests.support.tiny_model import save_tiny_dense
from vitreous import analyze
from vitreous.data.source import open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.figures.counting import figures_of
from vitreous.investigations.base import all_investigated, load_investigations
from vitreous.runs.model_folder import load_model, save_model

SHAPES = tuple(open_data("shapes", "val", size=(64, 64), count=1).classes)
FEW = dict(data="shapes", limit=3, batch_size=2)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("models") / "small"
    save_small(
        place, "paca_b0", dims=(16, 32), depths=(1, 1), heads=(1, 2), clusters=4, mlp_ratios=(2, 2), classes=SHAPES
    )
    return place


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        ("fourier", {}),
        ("interaction", {"limit": 1}),
        ("attention", {"query": (0.2, 0.7)}),
        ("similarity", {}),
        ("clusters", {}),
        ("importance", {}),
        ("resolution", {"sizes": (32, 64)}),
        ("robustness", {"corruptions": ("jpeg", "fog")}),
        ("scaling", {"sizes": (32, 64), "rounds": 1}),
    ],
)
def test_every_kind_writes_figures_pictures_and_how_to_read_them(
    kind: str, options: dict, folder: Path, tmp_path: Path
) -> None:
    text = analyze(kind, folder, **{**FEW, **options}, out=tmp_path / "out")
    content = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert content["rows"]
    assert content["reading"] in text.read_text()
    written = {path.name for path in (tmp_path / "out").iterdir()}
    assert written == {*content["files"], "analysis.json"}
    assert f"{kind}.png" in written
    pictures = {name.removesuffix(".png") for name in written if name.endswith(".png")}
    for name in pictures:
        assert ElementTree.parse(tmp_path / "out" / f"{name}.svg").getroot().tag.endswith("svg")


def test_clusters_are_shown_over_their_number_and_their_drift(tmp_path: Path) -> None:
    small = dict(dims=(16, 32), depths=(1, 1), heads=(1, 2), mlp_ratios=(2, 2), classes=SHAPES)
    for name, count in (("many", 6), ("few", 3)):
        save_small(tmp_path / name, "paca_b0", **small, clusters=count)
    for seed, name in enumerate(("best", "final")):
        torch.manual_seed(seed)
        save_small(tmp_path / "run" / name, "paca_b0", **small, clusters=4)
    analyze("clusters", tmp_path / "many", **FEW, beside=(tmp_path / "few", tmp_path / "run"), out=tmp_path / "out")
    rows = json.loads((tmp_path / "out" / "analysis.json").read_text())["rows"]
    assert [row["clusters"] for row in rows] == [3, 3, 4, 4, 6, 6]
    drifts = {row["model"]: row["drift"] for row in rows}
    assert drifts["run"] > 0
    assert drifts["few"] is drifts["many"] is None
    told = (tmp_path / "out" / "clusters.svg").read_text()
    for title in (
        "drift from the best to the final weights",
        "share of the clusters in use, over M",
        "entropy, over M",
    ):
        assert title in told


def test_branches_of_emsnet_have_curves_of_their_own(tmp_path: Path) -> None:
    save_small(tmp_path / "emsnet", "emsnet_xxtiny", classes=SHAPES)
    analyze("fourier", tmp_path / "emsnet", **FEW, size=128, out=tmp_path / "out")
    told = (tmp_path / "out" / "fourier.svg").read_text()
    for title in ("emsnet: branches of stages.0.blocks.0", "static branch4", "dynamic local attention"):
        assert title in told


def test_the_same_seed_gives_the_same_figures(folder: Path, tmp_path: Path) -> None:
    rows = []
    for name in ("a", "b"):
        analyze("interaction", folder, **{**FEW, "limit": 1}, out=tmp_path / name)
        rows.append(json.loads((tmp_path / name / "analysis.json").read_text())["rows"])
    assert rows[0] == rows[1]


def test_data_of_other_classes_are_refused_where_answers_are_counted(tmp_path: Path) -> None:
    save_small(tmp_path / "other", "mat_1")
    with pytest.raises(InputError, match="'mat_1' does not know the class"):
        analyze("resolution", tmp_path / "other", **FEW, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_other_models_are_shown_beside_it_and_what_has_no_meaning_is_told(
    folder: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save_small(tmp_path / "other", "mat_1")
    analyze("clusters", folder, **FEW, beside=(tmp_path / "other",), out=tmp_path / "out")
    assert "not defined for other: " in capsys.readouterr().out
    with pytest.raises(InputError, match="clusters is not defined here"):
        analyze("clusters", tmp_path / "other", **FEW, out=tmp_path / "none")
    assert not (tmp_path / "none").exists()


@pytest.mark.parametrize("kind", ["fourier", "interaction", "resolution", "robustness", "attention", "similarity"])
def test_one_unsuitable_model_beside_others_is_told_with_its_reason(kind: str, folder: Path, tmp_path: Path) -> None:
    save_small(tmp_path / "other", "mat_1")  # of other classes
    save_small(tmp_path / "unread", "mat_1")
    (tmp_path / "unread" / "config.json").write_text("{}")
    options = dict(FEW, limit=1, sizes=(64,), corruptions=("jpeg",), size=64)
    analyze(kind, folder, **options, beside=(tmp_path / "other", tmp_path / "unread"), out=tmp_path / "out")
    content = json.loads((tmp_path / "out" / "analysis.json").read_text())
    unasked = {"other"} if kind in ("resolution", "robustness") else set()  # only these compare answers with labels
    assert set(content["undefined"]) == {"unread"} | unasked
    assert {row["model"] for row in content["rows"]} == {"small", "other"} - unasked


@pytest.mark.parametrize("typed", ["no_such_model", "no/such_run"])
def test_a_mistyped_model_beside_others_is_refused(typed: str, folder: Path, tmp_path: Path) -> None:
    with pytest.raises(InputError, match=re.escape(typed)):
        analyze("similarity", folder, **FEW, beside=(typed,), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("kind", ["fourier", "attention", "similarity", "clusters"])
def test_what_asks_for_no_answer_needs_no_classifier_and_no_labels(kind: str, tmp_path: Path) -> None:
    """A model without a classifier, as learning without labels leaves it, and a detector; on bare pictures."""
    arguments = dict(dims=(16, 32), depths=(1, 1), heads=(1, 2), clusters=4, mlp_ratios=(2, 2))
    model = timm.create_model("paca_b0", num_classes=0, **arguments)
    about = dict(name="paca_b0", model_args=arguments, task="dino", classes=(), preprocess=Preprocess((64, 64)))
    save_model(tmp_path / "features", model, **about)
    save_tiny_dense(tmp_path / "detector", "detect", SHAPES)
    (tmp_path / "pictures").mkdir()
    images = open_data("shapes", "val", size=(64, 64), count=2)
    for number in range(2):
        images.picture(number).save(tmp_path / "pictures" / f"{number}.png")
    for name in ("features", "detector"):
        for data in ("shapes", str(tmp_path / "pictures")):
            analyze(kind, tmp_path / name, data, limit=2, out=tmp_path / "out")
            rows = json.loads((tmp_path / "out" / "analysis.json").read_text())["rows"]
            assert {row["model"] for row in rows} == {name}


IMAGENET = dict(dims=(8, 16), depths=(1, 1), heads=(1, 2), clusters=4, mlp_ratios=(1, 1))


def test_robustness_knows_imagenets_folders_by_synset_and_by_number(tmp_path: Path) -> None:
    """And takes all pictures of other data, also where flat folders would be divided by a share held out."""
    info = ImageNetInfo()
    classes = tuple(info.label_descriptions(detailed=False))
    save_small(tmp_path / "model", "paca_b0", **IMAGENET, classes=classes)
    random = np.random.default_rng(0)
    for data, names in (("synsets/val", info.label_names()[:2]), ("numbers", ["0", "7"]), ("others", classes[:2])):
        for name in names:
            (tmp_path / data / name).mkdir(parents=True)
            for number in range(5):
                pixels = random.integers(0, 255, (64, 64, 3), dtype=np.uint8)
                Image.fromarray(pixels).save(tmp_path / data / name / f"{number}.png")
    also = (str(tmp_path / "numbers"), str(tmp_path / "others"))
    options = dict(also=also, corruptions=("jpeg",), limit=99)
    analyze("robustness", tmp_path / "model", str(tmp_path / "synsets"), **options, out=tmp_path / "out")
    content = json.loads((tmp_path / "out" / "analysis.json").read_text())
    assert content["undefined"] == {}
    rows = {(row["pictures_of"], row["severity"]): row for row in content["rows"]}
    trained = load_model(tmp_path / "model")
    for data in also:
        paths = sorted(Path(data).glob("*/*.png"))
        assert rows[data, None]["pictures"] == len(paths) == 10
        number = {path.parent.name: place for place, path in enumerate(sorted(Path(data).glob("*/0.png")))}
        wanted = [0, 7] if data == also[0] else [classes.index(name) for name in sorted(classes[:2])]
        right = 0
        for path in paths:
            answer = trained.model(trained.preprocess(Image.open(path))[None]).argmax().item()
            right += answer == wanted[number[path.parent.name]]
        assert rows[data, None]["top1"] == pytest.approx(right / 10)
    assert "other data of the same classes" in (tmp_path / "out" / "robustness.svg").read_text()


@pytest.mark.parametrize(
    ("kind", "options", "told"),
    [
        ("furier", {}, "nearest: fourier"),
        ("attention", {"query": (1.5, 0.0)}, "outside of the picture"),
        ("attention", {"block": "stages.9"}, "part of no layer's name"),
        ("attention", {"head": 9}, "does not exist"),
        ("robustness", {"corruptions": ("jepg",)}, "nearest: jpeg"),
        ("fourier", {"limit": 0}, "--limit 0"),
    ],
)
def test_bad_input_is_one_line_and_nothing_is_written(
    kind: str, options: dict, told: str, folder: Path, tmp_path: Path
) -> None:
    with pytest.raises(InputError, match=told):
        analyze(kind, folder, **{**FEW, **options}, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_ablations_train_what_is_missing_and_go_on_where_they_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With runs that are there already; what is trained is the row's arguments."""
    asked = []

    def stand_in(model: str, data: str, *, out: Path, model_args: tuple[str, ...], **_: object) -> None:
        asked.append((out.name, model_args))
        save_small(out, model, classes=SHAPES)

    monkeypatch.setattr(sys.modules["vitreous.analyze"], "train", stand_in)
    options = dict(FEW, seeds=(0, 1), switches=("fixed temperature",), runs=tmp_path / "runs")
    for _ in range(2):
        analyze("ablate", "xcit_nano_12_p16", **options, out=tmp_path / "out")
    assert asked == [
        ("xcit_nano_12_p16_whole_0", ()),
        ("xcit_nano_12_p16_whole_1", ()),
        ("xcit_nano_12_p16_fixed_temperature_0", ("learned_temperature=False",)),
        ("xcit_nano_12_p16_fixed_temperature_1", ("learned_temperature=False",)),
    ]
    rows = json.loads((tmp_path / "out" / "analysis.json").read_text())["rows"]
    assert [row["part"] for row in rows] == ["whole", "fixed temperature"]
    assert rows[0]["params"] - rows[1]["params"] == 12 * 4  # a number for each head of each block
    built = timm.create_model("xcit_nano_12_p16")
    assert rows[0]["gmacs"] == round(figures_of(built, (64, 64))["macs"] / 1e9, 3)  # the size of the run, not its own
    assert {row["pictures"] for row in rows} == {3}
    find = load_investigations()
    assert [kind.usual_limit for kind in (find["ablate"], find["fourier"])] == [None, 32]
    with pytest.raises(InputError, match="give another --runs"):
        analyze("ablate", "xcit_nano_12_p16", **{**options, "epochs": 7}, out=tmp_path / "out")
    (tmp_path / "runs" / "xcit_nano_12_p16_whole_0" / "ablation.json").write_text("{")
    analyze("ablate", "xcit_nano_12_p16", **options, out=tmp_path / "out")
    assert len(asked) == 5  # that row again; training would find its run finished
    with pytest.raises(InputError, match="has no parts to leave out"):
        analyze("ablate", "resnet18", **options, out=tmp_path / "out")


def test_models_whose_folders_have_one_name_are_told_apart() -> None:
    def labels(*given: str) -> list[str]:
        return [subject.label for subject in all_investigated(given, None, "cpu")]

    assert labels("runs/a", "runs/b") == ["a", "b"]
    assert labels("runs/a/best", "runs/b/best") == ["runs/a/best", "runs/b/best"]
