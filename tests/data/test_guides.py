"""Guides: masks follow the picture's random view, are chosen by name, and change no random number."""

import random
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.guides import AWAY, OBJECT, GuidedView, chosen, exchange_grounds
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.data.regions import Region
from vitreous.data.source import open_data
from vitreous.data.transforms import Augmentation, Preprocess
from vitreous.errors import InputError
from vitreous.tasks.classify import GuidedViews

VIEWS = {
    "crops": dict(scale=0.3, flip=0.5),
    "whole": dict(scale=1.0, flip=0.5),
    "padded": dict(scale=1.0, pad=4, flip=0.5),
    "erased": dict(scale=0.5, erasing=1.0, color_jitter=0.4),
}


@pytest.fixture(scope="module")
def images() -> ImageSet:
    return open_data("shapes", "train", size=(48, 48), count=40, targets="labels")


def label_of(images: ImageSet, index: int) -> int:
    return images.target(index)["labels"]


@pytest.mark.parametrize("kind", VIEWS)
def test_a_guide_changes_no_random_number(images: ImageSet, kind: str) -> None:
    view = Augmentation(Preprocess((32, 32)), **VIEWS[kind])
    guided = GuidedView(view, objects=True, regions=(Region("corner", (0, 0, 0.25, 0.25)),))
    picture = images.picture(2)
    for seed in range(5):
        pixels, after = [], []
        for look in (lambda: view(picture), lambda: guided.of(images, 2, picture, "heart")[0]):
            random.seed(seed)
            np.random.seed(seed)
            torch.manual_seed(seed)
            pixels.append(look())
            after.append((random.random(), np.random.random(), torch.rand(1).item()))
        assert torch.equal(*pixels)
        assert after[0] == after[1]


@pytest.mark.parametrize("kind", ["crops", "whole", "padded"])
def test_masks_are_cut_and_mirrored_as_the_picture(images: ImageSet, kind: str) -> None:
    """A picture that is its own mask must stay so."""
    mask = images.object_mask(1)
    assert mask is not None
    mask = mask.convert("L")
    view = Augmentation(Preprocess((32, 32), interpolation="bilinear"), **VIEWS[kind])
    for seed in range(8):
        random.seed(seed)
        pixels, (seen,) = view.with_masks(mask.convert("RGB"), [mask])
        assert (pixels[0] >= 128).eq(seen).float().mean() > 0.98  # but for rounding along the outline


def test_regions_stay_where_they_are_in_the_picture(images: ImageSet) -> None:
    """The region is told for the square centre that a model sees, and marked in the wide picture it is part of."""
    wide = Image.new("RGB", (96, 48))
    guided = GuidedView(Augmentation(Preprocess((32, 32)), flip=0.0), regions=(Region("a", (0, 0, 0.5, 0.5)),))
    drawn = np.array(guided.drawn_regions(wide, "heart")) >= 128
    assert drawn.shape == (48, 96)
    assert drawn[:24, 24:48].all()
    assert drawn.sum() == 24 * 24


def test_unknown_objects_allow_everything(images: ImageSet) -> None:
    guided = GuidedView(Augmentation(Preprocess((32, 32)), scale=1.0), objects=True, share=1e-9)
    guide = guided.of(images, 0, images.picture(0), "heart")[1]
    assert guide[OBJECT].all()
    assert not guide[AWAY].any()


def test_a_share_is_chosen_by_name_and_lies_within_a_larger_one() -> None:
    names = [f"train/{number}" for number in range(2000)]
    few, many = ({name for name in names if chosen(name, share)} for share in (0.1, 0.5))
    assert few < many
    assert 150 < len(few) < 250
    assert all(chosen(name, 1.0) for name in names)


def test_grounds_are_exchanged_and_objects_stay() -> None:
    images = torch.arange(4.0).view(4, 1, 1, 1).expand(4, 3, 8, 8).clone() + 1
    allowed = torch.zeros(4, 8, 8, dtype=torch.bool)
    allowed[:, 2:5, 2:5] = True
    allowed[3] = True  # nothing is known about the last
    targets = {OBJECT: allowed, AWAY: torch.zeros_like(allowed)}
    images[:, :, 2:5, 2:5] += 10
    changed = exchange_grounds(images, targets, 1.0, np.random.default_rng(0))
    assert torch.equal(changed[:, :, 2:5, 2:5], images[:, :, 2:5, 2:5])
    assert changed[:, 0, 7, 7].tolist() == [3, 1, 2, 4]
    assert torch.equal(exchange_grounds(images, targets, 0.0, np.random.default_rng(0)), images)


