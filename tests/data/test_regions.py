"""Regions: written and read alike, found by place and by look, and refused in one line."""

import base64
import json
from io import BytesIO
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.regions import (
    FOUND,
    PLACES,
    Region,
    correlation,
    find_regions,
    named_regions,
    read_regions,
    region_masks,
    region_of_picture,
    write_regions,
)
from vitreous.errors import InputError


def picture(seed: int = 0, side: int = 32) -> Image.Image:
    """A smooth ground."""
    coarse = np.random.default_rng(seed).integers(60, 120, (4, 4, 3), dtype=np.uint8)
    return Image.fromarray(coarse).resize((side, side), Image.Resampling.BICUBIC)


def sticker() -> Image.Image:
    """A checked patch of two colours."""
    tiles = np.indices((8, 8)).sum(0) // 2 % 2
    colours = np.array([[230, 40, 40], [240, 240, 60]], np.uint8)
    return Image.fromarray(colours[tiles])


def batch(*pictures: Image.Image) -> torch.Tensor:
    return torch.stack([torch.from_numpy(np.array(each)).permute(2, 0, 1) for each in pictures])


def with_sticker(left: int, top: int, seed: int = 0) -> Image.Image:
    seen = picture(seed)
    seen.paste(sticker(), (left, top))
    return seen


def test_a_file_is_read_as_it_was_written(tmp_path: Path) -> None:
    look = region_of_picture("sticker", with_sticker(4, 8), (4 / 32, 8 / 32, 12 / 32, 16 / 32), ["heart"])
    regions = (Region("corner", (0, 0, 0.25, 0.25)), look)
    write_regions(tmp_path / "regions.json", regions)
    assert read_regions(tmp_path / "regions.json") == regions
    assert find_regions(str(tmp_path / "regions.json")) == regions
    assert Image.open(BytesIO(look.look or b"")).size == (8, 8)


def test_a_place_is_the_same_box_in_all_pictures() -> None:
    masks = region_masks([Region("corner", (0, 0.5, 0.25, 1))], batch(picture(0), picture(1)))
    expected = torch.zeros(2, 32, 32)
    expected[:, 16:, :8] = 1
    assert torch.equal(masks, expected)


@pytest.mark.parametrize("floats", [False, True])
def test_a_look_is_found_wherever_it_is_and_nowhere_else(floats: bool) -> None:
    region = region_of_picture("sticker", with_sticker(4, 8), (4 / 32, 8 / 32, 12 / 32, 16 / 32))
    images = batch(with_sticker(20, 3, 1), picture(2), with_sticker(4, 8, 3).point(lambda value: value * 0.8))
    masks = region_masks([region], images.float() / 255 if floats else images)
    assert masks[0, 3:11, 20:28].eq(1).all()
    assert masks[0].sum() <= 12 * 12  # the neighbouring places correlate too, and no others
    assert masks[1].sum() == 0
    assert masks[2, 8:16, 4:12].eq(1).all()  # darker


def test_a_look_is_found_in_pictures_of_another_size() -> None:
    region = region_of_picture("sticker", with_sticker(4, 8), (4 / 32, 8 / 32, 12 / 32, 16 / 32))
    large = with_sticker(16, 16, 1).resize((64, 64), Image.Resampling.BILINEAR)
    assert region_masks([region], batch(large))[0, 34:46, 34:46].eq(1).all()


def test_correlation_is_what_numpy_says() -> None:
    rng = np.random.default_rng(0)
    image, patch = rng.random((3, 9, 11)).astype(np.float32), rng.random((3, 4, 5)).astype(np.float32)
    found = correlation(torch.from_numpy(image)[None], torch.from_numpy(patch))[0]
    expected = np.corrcoef(image[:, 3:7, 2:7].ravel(), patch.ravel())[0, 1]
    assert found.shape == (6, 7)
    assert found[3, 2].item() == pytest.approx(expected, abs=1e-5)


