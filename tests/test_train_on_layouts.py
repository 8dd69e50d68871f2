"""Layouts as people have them, each through check, one epoch of training, and evaluation."""

import json
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from torch import nn

import vitreous_command
from tests.support.tiny_data import coco_file, mask, penn_fudan, pets, picture
from tests.support.tiny_model import MODEL_ARGS
from vitreous.check import check
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.runs.model_folder import load_model
from vitreous.runs.trained_model import TrainedModel, class_columns
from vitreous.train import train

PLAIN = dict(model="test_efficientnet", size=32, epochs=1, batch_size=4, workers=0, device="cpu", warmup_epochs=0.0)
TINY = tuple(f"{name}={value}" for name, value in MODEL_ARGS.items())
QUIET = dict(workers=0, device="cpu")


def flat(root: Path, classes=("ant", "bee"), count: int = 12) -> Path:
    for label, name in enumerate(classes):
        for number in range(count):
            picture(root / name / f"{number}.png", seed=1000 * label + number)
    return root


# ---- folders of classes without splits -------------------------------------------------------------------------


def test_flat_folder(tmp_path, capsys):
    root = flat(tmp_path / "photos")
    assert check(str(root), workers=0).exit_code == 0
    out = train(**PLAIN, data=str(root), out=tmp_path / "run", val_fraction=0.25)
    assert "25% of it is held out as val, by content" in capsys.readouterr().out
    recorded = json.loads((out / "run.json").read_text())
    assert recorded["arguments"]["val_fraction"] == 0.25
    assert recorded["data"]["val"].startswith("0.25 of ")
    held = evaluated(out, root, capsys)
    assert held == check(str(root), workers=0, val_fraction=0.25).images["val"]
    assert 0 < held < 24
    assert load_model(out).val_fraction == 0.25, "evaluation holds out what training did"
    assert evaluated(out, root, capsys, val_fraction=1.0) == 24
    assert evaluated(out, root, capsys, split="train") == 24 - held
    train(**PLAIN, data=str(root), out=out, val_fraction=0.25)
    assert "is finished" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"data of split train: '0\.75 of .*, '0\.8 of "):
        train(**PLAIN, data=str(root), out=out)


def evaluated(model, data, capsys, **options) -> int:
    """How many images were measured."""
    capsys.readouterr()
    evaluate(str(model), str(data), **QUIET, **options)
    first = capsys.readouterr().out.splitlines()[0]
    return int(first.rpartition("): ")[2].split()[0])


def test_flat_folder_in_other_verbs(tmp_path, capsys):
    root = flat(tmp_path / "photos")
    out = train(**PLAIN | dict(model="paca_tiny", model_args=TINY), data=str(root), out=tmp_path / "run")
    command = ["score", str(out), str(root), "--limit", "2", "--method", "grad_cam"]
    assert vitreous_command.main([*command, "--device", "cpu", "--out", str(tmp_path / "score")]) == 0
    assert "20% of it is held out" in capsys.readouterr().out
    assert vitreous_command.main(["predict", str(out), str(root), "--device", "cpu"]) == 0
    assert len([line for line in capsys.readouterr().out.splitlines() if ".png" in line]) == 24


def test_model_trained_with_splits_is_measured_on_all_of_a_flat_folder(tmp_path, capsys):
    flat(tmp_path / "data" / "train", count=4)
    flat(tmp_path / "data" / "val", count=2)
    out = train(**PLAIN, data=str(tmp_path / "data"), out=tmp_path / "run")
    assert load_model(out).val_fraction == 1.0
    assert evaluated(out, flat(tmp_path / "more"), capsys) == 24


# ---- folders named by numbers ----------------------------------------------------------------------------------


def imagenet() -> TrainedModel:
    model = timm.create_model("test_efficientnet").eval()
    names = tuple(timm.data.ImageNetInfo("imagenet-1k").label_descriptions(detailed=False))
    return TrainedModel(model, "test_efficientnet", "classify", names, Preprocess(size=(32, 32)))


def test_numbers_of_imagenet_are_places_in_the_answers():
    trained = imagenet()
    assert class_columns(trained, ("0", "1", "2", "10", "999")) == (0, 1, 2, 10, 999)
    assert class_columns(trained, ("0007", "0100")) == (7, 100)
    assert class_columns(trained, ("n01440764", "n01443537")) == (0, 1), "by WordNet number as before"
    by_synset = trained._replace(classes=tuple(timm.data.ImageNetInfo("imagenet-1k").label_names()))
    assert class_columns(by_synset, ("3", "999")) == (3, 999)
    with pytest.raises(InputError, match="does not know the class '1000'"):
        class_columns(trained, ("5", "1000"))


def test_numbers_mean_nothing_to_other_models():
    own = imagenet()._replace(classes=tuple(f"kind {number}" for number in range(1000)))
    with pytest.raises(InputError, match="does not know the class '0'"):
        class_columns(own, ("0", "1"))


class ReadsTheNumber(nn.Module):
    """Answers with the number that the colour of a picture stands for."""

    num_classes = 1000

    def __init__(self, preprocess: Preprocess) -> None:
        super().__init__()
        self.mean, self.std = torch.tensor(preprocess.mean), torch.tensor(preprocess.std)
        self.weight = nn.Parameter(torch.zeros(1))  # every model has a device

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        colour = ((x.mean((2, 3)) * self.std + self.mean) * 255).round().long()  # (B, 3)
        return 9.0 * nn.functional.one_hot(colour[:, 0] * 10 + colour[:, 1], 1000) + self.weight