def test_the_object_of_another_picture_is_painted_over() -> None:
    images = torch.ones(2, 3, 8, 8)
    images[0, :, :4, :4], images[1, :, 4:, 4:] = 7, 9
    allowed = torch.zeros(2, 8, 8, dtype=torch.bool)
    allowed[0, :4, :4], allowed[1, 4:, 4:] = True, True
    targets = {OBJECT: allowed, AWAY: torch.zeros_like(allowed)}
    changed = exchange_grounds(images, targets, 1.0, np.random.default_rng(0))
    assert torch.equal(changed, images)  # grounds are alike, and neither object is in the other


def test_pictures_with_a_mask_come_more_often_where_masks_are_few(images: ImageSet) -> None:
    view = Augmentation(Preprocess((32, 32)), scale=1.0)
    all_masks, few = (GuidedViews(images, GuidedView(view, objects=True, share=share)) for share in (1.0, 0.5))
    assert all_masks.masked == {}
    used = sorted(index for same in few.masked.values() for index in same)
    assert used == [index for index in range(len(images)) if chosen(images.name(index), 0.5)]
    unmasked = next(
        index for index in range(len(images)) if index not in used and label_of(images, index) in few.masked
    )
    random.seed(0)
    assert {few[unmasked][1]["labels"] for _ in range(20)} == {label_of(images, unmasked)}  # turns stay in the class
    random.seed(0)
    guided = [not few[unmasked][1][OBJECT].all() for _ in range(50)]
    assert 0.6 < sum(guided) / 50 < 0.95
    with pytest.raises(IndexError):
        few[len(images)]
    with pytest.raises(InputError, match="1e-09 of the masks of 40 images is none of them"):
        GuidedViews(images, GuidedView(view, objects=True, share=1e-9))


def test_a_share_of_masks_is_one_of_the_pictures_that_have_one(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Others, whatever their names, neither count nor take another's turn."""
    view = GuidedView(Augmentation(Preprocess((32, 32))), objects=True, share=0.5)
    named = [index for index in range(len(images)) if chosen(images.name(index), 0.5)]
    known = named[::2]
    monkeypatch.setattr(
        images, "object_mask", lambda index, read=images.object_mask: read(index) if index in known else None
    )
    monkeypatch.setattr(images, "has_object_mask", lambda index: index in known)
    views = GuidedViews(images, view)
    assert sorted(index for same in views.masked.values() for index in same) == known
    monkeypatch.setattr(images, "has_object_mask", lambda index: index not in named)
    with pytest.raises(InputError, match="is none of them"):
        GuidedViews(images, view)


def test_a_region_for_no_class_of_the_data_is_refused(images: ImageSet) -> None:
    view = Augmentation(Preprocess((32, 32)))
    for classes in ((), ("cat", "heart")):
        GuidedViews(images, GuidedView(view, regions=(Region("a", (0, 0, 1, 1), classes=classes),)))
    with pytest.raises(InputError, match="region 'a' counts for 'hart', which is no class of the data; nearest: heart"):
        GuidedViews(images, GuidedView(view, regions=(Region("a", (0, 0, 1, 1), classes=("hart",)),)))


def test_a_picture_with_a_mask_that_cannot_be_read_spoils_no_other(
    images: ImageSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loader goes on to the next picture with the same random numbers, which would choose the same one again."""
    few = GuidedViews(images, GuidedView(Augmentation(Preprocess((32, 32))), objects=True, share=0.5))
    read, used = images.picture, {index for same in few.masked.values() for index in same}

    def picture(index: int, **options: Any) -> Image.Image:
        if index in used:
            raise ImageError("damaged")
        return read(index, **options)

    monkeypatch.setattr(images, "picture", picture)
    for index in range(len(images)):
        if index in used:
            with pytest.raises(ImageError, match="damaged"):
                few[index]
        else:
            assert all(few[index][1][OBJECT].all() for _ in range(10))
