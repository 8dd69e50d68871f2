import math
import pickle

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from vitreous.data.loader import seeded
from vitreous.data.transforms import Augmentation, Preprocess, random_box, resampling
from vitreous.errors import InputError


def smooth_picture(width: int, height: int) -> Image.Image:
    """Gradients: resampling them must give nearly the same values whatever the order of roundings."""
    x, y = np.meshgrid(np.linspace(0, 1, width), np.linspace(0, 1, height))
    waves = [128 + 100 * np.sin(3 * x + 2 * y + phase) for phase in (0, 2, 4)]
    return Image.fromarray(np.stack(waves, -1).astype(np.uint8))


@pytest.mark.parametrize("width", [64, 100, 333])
@pytest.mark.parametrize("height", [64, 90, 500])
@pytest.mark.parametrize("crop_ratio", [0.875, 1.0])
def test_evaluation_equals_timm(width, height, crop_ratio):
    from timm.data import create_transform

    image, ours = smooth_picture(width, height), Preprocess((64, 64), crop_ratio)
    theirs = create_transform((3, 64, 64), crop_pct=crop_ratio, interpolation="bicubic", mean=ours.mean, std=ours.std)
    grey_levels = (ours.denormalise(ours(image)) - ours.denormalise(theirs(image))).abs().max() * 255
    assert grey_levels <= 2.01, "resize-and-crop in one call differs from two calls by rounding only"


@given(width=st.integers(1, 300), height=st.integers(1, 300), size=st.tuples(*[st.integers(1, 80)] * 2))
@settings(max_examples=60, deadline=None)
def test_any_picture_comes_out_at_the_size_asked_for(width, height, size):
    image = Image.new("RGB", (width, height), (10, 20, 30))
    preprocess = Preprocess(size, 0.9)
    assert preprocess.picture(image).size == size[::-1]
    assert preprocess.picture(image).getpixel((0, 0)) == (10, 20, 30)
    with seeded(0):
        assert Augmentation(preprocess)(image).shape == (3, *size)


@pytest.mark.timeout(10)
@pytest.mark.parametrize("size", [(1, 20000), (20000, 1)])
def test_very_long_pictures_take_no_memory(size):
    assert Preprocess((224, 224))(Image.new("RGB", size)).shape == (3, 224, 224)
    assert Augmentation(Preprocess((224, 224)))(Image.new("RGB", size)).shape == (3, 224, 224)


def test_normalise_and_back_is_identity_with_and_without_a_batch():
    preprocess, images = Preprocess((8, 8)), torch.rand(2, 3, 8, 8)
    assert torch.allclose(preprocess.denormalise(preprocess.normalise(images)), images, atol=1e-6)
    assert torch.equal(preprocess.normalise(images)[1], preprocess.normalise(images[1]))


def test_dictionary_and_back_is_identity():
    preprocess = Preprocess((64, 48), 0.9, "bilinear", (0.1, 0.2, 0.3), (0.4, 0.5, 0.6))
    assert Preprocess.from_dict(preprocess.to_dict()) == preprocess
    with pytest.raises(InputError, match="'sise'; nearest: size"):
        Preprocess.from_dict({"sise": [1, 1]})


def test_augmentation_is_a_function_of_the_random_state():
    full = Augmentation(Preprocess((32, 32)), policy="rand-m9-mstd0.5-inc1", color_jitter=0.4, erasing=0.5, scale=0.2)
    image = smooth_picture(50, 40)

    def view(augmentation: Augmentation, key: int) -> torch.Tensor:
        with seeded(key):
            return augmentation(image)

    views = [view(full, key) for key in range(10)]
    again = [view(pickle.loads(pickle.dumps(full)), key) for key in range(10)]
    assert all(torch.equal(a, b) for a, b in zip(views, again, strict=True))
    assert not torch.equal(views[0], views[1])


def test_everything_off_is_the_plain_picture():
    preprocess = Preprocess((64, 64))
    plain = Augmentation(preprocess, scale=1.0, flip=0.0)
    assert torch.equal(plain(smooth_picture(64, 64)), preprocess.pixels(smooth_picture(64, 64)))


