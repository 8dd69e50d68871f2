"""What a sweep tries follows from its file alone; what is wrong with the file is one line."""

import math

import pytest

from vitreous.errors import InputError
from vitreous.training.search import checked_sweep, read_sweep

GRID = {"model": "paca_b0", "data": "shapes", "search": {"lr": [0.1, 0.01], "drop_path": [0.0, 0.1, 0.2]}}
DRAWN = {
    "model": "paca_b0", "data": "shapes", "method": "random", "trials": 50,
    "search": {"lr": dict(low=1e-4, high=1e-1, scale="log"), "batch_size": dict(low=4, high=9), "augment": ["", "ta"]},
}  # fmt: skip


def test_a_grid_is_every_combination():
    points = checked_sweep(GRID).points()
    assert len(points) == 6
    assert points[0] == {"lr": 0.1, "drop_path": 0.0}
    assert len({tuple(point.values()) for point in points}) == 6


def test_drawn_values_keep_to_their_ranges_and_their_seed():
    points = checked_sweep(DRAWN).points()
    assert len(points) == 50
    assert points == checked_sweep(DRAWN).points()
    assert points != checked_sweep(DRAWN | {"seed": 1}).points()
    assert all(1e-4 <= point["lr"] <= 1e-1 for point in points)
    assert {point["batch_size"] for point in points} == set(range(4, 10))
    below = sum(point["lr"] < math.sqrt(1e-4 * 1e-1) for point in points)
    assert 15 <= below <= 35, "half of them below the middle of a logarithmic range"


@pytest.mark.parametrize(
    ("trials", "epochs", "expected"),
    [
        (9, 9, [(9, 1), (3, 3), (1, 9)]),
        (9, 3, [(9, 1), (3, 3)]),
        (2, 9, [(2, 9)]),
        (30, 10, [(30, 1), (10, 3), (3, 10)]),
    ],
)
def test_rounds_of_halving_take_a_third_and_three_times_the_epochs(trials, epochs, expected):
    given = DRAWN | {"method": "halving", "trials": trials, "settings": {"epochs": epochs}}
    assert checked_sweep(given).rounds() == expected


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"metod": "grid"}, "unknown key 'metod'; nearest: method"),
        ({"method": "bayes"}, "accepted: grid, random, halving"),
        ({"search": {}}, "nothing to search"),
        ({"search": {"learning_rate": [1]}}, "unknown setting 'learning_rate'"),
        ({"search": {"lr": ["fast"]}}, "lr: 'fast' given; accepted: a number"),
        ({"search": {"lr": 0.1}}, "a list of values, or low and high"),
        ({"search": {"lr": {"low": 1, "high": 2}}}, "which a grid cannot take"),
        ({"method": "random", "search": {"lr": {"low": 2, "high": 1}}}, "low must be below high"),
        ({"method": "random", "search": {"lr": {"low": 0, "high": 1, "scale": "log"}}}, "above 0"),
        ({"method": "random", "trials": 0}, "trials: 0 given"),
        ({"settings": {"lr": 0.1}}, "'lr' is both in settings and in search"),
        ({"settings": {"out": "x"}}, "'out' does not belong"),
        ({"settings": {"recipe": 3}}, "recipe: 3 given"),
        ({"method": "halving", "search": {"epochs": [1, 2]}}, "cannot be searched by halving"),
        ({"search": {"seed": list(range(200)), "lr": [0.1] * 200}}, "40,000 trials"),
    ],
)  # fmt: skip
def test_what_is_wrong_is_named(change, said):
    with pytest.raises(InputError, match=said):
        checked_sweep(GRID | change)


def test_a_file_that_is_none_is_one_line(tmp_path):
    with pytest.raises(InputError, match="there is no file"):
        read_sweep(tmp_path / "sweep.yaml")
    (tmp_path / "sweep.yaml").write_text("model: [")
    with pytest.raises(InputError, match=r"sweep .*sweep\.yaml: this is not YAML"):
        read_sweep(tmp_path / "sweep.yaml")
    (tmp_path / "sweep.yaml").write_text("model: paca_b0\n")
    with pytest.raises(InputError, match="the key 'data' is missing"):
        read_sweep(tmp_path / "sweep.yaml")
