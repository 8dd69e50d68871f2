"""`vitreous check`: each kind of trouble is planted and found, nothing is found where there is none."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vitreous_command
from vitreous.check import Report, check
from vitreous.data.source import open_data, read_quarantine
from vitreous.errors import InputError


def picture(seed: int, size=(48, 40)) -> Image.Image:
    """Smooth enough to look the same after small changes."""
    coarse = Image.fromarray(np.random.default_rng(seed).integers(0, 256, (5, 6, 3), np.uint8))
    return coarse.resize(size, Image.Resampling.BICUBIC)


@pytest.fixture
def root(tmp_path) -> Path:
    """Two splits of two classes with four and two pictures each, all of them different."""
    number = 0
    for split, count in (("train", 4), ("val", 2)):
        for name in ("ant", "cat"):
            (tmp_path / "data" / split / name).mkdir(parents=True)
            for index in range(count):
                picture(number).save(tmp_path / "data" / split / name / f"{index}.png")
                number += 1
    return tmp_path / "data"


def kinds(report: Report) -> dict[str, tuple[str, ...]]:
    return {finding.kind: finding.images for finding in report.findings}


def looked(root, **options) -> Report:
    return check(str(root), workers=0, **options)


def test_clean_data_has_no_findings(root, capsys):
    report = looked(root, near=True)
    assert (report.findings, report.exit_code, report.quarantine) == ([], 0, {})
    assert report.counts == {"train": {"ant": 4, "cat": 4}, "val": {"ant": 2, "cat": 2}}
    assert (report.sides, report.shapes) == ({"32 to 64": 12}, {"0.8 to 1.25": 12})
    shown = capsys.readouterr().out
    assert "class folders" in shown
    assert "no problems found" in shown
    assert "--model-args stem_stride=1" in shown
    assert not (root / "quarantine.txt").exists()


def test_unreadable_files_are_listed_and_left_out(root, capsys):
    (root / "train" / "ant" / "0.png").write_bytes(b"<html>")
    (root / "val" / "cat" / "it's.png").write_bytes(b"")
    report = looked(root, json=root.parent / "deep" / "report.json")
    assert kinds(report)["unreadable"] == (
        "train/ant/0.png: holds HTML or XML text, not pixels (a failed download?); "
        "JPEG, PNG, WebP, BMP and TIFF are read",
        "val/cat/it's.png: is empty (0 bytes); copy or download it again",
    )
    assert report.exit_code == 1
    assert set(read_quarantine(root / "quarantine.txt")) == {"train/ant/0.png", "val/cat/it's.png"}
    assert "2 images listed in" in capsys.readouterr().out
    recorded = json.loads((root.parent / "deep" / "report.json").read_text())
    assert recorded["splits"]["train"] == {"images": 8, "classes": {"ant": 4, "cat": 4}}
    assert recorded["findings"][0]["kind"] == "unreadable"
    assert len(open_data(str(root), "train", size=(8, 8))) == 7
    again = looked(root)
    assert len(kinds(again)["unreadable"]) == 2, "the list does not hide anything from the next check"


def test_same_pictures(root):
    """Copies are found by their pixels: here one is a BMP and one carries other metadata."""
    picture(0).save(root / "train" / "ant" / "copy.bmp")
    picture(4).save(root / "train" / "ant" / "is a cat.png")
    picture(1).save(root / "val" / "ant" / "leaked.png", dpi=(300, 300))
    report = looked(root, leave_out=("conflicts", "leaks", "duplicates"))
    assert kinds(report) == {
        "conflicts": ("train/ant/is a cat.png (ant) = train/cat/0.png (cat)",),
        "leaks": ("train/ant/1.png (ant) = val/ant/leaked.png (ant)",),
        "duplicates": ("train/ant/0.png (ant) = train/ant/copy.bmp (ant)",),
    }
    assert [finding.problem for finding in report.findings] == [True, True, False]
    assert report.quarantine == {
        "train/ant/is a cat.png": "the same picture is in class cat",
        "train/cat/0.png": "the same picture is in class ant",
        "train/ant/1.png": "the same picture is val/ant/leaked.png",
        "train/ant/copy.bmp": "the same picture is train/ant/0.png",
    }


def test_copies_alone_are_a_remark(root):
    picture(0).save(root / "train" / "ant" / "copy.png")
    report = looked(root)
    assert (list(kinds(report)), report.exit_code) == (["duplicates"], 0)
    assert not (root / "quarantine.txt").exists()


def test_nearly_the_same_pictures(root):
    near = picture(2).resize((96, 80)).point(lambda value: min(255, value + 3))
    near.save(root / "val" / "cat" / "near.jpg", quality=80)
    assert "near duplicates" not in kinds(looked(root))
    assert kinds(looked(root, near=True))["near duplicates"] == ("train/ant/2.png ~ val/cat/near.jpg",)
    for split in ("train", "val"):
        Image.new("RGB", (40, 40), (9, 9, len(split))).save(root / split / "ant" / "flat.png")
    assert len(kinds(looked(root, near=True))["near duplicates"]) == 1, "pictures of one colour look like nothing"


def test_classes_that_do_not_fit(root):
    (root / "val" / "cat").rename(root / "val" / "cow")
    (root / "train" / "dog").mkdir()
    report = looked(root)
    texts = {finding.text: finding.images for finding in report.findings}
    assert texts == {
        "2 classes of train are not in val": ("cat", "dog"),
        "1 class of val is not in train": ("cow",),
        "1 class of train has no images": ("dog",),
    }
    assert report.exit_code == 1


def test_odd_pictures_are_remarks(root):
    exif = Image.Exif()
    exif[274] = 6
    Image.new("CMYK", (40, 44), (9, 80, 3, 5)).save(root / "train" / "ant" / "print.jpg")
    Image.fromarray(np.arange(1600, dtype=np.uint16).reshape(40, 40) * 40).save(root / "train" / "ant" / "deep.png")
    picture(50).quantize().save(root / "train" / "ant" / "palette.png")
    picture(51, (60, 40)).save(root / "train" / "cat" / "lying.jpg", exif=exif)
    picture(52, (300, 20)).save(root / "train" / "cat" / "strip.png")
    report = looked(root)
    texts = {finding.text: finding.images for finding in report.findings}
    assert texts == {
        "1 image stored as CMYK: converted to 8-bit RGB": ("train/ant/print.jpg",),
        "1 image stored as I;16: converted to 8-bit RGB": ("train/ant/deep.png",),
        "1 image stored as P: converted to 8-bit RGB": ("train/ant/palette.png",),
        "1 image stored lying down: turned upright by their EXIF orientation": ("train/cat/lying.jpg",),
        "1 image with a side below 32 pixels": ("train/cat/strip.png: 300 x 20",),
    }
    assert report.exit_code == 0
    assert report.shapes == {"0.5 to 0.8": 1, "0.8 to 1.25": 15, "1.25 to 2": 0, "2 up": 1}


def test_uneven_classes(root):
    for number in range(60):
        picture(100 + number).save(root / "train" / "ant" / f"more{number}.png")
    assert [finding.text for finding in looked(root).findings] == ["train has 64 images of ant but 4 of cat"]


def test_workers_change_nothing(root):
    (root / "train" / "ant" / "0.png").write_bytes(b"nothing")
    picture(5).save(root / "val" / "cat" / "leaked.png")
    assert check(str(root), workers=2, write=False) == looked(root, write=False)


def test_where_the_list_goes(root, capsys):
    (root / "train" / "ant" / "0.png").write_bytes(b"nothing")
    looked(root, write=False)
    assert not (root / "quarantine.txt").exists()
    looked(root, out=root.parent / "lists" / "q.txt")
    assert not (root / "quarantine.txt").exists()
    assert "--quarantine" in capsys.readouterr().out
    assert len(open_data(str(root), "train", size=(8, 8), quarantine=root.parent / "lists" / "q.txt")) == 7
    looked(root)
    picture(0).save(root / "train" / "ant" / "0.png")
    looked(root)
    assert read_quarantine(root / "quarantine.txt") == {}, "what was mended is no longer left out"


def test_a_folder_that_cannot_be_written_says_what_to_do(root, monkeypatch):
    (root / "train" / "ant" / "0.png").write_bytes(b"nothing")

    def refuse(*_):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr(sys.modules["vitreous.check"], "replace_file", refuse)
    with pytest.raises(InputError, match=r"cannot write .*quarantine\.txt \(Permission denied\); give another place"):
        looked(root)


def test_exit_codes_of_the_command(root, capsys):
    command = ["check", str(root), "--workers", "0", "--no-write"]
    assert vitreous_command.main(command) == 0
    (root / "train" / "ant" / "0.png").write_bytes(b"nothing")
    assert vitreous_command.main(command) == 1
    assert vitreous_command.main(["check", "no/such/data"]) == 2
    assert "there is no such folder" in capsys.readouterr().err
    with pytest.raises(InputError, match="--workers -1"):
        check(str(root), workers=-1)


def test_many_classes_are_shown_by_their_ends(tmp_path, capsys):
    labels = np.repeat(np.arange(60), np.arange(1, 61))
    pixels = np.random.default_rng(0).integers(0, 256, (len(labels), 33, 33, 3), np.uint8)
    np.savez(tmp_path / "many.npz", x_train=pixels, y_train=labels, x_test=pixels[:0], y_test=labels[:0])
    with pytest.raises(InputError, match=r"y_test .* is int64 of shape \(0,\)"):
        looked(tmp_path / "many.npz")
    np.savez(tmp_path / "many.npz", x_train=pixels, y_train=labels)
    report = looked(tmp_path / "many.npz")
    assert report.layout == "arrays"
    assert [finding.kind for finding in report.findings] == ["uneven"]
    shown = capsys.readouterr().out
    assert "60 classes" in shown
    assert "│ 59 " in shown
    assert "│ 30 " not in shown
    assert "│ 0 " in shown
