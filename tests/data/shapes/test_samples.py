"""The embedded data set: pure, consistent, balanced, quick, and not solved by a linear classifier."""

import hashlib
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from vitreous import errors
from vitreous.data.shapes import geometry
from vitreous.data.shapes.geometry import Pose
from vitreous.data.shapes.samples import CATEGORIES, KEYPOINTS, LEVELS, Scene, Shapes
from vitreous.errors import InputError

DIFFICULTIES = tuple(LEVELS)
SIZES = (64, 32, 16, 77, (48, 96), (97, 33), (40, 200))


def digest(scene: Scene) -> str:
    image, _, *targets = scene
    return hashlib.sha256(b"".join(bytes(array) for array in (image, *targets))).hexdigest()


# ---- a sample is a pure function of its name ----------------------------------------------------------------------


@pytest.mark.system
def test_same_bytes_in_another_process_and_in_any_order():
    # An empty stand-in for the package keeps the fresh process from importing torch, which drawing does not need.
    program = (
        "import hashlib, sys, types\n"
        "sys.modules['vitreous'] = types.ModuleType('vitreous'); sys.modules['vitreous'].__path__ = [sys.argv[1]]\n"
        "from vitreous.data.shapes.samples import Shapes; data = Shapes('val', seed=5, difficulty='hard')\n"
        "for i in range(7, -1, -1):\n"
        "    print(hashlib.sha256(b''.join(bytes(data[i][k]) for k in (0, 2, 3, 4, 5, 6))).hexdigest())"
    )
    command = [sys.executable, "-c", program, str(Path(errors.__file__).parent)]
    there = subprocess.run(command, capture_output=True, text=True, check=True).stdout.split()
    data = Shapes("val", seed=5, difficulty="hard")
    assert [digest(data[i]) for i in range(8)] == there[::-1]


def test_count_does_not_matter_but_everything_else_does():
    first = digest(Shapes()[3])
    assert digest(Shapes(count=10)[3]) == first
    assert digest(Shapes(count=10)[-7]) == first
    others = [
        Shapes("val")[3],
        Shapes("test")[3],
        Shapes(seed=1)[3],
        Shapes(difficulty="hard")[3],
        Shapes(size=65)[3],
        Shapes()[4],
    ]
    assert len({first, *map(digest, others)}) == 1 + len(others)


def test_no_image_is_in_two_splits():
    images = [Shapes(split)[i].image.tobytes() for split in ("train", "val", "test") for i in range(80)]
    assert len(set(images)) == 240


def test_large_seeds_and_indices():
    assert Shapes(seed=2**40, count=10**9)[10**9 - 1].image.shape == (64, 64, 3)


