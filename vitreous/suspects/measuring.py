"""What candidates do to the answers: hidden, hidden elsewhere, and exchanged with other pictures. Counts only.

Every picture is counted by what became of its answer; the pictures themselves are forgotten, but for the few whose
answers lost most.

Shapes: B pictures, K classes.
"""

import heapq
from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitreous.attribution.target import ClassTarget
from vitreous.faithfulness.intervals import Interval, bootstrap_counts
from vitreous.suspects.candidates import Candidate
from vitreous.suspects.changes import Background, RegionChange, Seen
from vitreous.suspects.gathering import USED

POOL = 64  # latest pictures that things are taken from
KEPT_EXAMPLES = 4  # kept for each candidate
FEWEST_OF_GROUP = 10  # pictures, for its accuracy to be told


class AnswerFate(NamedTuple):
    """What became of the answer of one picture; pictures with equal outcomes are counted together."""

    changed: bool  # hidden
    controls: float | None  # share of the controls that changed it
    other: bool | None  # by exchange with a picture of another answer
    followed: bool | None  # ... to that answer
    same: bool | None  # by exchange with a picture of the same answer
    right: bool
    right_without: bool


class Lost(NamedTuple):
    """A picture whose answer lost something when the suspect was hidden."""

    drop: float  # of its probability
    number: int  # within the data
    answer: int
    probability: float
    answer_without: int
    probability_without: float


class TriedGroup(NamedTuple):
    """Pictures with a value of an attribute, of all classes or of one."""

    attribute: str
    value: str
    label: int | None = None


@dataclass
class Trial:
    """Counts of one candidate."""

    candidate: Candidate
    classes: int
    outcomes: Counter[AnswerFate] = field(default_factory=Counter)
    used: Tensor = field(init=False)  # (K,), pictures by answer in which the map lies there
    pictures: Tensor = field(init=False)  # (K,)
    changed: Tensor = field(init=False)  # (K,)
    area: float = 0.0  # share of pictures that it covers, summed
    groups: dict[TriedGroup, list[int]] = field(default_factory=dict)  # pictures, right with and without it
    lost: list[Lost] = field(default_factory=list)  # a heap

    def __post_init__(self) -> None:
        self.used, self.pictures, self.changed = (torch.zeros(self.classes) for _ in range(3))

    def interval(self, value: "Measure", level: float, *, fewest: int = 1) -> Interval | None:
        """Mean over the pictures for which it is known; None if these are fewer than `fewest`."""
        known = [(value(outcome), count) for outcome, count in self.outcomes.items() if value(outcome) is not None]
        if sum(count for _, count in known) < fewest:
            return None
        values, counts = zip(*known, strict=True)
        return bootstrap_counts(values, counts, level=level)

    def worst_group(self) -> tuple[TriedGroup, float, float] | None:
        """The group with the lowest accuracy, and the lowest accuracy of any without the suspect."""
        large = {group: row for group, row in self.groups.items() if row[0] >= FEWEST_OF_GROUP}
        if not large:
            return None
        worst = min(large, key=lambda group: large[group][1] / large[group][0])
        return worst, large[worst][1] / large[worst][0], min(row[2] / row[0] for row in large.values())


class Measure:
    """A number of an outcome, or the difference of two, where both are known."""

    def __init__(self, name: str, minus: str | None = None) -> None:
        self.name, self.minus = name, minus

    def __call__(self, outcome: AnswerFate) -> float | None:
        value = getattr(outcome, self.name)
        less = 0.0 if self.minus is None else getattr(outcome, self.minus)
        return None if value is None or less is None else float(value) - float(less)


class Donors:
    """Pictures that things are taken from: those of the batch, and the latest before it."""

    def __init__(self) -> None:
        self.kept: deque[Seen] = deque()
        self.random = torch.Generator().manual_seed(0)

    def pick(self, seen: Seen, *, same: bool) -> tuple[Tensor, Seen]:
        """For each picture for which there is one, another with the same answer, or with another: their rows, those."""
        all_of = Seen(*(torch.cat(values) for values in zip(seen, *self.kept, strict=True)))
        fits = (seen.answers[:, None] == all_of.answers[None]) == same
        own = torch.arange(len(seen.answers), device=fits.device)
        fits[own, own] = False
        chance = torch.rand(fits.shape, generator=self.random).to(fits.device) * fits
        rows = fits.any(1).nonzero().flatten()
        return rows, all_of.take(chance[rows].argmax(1))

    def add(self, seen: Seen) -> None:
        self.kept.append(seen.take(torch.arange(min(len(seen.answers), POOL))))
        while sum(len(part.answers) for part in self.kept) > POOL and len(self.kept) > 1:
            self.kept.popleft()


