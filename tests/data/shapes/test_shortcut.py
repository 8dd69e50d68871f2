"""Planted shortcuts: marks tell the class as often as asked, change nothing else, and never hide an object."""

import numpy as np
import pytest

from vitreous.data.layouts.shapes import parse_variant
from vitreous.data.pictures import find_pictures
from vitreous.data.shapes.samples import CATEGORIES, LEVELS, Shapes
from vitreous.data.shapes.shortcut import HELD_OUT_MARKS, SHORTCUT_KINDS, Shortcut, mark_colour, parse_shortcut, planted
from vitreous.data.source import open_data
from vitreous.errors import InputError


def agreement(data: Shapes) -> float:
    return float(np.mean([data.mark(i) == data.label(i) for i in range(len(data))]))


def opened(variant: str, split: str = "train", count: int = 20, **options):
    return open_data(f"shapes:{variant}", split, size=(32, 32), count=count, **options)


def test_strength_is_the_share_of_training_pictures_whose_mark_tells_the_class():
    """The others have a random mark, which is their own for one in ten."""
    for strength in (0.0, 0.5, 0.9, 1.0):
        found = agreement(Shapes("train", count=2000, shortcut=Shortcut("corner_mark", strength)))
        assert found == pytest.approx(strength + (1 - strength) / 10, abs=0.03)


def test_held_out_marks_tell_nothing_unless_asked_to():
    by_default = Shapes("val", count=2000, shortcut=Shortcut("stripe", 1.0))
    marks, labels = (np.array([ask(i) for i in range(2000)]) for ask in (by_default.mark, by_default.label))
    table = np.histogram2d(marks, labels, bins=10)[0]
    assert table.sum(0).tolist() == [200] * 10
    assert ((table - 20) ** 2 / 20).sum() < 140, "chi squared with 81 degrees of freedom: beyond the 99.99th percentile"
    assert agreement(Shapes("test", count=200, shortcut=Shortcut("stripe", 1.0, "train"))) == 1
    absent = Shapes("test", count=20, shortcut=Shortcut("stripe", 1.0, "absent"))
    assert [absent.mark(i) for i in range(20)] == [None] * 20


def test_marks_are_a_function_of_the_picture_alone_and_tell_more_with_strength():
    weak, strong = (Shapes(count=300, shortcut=Shortcut("texture", strength)) for strength in (0.3, 0.8))
    telling = [i for i in range(300) if weak.mark(i) == weak.label(i)]
    assert {i for i in telling if strong.mark(i) == strong.label(i)} == set(telling)
    again = Shapes(count=1000, shortcut=Shortcut("corner_mark", 0.3))
    assert [again.mark(i) for i in reversed(range(300))] == [weak.mark(i) for i in reversed(range(300))]


@pytest.mark.parametrize("kind", SHORTCUT_KINDS)
@pytest.mark.parametrize("size", [32, (40, 90)], ids=str)
def test_objects_are_not_covered_and_targets_stay(kind, size):
    for difficulty in LEVELS:
        plain = Shapes("val", count=8, size=size, difficulty=difficulty)
        marked = Shapes("val", count=8, size=size, difficulty=difficulty, shortcut=Shortcut(kind, 0.5))
        for before, after in zip(plain, marked, strict=True):
            for one, other in zip(before[1:], after[1:], strict=True):
                assert np.array_equal(one, other)
            objects = before.semantic > 0
            changed = (before.image != after.image).any(-1)
            if kind == "colour_cast":
                contrast, left = (np.ptp(image.astype(float), axis=(0, 1)) for image in (before.image, after.image))
                assert (left >= 0.7 * contrast - 1).all()
            else:
                assert not (changed & objects).any()
            assert changed.any(), "the mark can be seen"


def test_a_texture_leaves_half_of_the_contrast():
    plain, marked = (Shapes("val", count=20, difficulty="hard", shortcut=s) for s in (None, Shortcut("texture", 1)))
    for before, after in zip(plain, marked, strict=True):
        change = np.abs(before.image.astype(float) - after.image) / 255
        assert change.max() <= LEVELS["hard"].contrast / 2 + 1 / 255


@pytest.mark.parametrize(("kind", "share"), [("corner_mark", (10 / 64) ** 2), ("stripe", 5 / 64)])
def test_marks_are_as_large_as_said_and_at_least_half_visible_in_easy_scenes(kind, share):
    plain, marked = (Shapes("val", count=30, size=128, shortcut=s) for s in (None, Shortcut(kind, 0.5)))
    for index, (before, after) in enumerate(zip(plain, marked, strict=True)):
        changed = (before.image != after.image).any(-1)
        assert 0.5 * share < changed.mean() < 1.03 * share
        colour = (np.array(mark_colour(marked.mark(index), 10)) * 255).round()
        assert (after.image[changed] == colour).all()


def test_every_class_has_a_mark_of_its_own():
    colours = np.array([mark_colour(mark, 10) for mark in range(10)])
    apart = np.abs(colours[:, None] - colours).max(-1) + np.eye(10)
    assert apart.min() > 0.3