# ---- targets agree with each other --------------------------------------------------------------------------------


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
@pytest.mark.parametrize("size", SIZES, ids=str)
def test_targets_are_consistent(difficulty, size):
    height, width = (size, size) if isinstance(size, int) else size
    for scene in Shapes("test", count=20, size=size, difficulty=difficulty):
        n = len(scene.labels)
        assert 1 <= n <= 6
        assert scene.image.shape == (height, width, 3)
        assert scene.image.dtype == np.uint8
        assert scene.image.flags["C_CONTIGUOUS"]
        assert (scene.labels.dtype, scene.boxes.dtype, scene.masks.dtype) == (np.int64, np.float32, np.bool_)
        assert scene.masks.shape == (n, height, width)
        assert scene.masks.sum(0).max() <= 1, "visible parts do not overlap"
        for label, box, mask in zip(scene.labels, scene.boxes, scene.masks, strict=True):
            rows, columns = np.nonzero(mask)
            assert len(rows) >= 8
            assert box.tolist() == [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
            assert (scene.semantic[mask] == label + 1).all()
        assert ((scene.semantic > 0) == scene.masks.any(0)).all()


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_the_class_is_that_of_the_clearly_largest_object(difficulty):
    for size in (64, 32, (40, 120)):
        for scene in Shapes("val", count=60, size=size, difficulty=difficulty):
            areas = scene.masks.sum((1, 2))
            largest = int(areas.argmax())
            assert scene.labels[largest] == scene.label
            assert areas[largest] >= 1.25 * np.delete(areas, largest).max(initial=0)


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_keypoints_lie_on_their_object(difficulty):
    hidden = 0
    for scene in Shapes("val", count=100, size=96, difficulty=difficulty):
        assert scene.keypoints.shape == (len(scene.labels), len(KEYPOINTS), 3)
        for number, (label, points) in enumerate(zip(scene.labels, scene.keypoints, strict=True)):
            has = set(geometry.SILHOUETTES[CATEGORIES[label]].keypoints)
            for name, (x, y, visibility) in zip(KEYPOINTS, points, strict=True):
                if visibility == 0:
                    assert (x, y) == (0, 0)
                    continue
                assert name in has
                assert 0 <= x < 96
                assert 0 <= y < 96
                column, row = int(x), int(y)
                near = scene.masks[:, max(row - 3, 0) : row + 4, max(column - 3, 0) : column + 4].any((1, 2))
                if visibility == 2:
                    assert near[number], f"{name} of a {CATEGORIES[label]} is away from its object"
                else:
                    assert near[number + 1 :].any(), f"{name} is called hidden but nothing lies in front"
                    hidden += 1
    assert hidden or difficulty == "easy"


# ---- silhouettes --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("category", range(len(CATEGORIES)), ids=CATEGORIES)
def test_every_silhouette_covers_the_area_and_lies_within_its_reach(category):
    x = y = np.arange(400, dtype=np.float32) + 0.5
    pose = Pose(200.0, 200.0, 100.0, 33.0)
    inside = geometry.signed_distance(category, pose, x, y) <= 0
    assert inside.sum() == pytest.approx(100**2, rel=0.01)
    rows, columns = np.nonzero(inside)
    assert np.hypot(rows + 0.5 - 200, columns + 0.5 - 200).max() <= geometry.reach(category, 100.0) + 1
    x0, y0, x1, y1 = geometry.extent(category, pose)
    assert x0 - 1 <= columns.min() <= columns.max() <= x1
    assert y0 - 1 <= rows.min() <= rows.max() <= y1


@pytest.mark.parametrize("category", range(len(CATEGORIES)), ids=CATEGORIES)
def test_distance_is_a_distance(category):
    """Next to the outline it grows by one per pixel, and nowhere faster."""
    x = y = np.arange(200, dtype=np.float32) + 0.5
    distance = geometry.signed_distance(category, Pose(100.0, 100.0, 80.0, 12.0), x, y)
    down, right = np.diff(distance, axis=0)[:, 1:], np.diff(distance, axis=1)[1:]
    assert max(np.abs(down).max(), np.abs(right).max()) <= 1.001
    slope = np.hypot(down, right)
    assert np.median(slope[np.abs(distance[1:, 1:]) < 3]) == pytest.approx(1, abs=0.01)


def test_a_turn_by_its_period_changes_nothing():
    x = y = np.arange(100, dtype=np.float32) + 0.5
    for category, name in enumerate(CATEGORIES):
        period = geometry.SILHOUETTES[name].period
        one, other = (geometry.signed_distance(category, Pose(50, 50, 40, a), x, y) for a in (10, 10 + period))
        assert np.allclose(one, other, atol=1e-3), name


# ---- the set as a whole -------------------------------------------------------------------------------------------


def test_classes_are_balanced_even_in_small_sets():
    data = Shapes("train", count=50, size=32)
    assert np.bincount([scene.label for scene in data]).tolist() == [5] * len(CATEGORIES)
    assert tuple(sorted(CATEGORIES)) == CATEGORIES
    assert len(CATEGORIES) >= 8


@pytest.mark.parametrize("difficulty", DIFFICULTIES)
def test_objects_are_of_all_kinds_and_numbers(difficulty):
    scenes = list(Shapes("train", count=300, difficulty=difficulty))
    assert {len(scene.labels) for scene in scenes} == {1, 2, 3, 4, 5, 6}
    share = np.bincount(np.concatenate([scene.labels for scene in scenes])) / sum(len(s.labels) for s in scenes)
    assert share.min() > 0.5 / len(CATEGORIES)
    assert share.max() < 2 / len(CATEGORIES)


def linear_accuracy(train: int, held_out: int) -> float:
    """Best held-out accuracy of ridge regression to one-hot classes on raw pixels, over the strength of the ridge."""

    def matrix(split: str, count: int) -> tuple[np.ndarray, np.ndarray]:
        scenes = list(Shapes(split, count=count))
        pixels = np.stack([scene.image.ravel() for scene in scenes]).astype(np.float32) / 255
        return pixels, np.array([scene.label for scene in scenes])

    (x, y), (held_x, held_y) = matrix("train", train), matrix("val", held_out)
    mean = x.mean(0)
    x, held_x = x - mean, held_x - mean
    kernel, targets = x @ x.T, np.eye(len(CATEGORIES), dtype=np.float32)[y] - 1 / len(CATEGORIES)
    scores = [
        held_x @ (x.T @ np.linalg.solve(kernel + ridge * np.eye(train, dtype=np.float32), targets))
        for ridge in (10, 100, 1000)
    ]
    return max(float((score.argmax(1) == held_y).mean()) for score in scores)


def test_a_linear_classifier_does_not_solve_it():
    assert 0.10 < linear_accuracy(1500, 500) < 0.40


@pytest.mark.slow
def test_a_linear_classifier_does_not_solve_it_with_10_000_images():
    assert linear_accuracy(10_000, 1000) < 0.40


# ---- refusals -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"split": "trian"}, "unknown split 'trian'.*nearest: train.*all: train, val, test"),
        ({"difficulty": "brutal"}, "unknown difficulty 'brutal'.*easy, medium, hard"),
        ({"size": 15}, "size=15.*16 to 4096"),
        ({"size": (64, 64, 3)}, "size=.*height, width"),
        ({"size": 64.5}, "size=64.5"),
        ({"size": "64"}, "size='64'"),
        ({"size": 5000}, "size=5000"),
        ({"count": -1}, "count=-1"),
        ({"count": 2.5}, "count=2.5"),
        ({"seed": -1}, "seed=-1"),
    ],
)
def test_bad_arguments_are_named(wrong, message):
    with pytest.raises(InputError, match=message):
        Shapes(**wrong)


@pytest.mark.parametrize("index", [5, -6, 10**12])
def test_an_index_outside_is_an_index_error(index):
    with pytest.raises(IndexError, match="of 5"):
        Shapes(count=5)[index]


def test_numpy_integers_are_indices():
    assert digest(Shapes(count=5)[np.int64(2)]) == digest(Shapes(count=5)[2])
