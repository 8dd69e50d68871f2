"""The verb: every kind writes figures, a chart and how to read it; what has no meaning is told."""

import json
import sys
from pathlib import Path

import pytest

from tests.support.families import save_small
from vitreous import analyze
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.investigations.base import all_investigated

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
    assert kind == "attention" or f"{kind}.svg" in written


def test_the_same_seed_gives_the_same_figures(folder: Path, tmp_path: Path) -> None:
    rows = []
    for name in ("a", "b"):
        analyze("interaction", folder, **{**FEW, "limit": 1}, out=tmp_path / name)
        rows.append(json.loads((tmp_path / name / "analysis.json").read_text())["rows"])
    assert rows[0] == rows[1]


def test_data_of_other_classes_are_refused_where_answers_are_counted(tmp_path: Path) -> None:
    save_small(tmp_path / "other", "mat_1")
    with pytest.raises(InputError, match="classes that mat_1 does not know"):
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
    options = dict(FEW, size=64, seeds=(0, 1), switches=("fixed temperature",), runs=tmp_path / "runs")
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