def test_imagenet_v2(tmp_path, capsys, monkeypatch):
    """Folders 0 to 999 without splits: a published model is measured on all of them, each at its own number."""
    root, published = tmp_path / "imagenetv2-matched-frequency-format-val", imagenet()
    for number in (0, 1, 2, 10, 100, 207, 999):
        (root / str(number)).mkdir(parents=True)
        for blue in range(2):
            Image.new("RGB", (40, 40), (number // 10, number % 10, blue)).save(root / str(number) / f"{blue}.png")
    trained = published._replace(model=ReadsTheNumber(published.preprocess).eval())
    monkeypatch.setattr("vitreous.evaluations.settings.load_model", lambda *_, **__: trained)
    figures = evaluate("published", str(root), **QUIET)
    assert "14 val images, 7 classes" in capsys.readouterr().out
    assert figures["top1"] == 1.0


def test_numbered_folders_are_classes_in_the_order_of_numbers(tmp_path):
    names = [str(number) for number in range(12)]
    for split in ("train", "val"):
        flat(tmp_path / "data" / split, names, count=1)
    out = train(**PLAIN, data=str(tmp_path / "data"), out=tmp_path / "run")
    assert load_model(out).classes == tuple(names)


# ---- pictures with something in them ---------------------------------------------------------------------------


def coco_files(root: Path) -> dict:
    for number in range(6):
        picture(root / "photos" / "session" / f"{number}.png", seed=number)
    files = [write(root / "labels" / f"{n}.json", names) for n, names in enumerate((("0", "1", "2", "3"), ("4", "5")))]
    return {"data": str(root / "photos"), "annotations": tuple(map(str, files))}


def write(file: Path, stems) -> Path:
    return coco_file(file, [f"{stem}.png" for stem in stems])


def one_coco_file(root: Path) -> dict:
    for number in range(8):
        picture(root / f"{number}.png", seed=number)
    return {"data": str(write(root / "export.json", range(8)))}


def pairs(root: Path) -> dict:
    for number in range(8):
        picture(root / "images" / f"{number}.jpg", seed=number)
        mask(root / "masks" / f"{number}.png", np.tri(30, 40, number))
    (root / "masks" / "classes.json").write_text('["ground", "tree"]')
    return {"data": str(root)}


def labels_in_a_table(root: Path) -> dict:
    rows = [f"{number}.png,{('ant', 'bee')[number % 2]},{('train', 'val')[number // 6]}\n" for number in range(8)]
    return written_table(root, "path,label,split\n" + "".join(rows))


def boxes_in_a_table(root: Path) -> dict:
    rows = [f"{number}.png,2,3,{12 + number},20,{('ant', 'bee')[number % 2]}\n" for number in range(8)]
    return written_table(root, "path,x1,y1,x2,y2,label\n" + "".join(rows))


def written_table(root: Path, text: str) -> dict:
    for number in range(8):
        picture(root / f"{number}.png", seed=number)
    (root / "photos.csv").write_text(text)
    return {"data": str(root / "photos.csv")}


LAYOUTS = {
    "table of labels": ("classify", labels_in_a_table, ("ant", "bee")),
    "table of boxes": ("detect", boxes_in_a_table, ("ant", "bee")),
    "COCO files": ("detect", coco_files, ("dog", "cat", "cow")),
    "COCO files, one": ("detect", one_coco_file, ("dog", "cat", "cow")),
    "Penn-Fudan": ("detect", lambda root: {"data": str(penn_fudan(root))}, ("pedestrian",)),
    "Penn-Fudan, classes": ("segment", lambda root: {"data": str(penn_fudan(root))}, ("background", "pedestrian")),
    "pairs": ("segment", pairs, ("ground", "tree")),
    "pets": ("segment", lambda root: {"data": str(pets(root))}, ("background", "pet")),
    "pets, breeds": ("classify", lambda root: {"data": str(pets(root))}, ("Abyssinian", "great_pyrenees")),
}
HEADS = {
    "detect": dict(head="fcos", head_args=("channels=16", "convs=1"), short=(32,), longest=64),
    "segment": dict(head_args=("pyramid=16", "width=16"), short=(32,), crop=(32, 32)),
    "classify": {},
}


@pytest.mark.parametrize("name", LAYOUTS)
def test_layout(tmp_path, name, capsys):
    task, build, classes = LAYOUTS[name]
    data = build(tmp_path / "data")
    report = check(**data, task=task, workers=0)
    assert report.problems == []
    assert tuple(report.counts["val" if "val" in report.counts else "test"]) == classes
    small = PLAIN | dict(model="paca_tiny", model_args=TINY, batch_size=2)
    out = train(**small, **data, task=task, **HEADS[task], out=tmp_path / "run")
    recorded = json.loads((out / "run.json").read_text())["arguments"]["data"]
    assert evaluate(str(out), recorded, **QUIET), "what the run recorded is what other verbs take"
    assert evaluate(str(out), **data, **QUIET)
    assert load_model(out).classes == classes


def test_check_names_the_other_tasks(tmp_path, capsys):
    data = pets(tmp_path / "data")
    assert check(str(data), workers=0).task == "classify"
    assert "looked at for --task classify; its layout is also one for --task segment" in capsys.readouterr().out
    assert vitreous_command.main(["check", str(tmp_path)]) == 2
    refusal = capsys.readouterr().err
    assert "labels/train/*.txt (the same with val) and DIR/data.yaml with names (--task detect or keypoints)" in refusal
    assert "<class>" in refusal