class TriedBatch(NamedTuple):
    seen: Seen
    numbers: Tensor  # (B,) within the data
    labels: Tensor  # (B,)
    heat: Tensor  # (B, H, W), of the pictures' size
    groups: Sequence[Mapping[str, str]]  # attributes of each picture


def measure(model: nn.Module, trials: Sequence[Trial], batch: TriedBatch, donors: Donors) -> None:
    """Try every candidate on these pictures."""
    seen, answers = batch.seen, batch.seen.answers
    with torch.no_grad():
        before = ClassTarget("probability", answers)(model(seen.images)).cpu()
        same, alike = donors.pick(seen, same=True)
        other, unlike = donors.pick(seen, same=False)
        for trial in trials:
            change = trial.candidate.change
            after = change.without(model, seen).softmax(1).cpu()
            elsewhere = [output.argmax(1) != answers for output in change.controls(model, seen, int(batch.numbers[0]))]
            kept, swapped = (
                exchange(model, trial, seen.take(rows), donor) for rows, donor in ((same, alike), (other, unlike))
            )
            own = known_at(same, None if kept is None else kept != answers[same], len(answers))
            columns = (
                [float(share) for share in torch.stack(elsewhere).float().mean(0)] if elsewhere else own,
                known_at(other, None if swapped is None else swapped != answers[other], len(answers)),
                known_at(other, None if swapped is None else swapped == unlike.answers, len(answers)),
                own,
            )
            count(trial, batch, before, after, columns)
    donors.add(seen)


def exchange(model: nn.Module, trial: Trial, seen: Seen, donors: Seen) -> Tensor | None:
    """Answers with what other pictures have in the suspect's place; None where that cannot be done."""
    pixels = trial.candidate.change.exchanged(seen, donors) if len(seen.answers) else None
    return None if pixels is None else model(pixels).argmax(1)


Column = Sequence[float | None]  # a number for each picture, where it is known


def known_at(rows: Tensor, values: Tensor | None, length: int) -> Column:
    column: list[float | None] = [None] * length
    if values is not None:
        for row, value in zip(rows.tolist(), values.tolist(), strict=True):
            column[row] = float(value)
    return column


def count(trial: Trial, batch: TriedBatch, before: Tensor, after: Tensor, columns: Sequence[Column]) -> None:
    seen, answers, now = batch.seen, batch.seen.answers.cpu(), after.argmax(1)
    changed, labels = now != answers, batch.labels
    drop = before - after.gather(1, answers[:, None])[:, 0]
    for row, (controls, other, followed, same) in enumerate(zip(*columns, strict=True)):
        label, answer, without = int(labels[row]), int(answers[row]), int(now[row])
        outcome = AnswerFate(bool(changed[row]), controls, other, followed, same, answer == label, without == label)
        trial.outcomes[outcome] += 1
        for group in groups_of(batch.groups[row], label):
            counted = trial.groups.setdefault(group, [0, 0, 0])
            for place, one in enumerate((True, outcome.right, outcome.right_without)):
                counted[place] += one
        lost = Lost(
            float(drop[row]), int(batch.numbers[row]), answer, float(before[row]), without, float(after[row].max())
        )
        (heapq.heappush if len(trial.lost) < KEPT_EXAMPLES else heapq.heappushpop)(trial.lost, lost)
    trial.pictures += torch.bincount(answers, minlength=trial.classes)
    trial.changed += torch.bincount(answers[changed], minlength=trial.classes)
    if isinstance(trial.candidate.change, RegionChange | Background):
        mask = trial.candidate.change.mask(seen)
        used, area = use_of(batch.heat, mask)
        trial.used += torch.bincount(answers[used], minlength=trial.classes)
        trial.area += float(area.sum())


def use_of(heat: Tensor, mask: Tensor) -> tuple[Tensor, Tensor]:
    """Whether a map has more than its share inside, and the share of the picture that is inside: (B,) each."""
    positive = heat.clamp_min(0)
    inside = (positive * mask[:, 0]).sum((1, 2)) / positive.sum((1, 2)).clamp_min(1e-12)
    area = mask.mean((1, 2, 3))
    # Twice its share, and of a large part, of which no map can have twice, half of what is left.
    return ((inside > torch.minimum(USED * area, (1 + area) / 2)) & (area > 0)).cpu(), area.cpu()


def groups_of(attributes: Mapping[str, str], label: int) -> list[TriedGroup]:
    """The groups of a picture: by each attribute, and by it and the class."""
    return [TriedGroup(*one, known) for one in attributes.items() for known in (None, label)]
