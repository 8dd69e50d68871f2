"""What a sweep tries: a file of settings to search, and the trials that follow from it.

    model: paca_b0
    data: photos
    method: halving            # grid (default), random or halving
    trials: 9                  # of random and halving
    seed: 0
    settings:                  # of `vitreous train`, the same for all; a recipe too
      epochs: 9
    search:
      lr: {low: 0.0001, high: 0.01, scale: log}
      drop_path: [0.0, 0.1, 0.2]

A grid tries every combination of lists. Successive halving (Jamieson and Talwalkar, arXiv 1502.07943) gives every trial
a few epochs, and a third of them, those that did best, three times as many, until some have had all of them. A round
trains anew, because the learning rate falls with the length of a run.
"""

import itertools
import math
import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.errors import InputError, nearest
from vitreous.files.reading import excerpt
from vitreous.training.recipe import RECIPE_KEYS, conforming, read_settings_file, with_recipe

METHODS = ("grid", "random", "halving")
KEYS = ("model", "data", "method", "trials", "seed", "settings", "search")
DEFAULT_TRIALS, MOST_TRIALS = 9, 10_000
HALVING_FACTOR = 3  # of the trials of a round, one in so many goes on, with so many times the epochs
RANGE_KEYS = ("low", "high", "scale")


class SearchRange(NamedTuple):
    low: float
    high: float
    log: bool
    whole: bool  # whole numbers only

    def draw(self, chance: random.Random) -> float:
        if self.log:
            value = math.exp(chance.uniform(math.log(self.low), math.log(self.high)))
        else:
            value = chance.uniform(self.low, self.high)
        if self.whole:
            return chance.randint(int(self.low), int(self.high)) if not self.log else round(value)
        return float(f"{value:.4g}")