@pytest.mark.parametrize("size", [32, 64, 96])
def test_textures_differ_wherever_they_begin_and_also_when_mirrored(size):
    grey, ground = np.full((size, size, 3), 128, np.uint8), np.ones((size, size), bool)
    drawn = [planted(grey, ground, "texture", mark, 10, 0.4)[..., 0].astype(float) - 128 for mark in range(10)]
    spectra = np.array([np.abs(np.fft.fft2(image)) for image in drawn])
    mirrored = np.array([np.abs(np.fft.fft2(image[:, ::-1])) for image in drawn])
    for other in (spectra, mirrored):
        apart = np.abs(spectra[:, None] - other).mean((-2, -1)) / spectra.mean((-2, -1))
        assert (apart + 10 * np.eye(10)).min() > 0.4
        assert (apart + 10 * (1 - np.eye(10))).min(1).max() < 0.4


# ---- as data ------------------------------------------------------------------------------------------------------


def test_difficulty_and_shortcut_go_together_in_any_order():
    assert parse_variant("") == ("easy", None)
    assert parse_variant("hard") == ("hard", None)
    wanted = "hard", Shortcut("stripe", 0.75, "absent")
    assert parse_variant("hard,stripe=0.75,test=absent") == parse_variant("test=absent,stripe=0.75, hard") == wanted


def test_attributes_and_fingerprints_tell():
    images = opened("corner_mark=0.5", count=40)
    assert images.attribute_names == ("mark", "agrees")
    for index in range(40):
        mark, agrees = (images.attributes(index)[name] for name in images.attribute_names)
        assert (mark == CATEGORIES[images.target(index)["labels"]]) == (agrees == "yes")
    assert opened("easy").attribute_names == ()
    plain = "shapes:easy train count=20 size=32x32 seed=0"
    assert opened("easy").fingerprint == plain
    variants = ("easy", "corner_mark=0.9", "corner_mark=0.8", "stripe=0.9", "hard,corner_mark=0.9")
    assert len({opened(variant).fingerprint for variant in variants}) == len(variants)
    held_out = {test: opened(f"stripe=0.9,test={test}", "val") for test in HELD_OUT_MARKS}
    assert len({images.fingerprint for images in held_out.values()}) == 3
    assert held_out["absent"].fingerprint == opened("easy", "val").fingerprint, "the same pictures"
    assert dict(held_out["absent"].attributes(3)) == {"mark": "none", "agrees": "no"}


def test_samples_of_marked_pictures_by_name():
    found = find_pictures(["shapes:hard,colour_cast=1:train:0-2"], size=(32, 32))
    assert [picture.name for picture in found] == [f"shapes:hard,colour_cast=1:train:{i}" for i in range(3)]
    images = opened("hard,colour_cast=1", count=3)
    assert all(np.array_equal(one.load(), images.picture(i)) for i, one in enumerate(found))
    (plain,) = find_pictures(["shapes:hard:train:1"], size=(32, 32))
    assert not np.array_equal(plain.load(), found[1].load())


@pytest.mark.parametrize("targets", ["boxes", "semantic", "keypoints"])
def test_other_tasks_see_the_marks_too(targets):
    images = opened("corner_mark=1", targets=targets)
    assert tuple(np.asarray(images.picture(0))[0, 0] / 255) == pytest.approx(
        mark_colour(CATEGORIES.index("arrow"), 10), abs=0.01
    )


@pytest.mark.parametrize(
    ("variant", "said"),
    [
        ("corner_mrk=0.9", "unknown shortcut 'corner_mrk' of shapes; nearest: corner_mark"),
        ("corner_mark=1.5", "strength 1.5 of corner_mark cannot be used; it must lie between 0 and 1"),
        ("corner_mark=nan", "strength nan of corner_mark cannot be used"),
        ("corner_mark=much", "strength 'much' of corner_mark is no number"),
        ("corner_mark=", "cannot read 'corner_mark='"),
        ("corner_mark", "unknown difficulty 'corner_mark'"),
        ("test=absent", "no kind is given"),
        ("corner_mark=0.9,stripe=0.9", "corner_mark and stripe are asked for"),
        ("stripe=0.9,stripe=0.8", "stripe is given twice"),
        ("stripe=0.9,test=maybe", "unknown test 'maybe' of shapes; nearest: "),
        ("easy,hard", "'easy' and 'hard' are given; accepted: one difficulty"),
        ("hard,", "'hard' and '' are given"),
        ("tough,stripe=0.9", "unknown difficulty 'tough' of shapes"),
    ],
)
def test_bad_options_are_one_line(variant, said):
    with pytest.raises(InputError) as refused:
        opened(variant)
    assert said in str(refused.value)
    assert "\n" not in str(refused.value)


def test_bad_shortcuts_in_python():
    with pytest.raises(InputError, match="unknown shortcut 'dot'"):
        Shortcut("dot", 0.5)
    assert parse_shortcut("texture=.5") == Shortcut("texture", 0.5)
