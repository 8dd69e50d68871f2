"""Picture files that cannot be read are describe_passed_over, never passed over in silence."""

import io
import sys

import numpy as np
import pillow_heif
import pytest
from PIL import Image

from tests.support.tiny_data import picture
from vitreous.check import check
from vitreous.data import image
from vitreous.data.image import ImageError, load_image, stored_as, upright_size
from vitreous.data.image_set import describe_passed_over, picture_files
from vitreous.data.pictures import find_pictures
from vitreous.data.source import describe, open_data
from vitreous.errors import InputError

SMOOTH = Image.fromarray(np.random.default_rng(0).integers(0, 256, (3, 4, 3), np.uint8)).resize((60, 40))


def heic(orientation: int = 1) -> bytes:
    stream, coded, exif = io.BytesIO(), pillow_heif.from_pillow(SMOOTH), Image.Exif()
    exif[274] = orientation
    coded.info.update({"exif": exif.tobytes(), "original_orientation": orientation})
    coded.save(stream, quality=95)
    return stream.getvalue()


@pytest.fixture
def root(tmp_path):
    for name in ("ant", "bee"):
        for number in range(3):
            picture(tmp_path / "data" / "train" / name / f"{number}.png", seed=number)
    return tmp_path / "data"


def test_heic_with_its_package():
    found = load_image(heic())
    assert (found.size, found.mode) == ((60, 40), "RGB")
    assert np.abs(np.asarray(found, np.int16) - np.asarray(SMOOTH)).mean() < 8
    assert load_image(heic(), at_least=8).size == (60, 40)
    assert (load_image(heic(6)).size, upright_size(heic(6))) == ((40, 60), (40, 60))
    assert stored_as(heic()).format == "HEIF"
    assert "HEIF" not in Image.OPEN, "Pillow's process-wide settings are left as they are"
    with pytest.raises(ImageError, match="cannot be decoded"):
        load_image(heic()[:300])
    with pytest.raises(ImageError, match="at most 100 in all"):
        load_image(heic(), max_pixels=100)


def test_heic_without_its_package(monkeypatch, root):
    monkeypatch.setitem(sys.modules, "pillow_heif", None)
    with pytest.raises(ImageError, match=r"is HEIC, which needs: .*pip install .*\[heic\]"):
        load_image(heic())
    (root / "train" / "ant" / "phone.HEIC").write_bytes(heic())
    assert len(open_data(str(root), "train", size=(8, 8))) == 7, "the same data as where the package is there"
    report = check(str(root), workers=0)
    assert "train/ant/phone.HEIC: is HEIC, which needs: " in report.findings[0].images[0]
    assert report.exit_code == 1


def test_avif(tmp_path, monkeypatch):
    SMOOTH.save(tmp_path / "a.avif", quality=90)
    assert load_image(tmp_path / "a.avif").size == (60, 40)
    monkeypatch.setattr(image, "FORMATS", tuple(name for name in image.FORMATS if name != "AVIF"))
    with pytest.raises(ImageError, match=r"is AVIF, which needs a newer Pillow"):
        load_image(tmp_path / "a.avif")


def test_other_kinds_are_counted_and_told(root, capsys):
    for name in ("ant/a.gif", "bee/b.gif", "bee/c.NEF", "bee/notes.txt", "bee/.d.gif"):
        (root / "train" / name).write_bytes(b"x")
    images = open_data(str(root), "train", size=(8, 8))
    assert len(images) == 6
    assert "data: train: 3 files passed over (2 .gif, 1 .nef): JPEG, PNG" in describe(str(root), train=images)
    found = find_pictures([str(root)], size=(8, 8))
    assert len(found) == 6
    assert "3 files passed over" in capsys.readouterr().out


def test_folder_of_other_kinds_alone(tmp_path):
    (tmp_path / "a.gif").write_bytes(b"GIF89a")
    with pytest.raises(InputError, match=r"holds no image .*1 file passed over \(1 \.gif\)"):
        find_pictures([str(tmp_path)], size=(8, 8))


def test_order_and_hidden_files(tmp_path):
    for name in ("b.png", "a/z.JPG", "a/y.jfif", ".hidden/c.png", "a/.d.png", "c.txt"):
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(b"x")
    assert picture_files(tmp_path) == (["a/y.jfif", "a/z.JPG", "b.png"], ())
    assert describe_passed_over((".gif",)) == "1 file passed over (1 .gif): JPEG, PNG, WebP, BMP and TIFF are read"
