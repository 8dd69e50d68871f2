"""What was found by looking for shortcuts: result objects, and their numbers as JSON."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.faithfulness.intervals import Interval

STORED_DIGITS = 4


@dataclass(frozen=True)
class ClassEffect:
    """Of a suspect on the pictures that were given one answer."""

    name: str
    pictures: int
    used: float | None  # share of them in which the map lies on it
    changed: float  # share of them whose answer changes without it


@dataclass(frozen=True, eq=False)
class SuspectExample:
    """A picture with and without a suspect."""

    name: str
    picture: Image.Image = field(repr=False)
    heat: np.ndarray = field(repr=False)  # (H, W) in [0, 1]
    hidden: Image.Image | None = field(repr=False)  # None: not pixels are hidden, but a cluster
    label: str | None  # None: not known
    answer: str
    probability: float
    answer_without: str
    probability_without: float


@dataclass(frozen=True, eq=False)
class Suspect:
    """Something that a model may take a shortcut by, and what its answers lose without it."""

    kind: str  # place, look, colour, background or cluster
    name: str  # in words
    verdict: str  # serious, look at it or harmless
    reasons: tuple[str, ...]
    box: tuple[float, float, float, float] | None  # left, top, right, bottom in shares of the picture
    classes: tuple[str, ...]  # answers that hang on it; none named: all
    proposed_by: str
    used: float | None  # share of pictures in which the map lies on it
    changed: Interval  # share of answers that change without it
    control: Interval | None  # ... when as much is hidden elsewhere
    hangs: Interval | None  # the difference of the two
    exchanged: Interval | None  # ... with what a picture of another answer has in its place
    followed: Interval | None  # ... and become that answer
    exchanged_alike: Interval | None  # ... with what a picture of the same answer has
    tells: Interval | None  # the difference of the two exchanges
    accuracy: tuple[float, float] | None  # with and without it
    gain: Interval | None  # the second less the first
    worst_group: tuple[str, float, float] | None  # its name and accuracy, and the lowest of any group without it
    by_class: tuple[ClassEffect, ...]
    examples: tuple[SuspectExample, ...] = ()
    look: bytes | None = field(default=None, repr=False)  # a PNG, where it is known by its look

    @property
    def sentence(self) -> str:
        """What a person should know about it."""
        return " ".join([suspect_headline(self), *suspect_details(self)])

    def to_dict(self) -> dict[str, Any]:
        plain = ("kind", "name", "verdict", "box", "classes", "proposed_by", "reasons")
        numbers = (
            *("used", "changed", "control", "hangs", "exchanged", "followed", "exchanged_alike", "tells"),
            *("accuracy", "gain", "worst_group"),
        )
        return (
            {key: as_plain(getattr(self, key)) for key in plain}
            | {"sentence": self.sentence}
            | {key: as_plain(getattr(self, key)) for key in numbers}
            | {
                "by_class": [
                    {
                        "name": one.name,
                        "pictures": one.pictures,
                        "used": as_plain(one.used),
                        "changed": as_plain(one.changed),
                    }
                    for one in self.by_class
                ],
                "examples": [
                    {
                        "image": one.name,
                        "label": one.label,
                        "answer": one.answer,
                        "probability": as_plain(one.probability),
                        "answer_without": one.answer_without,
                        "probability_without": as_plain(one.probability_without),
                    }
                    for one in self.examples
                ],
            }
        )


@dataclass(frozen=True, eq=False)
class Shortcuts:
    """Suspects of a model over a data set, the worst first."""

    model: str
    data: str
    split: str
    pictures: int  # on which suspects were tried
    proposing: int  # other pictures, whose maps proposed them
    accuracy: float | None  # of the answers, where labels are known
    masks: bool  # whether the data know the object
    method: str  # of the maps ...
    reason: str  # ... and why it
    suspects: tuple[Suspect, ...]
    page: Path | None = None  # where it was written
    unmasked: int = 0  # pictures that were left out, because others have masks

    def serious(self) -> tuple[Suspect, ...]:
        return tuple(one for one in self.suspects if one.verdict == "serious")

    def to_dict(self) -> dict[str, Any]:
        about = ("model", "data", "split", "pictures", "proposing", "accuracy", "masks", "unmasked", "method", "reason")
        return {key: as_plain(getattr(self, key)) for key in about} | {
            "suspects": [one.to_dict() for one in self.suspects]
        }


def as_plain(value: Any) -> Any:
    if isinstance(value, Interval):
        return {key: round(number, STORED_DIGITS) for key, number in value._asdict().items()}
    if isinstance(value, float):
        return round(value, STORED_DIGITS)
    return [as_plain(one) for one in value] if isinstance(value, tuple | list) else value


# ---- words -------------------------------------------------------------------------------------------------------

SELDOM = 0.1  # share of pictures below which a map is not said to lie somewhere


def suspect_headline(one: Suspect) -> str:
    """Where the model looks, and what happens without it."""
    most = max(one.by_class, key=lambda effect: effect.changed * effect.pictures, default=None)
    if most is None or not most.changed:
        return f"{hiding(one)}, and {share(one.changed.mean)} of the answers change."
    looks = most.used is not None and most.used >= SELDOM and one.kind != "background"
    if not looks:
        return f"{hiding(one)}, and {share(most.changed)} of the pictures called {most.name} are called something else."
    return (
        f"In {share(most.used or 0)} of the pictures called {most.name} the model looks at {with_article(one)}. "
        f"{hiding(one)}, and {share(most.changed)} of them are called something else."
    )


def suspect_details(one: Suspect) -> list[str]:
    """All that was counted, in words."""
    said = f"Of all answers {share(one.changed.mean)} change"
    said += "" if one.control is None else f"; {share(one.control.mean)} when {control_in_words(one)}"
    found = [f"{said}."]
    if one.exchanged is not None and one.exchanged_alike is not None:
        found.append(
            f"{exchanging(one)} a picture with another answer, and {share(one.exchanged.mean)} change; "
            f"from one with the same answer, {share(one.exchanged_alike.mean)}."
        )
    if one.accuracy is not None:
        found.append(f"Right are {share(one.accuracy[0])} with it and {share(one.accuracy[1])} without.")
    return found


def share(value: float) -> str:
    return f"{100 * value:.0f} %"


def with_article(one: Suspect) -> str:
    return f"the {one.name}" if one.kind == "place" else one.name


def hiding(one: Suspect) -> str:
    """What is done to a suspect, as an order."""
    return {
        "colour": "Give all pictures the same mean colour",
        "background": "Blur the background",
        "cluster": "Close its gate",
    }.get(one.kind, "Hide it")


def exchanging(one: Suspect) -> str:
    part = {"colour": "the colour", "background": "the background"}.get(one.kind, "what is there")
    return f"Take {part} from"


def control_in_words(one: Suspect) -> str:
    """What the suspect was compared with."""
    return {
        "colour": "they get the colour of another picture with the same answer",
        "background": "they get the background of another picture with the same answer",
        "cluster": "another cluster is closed",
        "look": "as much is hidden elsewhere",
    }.get(one.kind, "a part as large is hidden elsewhere")


def shortcuts_in_words(found: Shortcuts) -> Sequence[str]:
    """Lines for the console."""
    shown = [one for one in found.suspects if one.verdict != "harmless"]
    lines = [f"{one.verdict + ':':<12}{one.name}. {one.sentence}" for one in shown]
    harmless = len(found.suspects) - len(shown)
    if not shown:
        lines.append(f"nothing suspicious: {harmless} candidates were tried and found harmless")
    elif harmless:
        lines.append(f"harmless:   {harmless} more candidates")
    return lines