def test_flip_twice_is_identity():
    image, preprocess = smooth_picture(32, 32), Preprocess((32, 32))
    flipped = Augmentation(preprocess, scale=1.0, flip=1.0)(image)
    assert torch.equal(flipped.flip(-1), preprocess.pixels(image))


@pytest.mark.parametrize("interpolation", ["nearest", "bilinear", "bicubic", "lanczos"])
@pytest.mark.parametrize("size", [(32, 32), (70, 50)])
def test_a_training_crop_is_what_pillow_would_make_of_it(interpolation, size):
    image = Image.fromarray(np.random.default_rng(0).integers(0, 256, (60, 90, 3), np.uint8))
    augmentation = Augmentation(Preprocess(size, interpolation=interpolation), scale=0.2, flip=0.0)
    with seeded(3):
        box = random_box(image, (0.2, 1.0), augmentation.ratio)
    with seeded(3):
        ours = augmentation(image)
    expected = np.asarray(image.crop(box).resize(size[::-1], resampling(interpolation)))
    difference = np.abs(ours.permute(1, 2, 0).numpy().astype(int) - expected)
    assert difference.max() <= 1, "torch rounds its fixed-point weights otherwise than Pillow"


def test_bytes_become_what_floats_become():
    preprocess, pixels = Preprocess((8, 8)), torch.randint(0, 256, (2, 3, 8, 8), dtype=torch.uint8)
    ready = preprocess.normalise_bytes(pixels)
    assert torch.allclose(ready, preprocess.normalise(pixels / 255), atol=1e-6)
    assert preprocess.normalise_bytes(ready) is ready
    assert torch.equal(ready[1], preprocess.normalise_bytes(pixels[1]))


def test_erased_views_are_normalised_already():
    view = Augmentation(Preprocess((32, 32)), erasing=1.0, scale=1.0, flip=0.0)(smooth_picture(32, 32))
    plain = Preprocess((32, 32))(smooth_picture(32, 32))
    kept = (view == plain).all(0).float().mean()
    assert view.dtype == torch.float32
    assert 0.4 < kept < 1, "a rectangle is erased, the rest is as it was"


@pytest.mark.parametrize("scale", [0.08, 0.35, 1.0])
def test_no_crop_of_a_reduced_picture_needs_enlarging(scale):
    augmentation = Augmentation(Preprocess((40, 40)), scale=scale)
    side = augmentation.at_least
    for key in range(200):
        with seeded(key):
            left, top, right, bottom = random_box(Image.new("RGB", (side, 2 * side)), (scale, 1.0), augmentation.ratio)
        assert min(right - left, bottom - top) >= 39, "a pixel may be lost to rounding"


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(policy="augmix-m5"), "augmentation policy 'augmix-m5'"),
        (dict(policy="rand-m9-zz"), "rand-m9-zz"),
        (dict(scale=0.0), "scale 0.0"),
        (dict(flip=1.5), "flip 1.5"),
        (dict(color_jitter=-1.0), "color jitter -1.0"),
    ],
)
def test_wrong_settings_are_refused_at_once(wrong, message):
    with pytest.raises(InputError, match=message):
        Augmentation(Preprocess((8, 8)), **wrong)
    with pytest.raises(InputError, match="interpolation 'cubic'"):
        Preprocess((8, 8), interpolation="cubic")
    with pytest.raises(InputError, match="crop ratio"):
        Preprocess((8, 8), crop_ratio=math.inf)


@pytest.mark.parametrize(
    "wrong",
    [
        {"size": (8193, 64)},
        {"size": (64, 0)},
        {"size": (64.5, 64)},
        {"size": (64, 64), "mean": (0.5,)},
        {"size": (64, 64), "std": (0.2, math.nan, 0.2)},
        {"size": (64, 64), "std": (0.2, 0.0, 0.2)},
    ],
)
def test_sizes_and_colours_that_cannot_be_used(wrong):
    with pytest.raises(InputError, match="cannot be used"):
        Preprocess(**wrong)
