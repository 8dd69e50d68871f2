"""Is a suspect a shortcut? How it is told from the truth, and from what merely disturbs a model.

Hide the object, and answers change as well: that an answer hangs on a part of the picture proves nothing. Four
questions, each answered by counting answers:

1. Does the answer hang on it? Answers that change when it is hidden, less those that change when as much is hidden
   elsewhere in the same picture. A model that any hole disturbs is disturbed by both.
2. Does it tell the model a class? Put there what another picture has there. With a picture of another answer, answers
   change if the place carries a class. With a picture of the same answer, they stay if what it carries is the same in
   all pictures of the class. An object that moves about fails here: a piece of another heart in the middle of a heart
   disturbs as much as a piece of a star. A watermark passes: one is as good as the other.
3. Does it lie off the object? Where the data know the object, everything above leaves the object untouched, so that
   nothing true is lost by it. Where they do not, the second question stands in: what can be exchanged within a class
   and not between classes, at a fixed place or with a fixed look, is a mark rather than a thing that moves.
4. Does it do harm? Where labels are known and accuracy rises without it, it is proven, whatever else. That happens on
   data in which the mark does not go with the class. Where it does, accuracy falls, as it would without the truth:
   then accuracy says how much the figures owe to it, and the first three questions decide.

"serious": the first two beyond doubt and above LEAST, and the third; or the fourth. "look at it": the first two beyond
chance; a person decides whether it is the truth: eyes lie at a fixed place in passport photographs. "harmless": all
else. Beyond chance means by a bootstrap interval over pictures, wider for as many suspects as were tried, of pictures
that did not propose the suspect. Where fewer than FEWEST_EXCHANGED pictures could be exchanged both ways, the second
question has no answer, and nothing is serious by it.

A cluster is a part of the model and not of the picture, and reads true and false things alike. It is serious only with
a serious place that it looks at.
"""

from collections.abc import Sequence
from typing import NamedTuple

from vitreous.faithfulness.intervals import LEVEL, Interval
from vitreous.suspects.candidates import box_area, box_overlap
from vitreous.suspects.measuring import Measure, Trial

SERIOUS, LOOK, HARMLESS = "serious", "look at it", "harmless"
LEAST = 0.05  # of the answers: one in twenty is what a careful user would want to know about
LEAST_HARM = 0.02  # of the accuracy
FEWEST_EXCHANGED = 10  # pictures with both exchanges; the bootstrap of two that agree has no width, and proves nothing
INTERCHANGEABLE = 0.25  # at most so many change within a class, for each that changes between classes
SPECIFIC = 0.6  # of what a wider suspect does, done by a narrower one: that explains it
BREADTH = {"place": 0, "look": 0, "cluster": 1, "colour": 2, "background": 3}  # narrow suspects before wide ones

HANGS = Measure("changed", "controls")
TELLS = Measure("other", "same")
GAIN = Measure("right_without", "right")


class Judged(NamedTuple):
    trial: Trial
    verdict: str
    hangs: Interval | None  # answers changed, less those that the controls change
    tells: Interval | None  # answers changed by another class's, less those changed by the same class's
    gain: Interval | None  # accuracy without it, less that with it
    reasons: tuple[str, ...]

    @property
    def strength(self) -> float:
        """What the answers lose, by the weaker of both measures."""
        known = [interval.mean for interval in (self.hangs, self.tells) if interval is not None]
        return min(known, default=0.0)


def judge(trials: Sequence[Trial], *, masks: bool, labels: bool) -> list[Judged]:
    """All suspects with their verdicts, the worst first."""
    level = 1 - (1 - LEVEL) / max(len(trials), 1)
    found = [judge_alone(trial, level, masks=masks, labels=labels) for trial in trials]
    serious = [one for one in found if one.verdict == SERIOUS and one.trial.candidate.kind != "cluster"]
    found = [with_place(one, serious) if one.trial.candidate.kind == "cluster" else one for one in found]
    return worst_first(found)


def judge_alone(trial: Trial, level: float, *, masks: bool, labels: bool) -> Judged:
    hangs, tells = trial.interval(HANGS, level), trial.interval(TELLS, level, fewest=FEWEST_EXCHANGED)
    gain = trial.interval(GAIN, level) if labels else None
    harm = gain is not None and gain.low > LEAST_HARM
    beyond_chance = all(one is not None and one.low > 0 for one in (hangs, tells))
    clearly = all(one is not None and one.low > LEAST for one in (hangs, tells))
    fixed, off = interchangeable(trial, level), masks and trial.candidate.kind != "colour"
    reasons = []
    if harm:
        reasons.append("without it the model is right more often")
    if clearly and off:
        reasons.append("it lies off the object")
    if clearly and fixed:
        reasons.append("within a class it can be exchanged, between classes it cannot: it tells the class")
    if trial.candidate.kind == "cluster":
        verdict = LOOK if hangs is not None and hangs.low > LEAST else HARMLESS
        return Judged(trial, verdict, hangs, tells, gain, tuple(reasons))
    if harm or (clearly and (off or fixed)):
        verdict = SERIOUS
    elif beyond_chance or (tells is None and hangs is not None and hangs.low > LEAST):
        verdict = LOOK
    else:
        verdict = HARMLESS
    return Judged(trial, verdict, hangs, tells, gain, tuple(reasons))


def interchangeable(trial: Trial, level: float) -> bool:
    same, other = (trial.interval(Measure(name), level) for name in ("same", "other"))
    return same is not None and other is not None and same.mean <= INTERCHANGEABLE * other.mean


def with_place(one: Judged, serious: Sequence[Judged]) -> Judged:
    """A cluster, serious with a serious place that it looks at."""
    for place in serious:
        if one.verdict == LOOK and place.trial.candidate.kind == "place" and share_a_place(one, place):
            return one._replace(verdict=SERIOUS, reasons=(f"it looks at the {place.trial.candidate.name}",))
    return one


def share_a_place(one: Judged, other: Judged) -> bool:
    """Whether half of the smaller box lies in the other."""
    first, second = one.trial.candidate.box, other.trial.candidate.box
    if first is None or second is None:
        return False
    return box_overlap(first, second) >= min(box_area(first), box_area(second)) / 2


def worst_first(found: Sequence[Judged]) -> list[Judged]:
    """By verdict, then by strength; a narrow suspect that does most of what a wide one does goes before it."""
    order = {SERIOUS: 0, LOOK: 1, HARMLESS: 2}
    left = sorted(found, key=lambda one: (order[one.verdict], -one.strength))
    ranking: list[Judged] = []
    while left:
        first = left[0]
        narrower = [
            one
            for one in left
            if order[one.verdict] == order[first.verdict]
            and width(one) < width(first)
            and one.strength >= SPECIFIC * first.strength
        ]
        chosen = min(narrower, key=lambda one: (width(one), -one.strength), default=first)
        left.remove(chosen)
        ranking.append(chosen)
    return ranking


def width(one: Judged) -> int:
    return BREADTH[one.trial.candidate.kind]