@dataclass(frozen=True)
class Sweep:
    """What is searched, read and checked."""

    model: str
    data: str
    method: str
    trials: int
    seed: int
    settings: Mapping[str, Any]
    search: Mapping[str, Sequence[Any] | SearchRange]

    @property
    def epochs(self) -> int:
        """Of a trial that gets all of them: as is set, or as the recipe or the defaults say."""
        return with_recipe(self.model, self.data, **self.settings).epochs

    def points(self) -> list[dict[str, Any]]:
        """What each trial changes."""
        if self.method == "grid":
            values = [list(given) for given in self.search.values() if not isinstance(given, SearchRange)]
            return [dict(zip(self.search, point, strict=True)) for point in itertools.product(*values)]
        chance = random.Random(self.seed)  # noqa: S311  (not for secrets)
        return [{name: drawn_value(given, chance) for name, given in self.search.items()} for _ in range(self.trials)]

    def rounds(self) -> list[tuple[int, int]]:
        """Trials and epochs of each round; only successive halving has several."""
        if self.method != "halving":
            return [(len(self.points()), self.epochs)]
        count = 1
        while self.trials >= HALVING_FACTOR**count and self.epochs >= HALVING_FACTOR**count:
            count += 1
        return [
            (
                max(1, self.trials // HALVING_FACTOR**number),
                max(1, self.epochs // HALVING_FACTOR ** (count - 1 - number)),
            )
            for number in range(count)
        ]


def drawn_value(given: Sequence[Any] | SearchRange, chance: random.Random) -> Any:
    return given.draw(chance) if isinstance(given, SearchRange) else chance.choice(list(given))


def read_sweep(path: Path) -> Sweep:
    """A sweep from its file; whatever is wrong with it is one line."""
    if not path.is_file():
        raise InputError(
            f"there is no file '{path}'; give a YAML file that says what to search (vitreous sweep --help)"
        )
    try:
        return checked_sweep(read_settings_file(path))
    except InputError as reason:
        raise InputError(f"sweep {path}: {reason}") from reason


def checked_sweep(content: Any) -> Sweep:
    values = _mapping("the file", content)
    for key in values:
        if key not in KEYS:
            raise InputError(f"unknown key {excerpt(key)}; nearest: {nearest(str(key), list(KEYS), 1)}")
    for key in ("model", "data", "search"):
        if key not in values:
            raise InputError(f"the key '{key}' is missing; a sweep needs model, data and search")
    method = values.get("method", "grid")
    if method not in METHODS:
        raise InputError(f"method: {excerpt(method)} given; accepted: {', '.join(METHODS)}")
    given = _mapping("settings", values.get("settings") or {})
    recipe = {"recipe": _text("recipe", given.pop("recipe"))} if "recipe" in given else {}
    settings = conforming(given) | recipe
    search = _mapping("search", values["search"])
    if not search:
        raise InputError("search: nothing to search; give settings with a list of values, or with low and high")
    sweep = Sweep(
        model=_text("model", values["model"]),
        data=_text("data", values["data"]),
        method=method,
        trials=_whole("trials", values.get("trials", DEFAULT_TRIALS), 1),
        seed=_whole("seed", values.get("seed", 0), 0),
        settings=settings,
        search={name: _searched(name, given, method) for name, given in search.items()},
    )
    _refuse_clashes(sweep)
    return sweep


def _refuse_clashes(sweep: Sweep) -> None:
    for name in sweep.search:
        if name in sweep.settings:
            raise InputError(f"'{name}' is both in settings and in search; keep one")
    if sweep.method == "halving" and "epochs" in sweep.search:
        raise InputError("'epochs' cannot be searched by halving, which sets it itself; use grid or random")
    if sweep.method == "grid":
        count = math.prod(len(given) for given in sweep.search.values() if not isinstance(given, SearchRange))
        if count > MOST_TRIALS:
            raise InputError(f"the grid has {count:,} trials; at most {MOST_TRIALS:,} are accepted, so use random")


def _searched(name: Any, given: Any, method: str) -> Sequence[Any] | SearchRange:
    if name not in RECIPE_KEYS:
        raise InputError(f"search: unknown setting {excerpt(name)}; nearest: {nearest(str(name), RECIPE_KEYS, 1)}")
    if isinstance(given, list) and given:
        return [conforming({name: value})[name] for value in given]
    if isinstance(given, dict):
        if method == "grid":
            raise InputError(f"search: {name} has low and high, which a grid cannot take; list values, or use random")
        return _range(name, given)
    raise InputError(f"search: {name}: {excerpt(given)} given; accepted: a list of values, or low and high")


def _range(name: str, given: dict[Any, Any]) -> SearchRange:
    unknown = [key for key in given if key not in RANGE_KEYS]
    if unknown or not {"low", "high"} <= given.keys():
        raise InputError(f"search: {name}: {excerpt(given)} given; accepted: low, high and, if you like, scale: log")
    low, high, scale = given["low"], given["high"], given.get("scale", "linear")
    for value in (low, high):
        if not isinstance(value, int | float) or isinstance(value, bool) or not math.isfinite(value):
            raise InputError(f"search: {name}: {excerpt(value)} given; low and high must be numbers")
        conforming({name: value})
    if scale not in ("linear", "log"):
        raise InputError(f"search: {name}: scale {excerpt(scale)} given; accepted: linear, log")
    if low >= high or (scale == "log" and low <= 0):
        above = "low must be above 0 and below high" if scale == "log" else "low must be below high"
        raise InputError(f"search: {name}: from {low} to {high} given; {above}")
    return SearchRange(low, high, scale == "log", isinstance(low, int) and isinstance(high, int))


def _mapping(what: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what}: {excerpt(value)} given; accepted: lines of the form `key: value`")
    return dict(value)


def _text(what: str, value: Any) -> str:
    if not isinstance(value, str) or not value:
        raise InputError(f"{what}: {excerpt(value)} given; accepted: a text")
    return value


def _whole(what: str, value: Any, lowest: int) -> int:
    if type(value) is not int or not lowest <= value <= MOST_TRIALS:
        raise InputError(f"{what}: {excerpt(value)} given; accepted: a whole number from {lowest} to {MOST_TRIALS:,}")
    return value
