"""What is asked, of which models and pictures, and what comes out."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import vitreous.investigations
from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.base import PICTURES
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.evaluations.settings import open_for_task
from vitreous.explanations.dataset import ImageBatch, read_batches, selection
from vitreous.reports.chart import COLOURS, LegendEntry, Series
from vitreous.reports.investigation import Findings
from vitreous.runs.model_folder import load_classifier, load_model
from vitreous.runs.trained_model import TrainedModel

MOST_TICKS = 16


@dataclass(frozen=True)
class Investigated:
    """A model that is looked into. `given`: the folder, file or name that the user gave."""

    given: str
    label: str  # in tables and charts
    size: int | None = None
    device: str = "cpu"
    any_task: bool = False  # else a classifier
    answers: bool = True  # False: one that gives features and no answers will do

    @cached_property
    def trained(self) -> TrainedModel:
        return self.at(self.given)

    def at(self, place: str | Path) -> TrainedModel:
        """What is at a place, loaded as this model is."""
        if self.any_task:
            return load_model(place, size=self.size, device=self.device, features=not self.answers)
        return load_classifier(place, size=self.size, device=self.device)


def all_investigated(given: Sequence[str], size: int | None, device: str, **kind: bool) -> tuple[Investigated, ...]:
    """Each once, by the last part of its path, which charts have room for; by all of it where two would be the same."""
    names = list(dict.fromkeys(given))
    short = [Path(name).name or name for name in names]
    labels = short if len(set(short)) == len(short) else names
    return tuple(Investigated(name, label, size, device, **kind) for name, label in zip(names, labels, strict=True))


@dataclass(frozen=True)
class Inquiry:
    """What `vitreous analyze` was asked; the fields from `sizes` on are of single kinds."""

    subjects: tuple[Investigated, ...]
    data: str
    split: str = "val"
    limit: int | None = None  # pictures
    seed: int = 0
    batch_size: int = 8
    device: str = "cpu"
    sizes: tuple[int, ...] = ()
    block: str | None = None
    head: int | None = None
    query: tuple[float, float] = (0.5, 0.5)
    corruptions: tuple[str, ...] = ()
    also: tuple[str, ...] = ()
    rounds: int = 5
    epochs: int = 2
    seeds: tuple[int, ...] = (0,)
    switches: tuple[str, ...] = ()
    runs: Path = Path("runs/ablate")
    train: Callable[..., Any] | None = None
    answers: bool = True  # whether pictures need what the model is to answer about them

    def images(self, trained: TrainedModel) -> ImageSet:
        if self.answers:
            return open_for_task(trained, self.data, self.split)
        size, held_out = trained.preprocess.size, trained.val_fraction
        return open_data(self.data, self.split, size=size, targets=PICTURES, val_fraction=held_out)

    def other_images(self, trained: TrainedModel, data: str) -> ImageSet:
        """Of data that the model has not learned from: without splits all of them, not the part that training held."""
        return open_for_task(trained, data, self.split, val_fraction=1.0)

    def batches(self, trained: TrainedModel, label: str) -> Iterator[ImageBatch]:
        """The chosen pictures as the model sees them, with their labels."""
        images = self.images(trained)
        return read_batches(trained, images, selection(len(images), self.limit), self.batch_size, label=label)

    def at_size(self, subject: Investigated, size: int) -> TrainedModel:
        return load_classifier(subject.given, size=size, device=self.device)


class Investigation(ABC):
    """One question about networks."""

    name: str
    order = 50  # where lists show it
    asks: str  # the question, for --help
    reading: str  # how to read the result
    usual_limit: int | None = 32  # pictures, unless --limit says how many; None: all
    needs_data = True
    needs_weights = True  # of the models that are given
    any_task = False  # else classifiers
    answers = True  # False: models without a classifier and pictures without labels will do

    @abstractmethod
    def run(self, inquiry: Inquiry) -> Findings: ...


def load_investigations() -> dict[str, Investigation]:
    place = vitreous.investigations
    modules = [import_module(f"{place.__name__}.{module.name}") for module in iter_modules(place.__path__)]
    found = [module.INVESTIGATION for module in modules if hasattr(module, "INVESTIGATION")]
    return {one.name: one for one in sorted(found, key=lambda one: (one.order, one.name))}


def rows_or_reasons(
    inquiry: Inquiry, rows_of: Callable[[Investigated, Inquiry], list[dict]]
) -> tuple[list[dict], dict[str, str]]:
    """The rows of all models, and the reasons of those for which the question has no meaning, by their labels."""
    rows: list[dict] = []
    undefined: dict[str, str] = {}
    for subject in inquiry.subjects:
        try:
            rows += rows_of(subject, inquiry)
        except InputError as reason:
            undefined[subject.label] = str(reason)
    return rows, undefined


def coloured(names: list[str]) -> tuple[dict[str, str], tuple[LegendEntry, ...]]:
    """A colour for each name, and the legend that tells them."""
    colours = {name: COLOURS[number % len(COLOURS)] for number, name in enumerate(dict.fromkeys(names))}
    return colours, tuple(LegendEntry(name, colour) for name, colour in colours.items())


def whole_places(series: Sequence[Series]) -> tuple[int, ...]:
    """Ticks of an axis that counts, where all of them can be read."""
    longest = max((len(one.points) for one in series), default=0)
    return tuple(range(longest)) if longest <= MOST_TICKS else ()


def require_defined(kind: str, findings: Findings) -> None:
    """A inquiry that has no answer for any of the models is refused, with the reasons."""
    if not findings.rows:
        reasons = "; ".join(f"{name}: {reason}" for name, reason in findings.undefined.items())
        raise InputError(f"{kind} is not defined here ({reasons or 'no figures'}); give another model or kind")