def test_a_plain_ground_with_a_tint_is_no_mark() -> None:
    """It would correlate perfectly with a plain red mark, were its contrast not asked for."""
    red = Image.new("RGB", (8, 8), (230, 20, 20))
    stored = BytesIO()
    red.save(stored, "PNG")
    region = Region("red", (0, 0, 0.25, 0.25), "look", look=stored.getvalue())
    assert region_masks([region], batch(Image.new("RGB", (32, 32), (104, 100, 100)))).sum() == 0
    assert region_masks([region], batch(red.resize((32, 32)))).all()
    assert 0.5 < FOUND < 1


def test_classes_limit_a_region_where_labels_are_known() -> None:
    region = Region("corner", (0, 0, 0.5, 0.5), classes=("heart",))
    images = batch(picture(), picture())
    assert region_masks([region], images, ["heart", "star"]).sum((1, 2)).tolist() == [256, 0]
    assert region_masks([region], images).sum((1, 2)).tolist() == [256, 256]


def test_places_have_names() -> None:
    (corner,) = named_regions("Top-Left corner")
    assert (corner.name, corner.box) == ("upper left", (0, 0, 0.25, 0.25))
    border = region_masks(named_regions("border"), batch(picture()))[0]
    assert border[4:-4, 4:-4].sum() == 0
    assert border.sum() == 32 * 32 - 24 * 24
    assert len(find_regions("lower right, top edge")) == 2
    for name in PLACES:
        assert region_masks(named_regions(name), batch(picture())).any()
    with pytest.raises(InputError, match="unknown place 'nowhere'; accepted: upper left"):
        find_regions("nowhere")


def stored_look(image: Image.Image) -> str:
    stored = BytesIO()
    image.save(stored, "PNG")
    return base64.b64encode(stored.getvalue()).decode()


BOX = [0, 0, 0.5, 0.5]


@pytest.mark.parametrize(
    ("entry", "says"),
    [
        ({"name": "a", "box": [0, 0, 1.5, 1]}, "lies outside the picture"),
        ({"name": "a", "box": [0.5, 0, 0.5, 1]}, "is empty"),
        ({"name": "a", "box": [0, 0, 1]}, "left, top, right, bottom"),
        ({"name": "a", "box": [0, 0, float("nan"), 1]}, "left, top, right, bottom"),
        ({"name": "a"}, "left, top, right, bottom"),
        ({"name": "a", "box": BOX, "match": "colour"}, "accepted: place, look"),
        ({"name": "a", "box": BOX, "match": "look"}, "needs a look"),
        ({"name": "a", "box": BOX, "match": "look", "look": "!!"}, "not base64"),
        ({"name": "a", "box": BOX, "match": "look", "look": "AAAA"}, "look of region 'a'"),
        ({"name": "a", "box": BOX, "match": "look", "look": stored_look(Image.new("RGB", (4, 4)))}, "of one colour"),
        ({"name": "a", "box": BOX, "match": "look", "look": stored_look(Image.new("L", (1200, 1200)))}, "at most"),
        ({"name": "a", "box": BOX, "classes": "heart"}, "a list of names"),
        ({"name": "", "box": BOX}, "a name is a text"),
        ({"name": "a", "bax": BOX}, "nearest: box"),
        ("a", "must have a name and a box"),
    ],
)
def test_a_bad_region_is_one_line_that_names_the_file(tmp_path: Path, entry: object, says: str) -> None:
    file = tmp_path / "regions.json"
    file.write_text(json.dumps({"regions": [entry]}))
    with pytest.raises(InputError, match=says) as caught:
        read_regions(file)
    assert str(caught.value).startswith(str(file))
    assert "\n" not in str(caught.value)


def test_a_bad_file_is_one_line(tmp_path: Path) -> None:
    file = tmp_path / "regions.json"
    for content, says in (
        ("[]", "names no regions"),
        ("{", "cannot be read"),
        (" " * (17 << 20), "at most 16,777,216"),
    ):
        file.write_text(content)
        with pytest.raises(InputError, match=says):
            read_regions(file)
    file.write_text(json.dumps({"regions": [{"name": "a", "box": BOX}] * 101}))
    with pytest.raises(InputError, match="at most 100"):
        read_regions(file)
    with pytest.raises(InputError, match="No such file"):
        find_regions(str(tmp_path / "missing.json"))
