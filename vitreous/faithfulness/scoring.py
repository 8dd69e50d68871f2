"""How faithful every method is on a set of images, beside its controls, with intervals.

    scores = score_methods(model, images, masks=masks)
    scores.rows()                  # one dict per method: means and intervals of every measure
    scores.best()                  # the method to use by default; best(10): with at most 10 passes
    scores.verdict("grad_cam")     # whether it beats the controls

The measure that decides is insertion minus deletion, with the blur that hides best.

Shapes: B images of a batch, n images in all.
"""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.attribution.catalogue import controls_for, methods_for
from vitreous.attribution.controls import OracleMask
from vitreous.attribution.method import Method, resolve
from vitreous.attribution.target import Target
from vitreous.errors import InputError
from vitreous.faithfulness.curves import PORTIONS, Hiding, curves
from vitreous.faithfulness.doubts import doubtful_measures
from vitreous.faithfulness.intervals import Interval, bootstrap, paired
from vitreous.faithfulness.localisation import TOLERANCE, energy, object_iou, pointing
from vitreous.faithfulness.sanity import randomisation, stability

DECIDES = "insertion_minus_deletion"
IGNORANT = ("random_map", "centre_blob")  # the controls a useful method must beat
NO_BETTER = "no better than its controls"  # the label of one that does not
HIDINGS: tuple[Hiding, ...] = ("blur", "mean", "linear")  # the first decides
FEWER_PORTIONS = 6  # at most, with "linear": equations are solved for each changed copy


CONSTANT = "constant"  # whether a map has no highest place, beside its measures


class ScoringBatch(NamedTuple):
    """Images to score: normalised inputs, what to explain (None: the predicted class), and objects where known.

    `model` is what answers about these images, where it is not the same for all.
    """

    images: Tensor
    target: Target | Tensor | None = None
    masks: Tensor | None = None
    model: nn.Module | None = None


@dataclass
class MethodScores:
    """Values by method and measure, one for each image in the order they came."""

    values: dict[str, dict[str, list[float]]] = field(default_factory=dict)
    controls: tuple[str, ...] = ()
    summaries: dict[str, str] = field(default_factory=dict)
    passes: dict[str, int] = field(default_factory=dict)  # what a map costs
    constant: dict[str, int] = field(default_factory=dict)  # in how many images a map had no highest place

    def add(self, method: str, measure: str, numbers: Tensor) -> None:
        self.values.setdefault(method, {}).setdefault(measure, []).extend(numbers.tolist())

    def join(self, other: "MethodScores") -> None:
        """Add what was measured on later images."""
        self.controls = self.controls or other.controls
        self.summaries |= other.summaries
        self.passes |= other.passes
        for method, measures in other.values.items():
            self.constant[method] = self.constant.get(method, 0) + other.constant[method]
            for measure, numbers in measures.items():
                self.values.setdefault(method, {}).setdefault(measure, []).extend(numbers)

    def require_images(self) -> None:
        if not self.values:
            raise InputError("no images were given to score")

    def stored(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All of it as numbers by name, and as what JSON can say."""
        numbers = {
            f"{method}/{measure}": torch.tensor(found, dtype=torch.float64)
            for method, measures in self.values.items()
            for measure, found in measures.items()
        }
        told = {name: value for name, value in vars(self).items() if name != "values"}
        return numbers, told | {"measures": {method: list(measures) for method, measures in self.values.items()}}

    @classmethod
    def restored(cls, numbers: Mapping[str, Tensor], told: Mapping[str, Any]) -> "MethodScores":
        """The same again from what `stored` gave; a ValueError if it cannot be."""
        scores = cls(controls=tuple(str(name) for name in told["controls"]))
        for method, measures in told["measures"].items():
            scores.values[method] = {measure: numbers[f"{method}/{measure}"].tolist() for measure in measures}
            scores.summaries[method] = str(told["summaries"][method])
            scores.passes[method], scores.constant[method] = int(told["passes"][method]), int(told["constant"][method])
            if not all(isinstance(number, float) for found in scores.values[method].values() for number in found):
                raise ValueError(f"what was measured of {method} is no list of numbers")
        return scores

    def interval(self, method: str, measure: str = DECIDES) -> Interval:
        return bootstrap(self.of(method)[measure])

    def of(self, method: str) -> dict[str, list[float]]:
        if method not in self.values:
            raise InputError(f"method {method!r} was not scored; scored: {', '.join(self.values)}")
        return self.values[method]

    def against(self, method: str, control: str, measure: str = DECIDES) -> Interval:
        """The mean difference to another method on the same images."""
        return paired(self.of(method)[measure], self.of(control)[measure])

    def verdict(self, method: str) -> dict[str, bool]:
        """For each control that knows nothing: whether the method is above it beyond the interval."""
        return {name: self.against(method, name).low > 0 for name in IGNORANT if name in self.values}

    def beats_controls(self, method: str) -> bool:
        return all(self.verdict(method).values())

    def best(self, most_passes: int | None = None) -> str:
        """The method with the highest mean, controls apart; of those with so many passes or fewer."""
        able = self.able()
        fitting = [name for name in able if most_passes is None or self.passes.get(name, 0) <= most_passes]
        if not fitting:
            cheapest = min(able, key=lambda name: self.passes[name])
            raise InputError(below_every_method(most_passes or 0, cheapest, self.passes[cheapest]))
        return max(fitting, key=lambda name: self.interval(name).mean)

    def able(self) -> list[str]:
        """Methods that show a place in some image at least, controls apart."""
        methods = [name for name in self.values if name not in self.controls]
        if not methods:
            raise InputError("no method was scored besides the controls; give at least one")
        able = [name for name in methods if self.constant.get(name, 0) < len(self.values[name][DECIDES])]
        if not able:
            raise InputError(
                f"every map of {', '.join(methods)} is constant and shows no place; is the model trained? Score other "
                "methods, or other images"
            )
        return able

    def envelope(self, budgets: Sequence[int] = ()) -> dict[int, str]:
        """The best method by number of passes: at each where it may change, and at these budgets, if any fits."""
        costs = {self.passes.get(name, 0) for name in self.able()}
        return {cost: self.best(cost) for cost in sorted({*costs, *budgets}) if cost >= min(costs)}

    def hiding_range(self, method: str) -> tuple[float, float] | None:
        """The lowest and the highest insertion − deletion over what hides; None if nothing was compared."""
        found = self.of(method)
        means = [
            self.interval(method, f"insertion_{fill}").mean - self.interval(method, f"deletion_{fill}").mean
            for fill in HIDINGS
            if f"insertion_{fill}" in found
        ]
        return (min(means), max(means)) if len(means) > 1 else None

    def rows(self) -> list[dict[str, object]]:
        """One for each method, the most faithful first; for tables and JSON."""
        ordered = sorted(self.values, key=lambda name: -self.interval(name).mean)
        return [
            {
                "method": name,
                "summary": self.summaries[name],
                "control": name in self.controls,
                "passes": self.passes.get(name),
                # Unknown of an oracle, which has fewer images where objects are not always known.
                "beats_controls": None if name in self.controls else self.beats_controls(name),
                "hiding_range": self.hiding_range(name),
                "measures": {measure: self.interval(name, measure)._asdict() for measure in self.values[name]},
            }
            for name in ordered
        ]


def score_methods(
    model: nn.Module,
    images: Tensor | Iterable[ScoringBatch],
    *,
    target: Target | Tensor | None = None,
    masks: Tensor | None = None,
    methods: Sequence[Method] | None = None,
    fills: Sequence[Hiding] = HIDINGS,
    portions: int = PORTIONS,
    sanity: int | None = None,
    doubts: int = 0,
    portion: bool = False,
    batch_size: int = 16,
) -> MethodScores:
    """Score methods, by default all that fit the model, and always the controls.

    Args:
        model: In eval mode.
        images: Normalised inputs (n, 3, height, width), or batches of them that are read one at a time.
        target: What to explain in `images`; by default the predicted class.
        masks: Their objects, (n, height, width); without them nothing is said about localisation.
        methods: What to score.
        fills: What hides pixels in insertion and deletion.
        portions: Steps of those curves.
        sanity: Of how many images to measure randomisation and stability too, which take three more maps; None: all.
        doubts: Of how many images to measure what is in `doubts` too, which takes three more curves and a map.
        portion: They are a portion of all images, of which there may be none in it.
        batch_size: Images at a time if `images` is a tensor; no effect on the result.
    """
    if not fills:
        raise InputError("fills=() given; insertion and deletion need something that hides: 'blur', 'mean' or both")
    chosen, controls = list(methods_for(model) if methods is None else methods), controls_for(model)
    names = [method.name for method in controls]
    scores = MethodScores(controls=(*names, "oracle_mask"))
    batches = split(ScoringBatch(images, target, masks), batch_size) if isinstance(images, Tensor) else images
    seen = 0
    for batch in batches:
        with_sanity, with_doubts = sanity is None or seen < sanity, seen < doubts
        seen += len(batch.images)
        here = [*controls, *(method for method in chosen if method.name not in names)]
        if batch.masks is not None:
            here.append(OracleMask(batch.masks))
        own = model if batch.model is None else batch.model
        resolved = resolve(own, batch.images, batch.target)
        for method in here:
            scores.summaries[method.name], scores.passes[method.name] = method.summary, method.needs.passes
            found = measured(own, method, batch, resolved, fills, portions, with_sanity, with_doubts)
            scores.constant[method.name] = scores.constant.get(method.name, 0) + int(found.pop(CONSTANT).sum())
            for measure, numbers in found.items():
                scores.add(method.name, measure, numbers)
    if not portion:
        scores.require_images()
    return scores


def below_every_method(budget: int, cheapest: str, passes: int) -> str:
    few = f"{passes} pass" if passes == 1 else f"{passes} passes"
    return f"a budget of {budget} is below every method; the cheapest is {cheapest} with {few}: give that or more"


def split(whole: ScoringBatch, size: int) -> Iterable[ScoringBatch]:
    for rows in torch.arange(len(whole.images)).split(size):
        target = whole.target
        part = target.select(rows) if isinstance(target, Target) else None if target is None else target[rows]
        yield ScoringBatch(whole.images[rows], part, None if whole.masks is None else whole.masks[rows])


def measured(
    model: nn.Module,
    method: Method,
    batch: ScoringBatch,
    target: Target,
    fills: Sequence[Hiding],
    portions: int,
    sanity: bool,
    doubts: bool = False,
) -> dict[str, Tensor]:
    """Every measure of one method on one batch, each (B,)."""
    images, heat = batch.images, method(model, batch.images, target)
    found = {CONSTANT: heat.flatten(1).amax(1) == heat.flatten(1).amin(1)}
    for fill in fills:
        steps = min(portions, FEWER_PORTIONS) if fill == "linear" else portions
        both = curves(model, images, heat, target, fill=fill, portions=steps)
        found |= {f"insertion_{fill}": both.insertion_area, f"deletion_{fill}": both.deletion_area}
    deciding = "blur" if "blur" in fills else fills[0]
    found[DECIDES] = found[f"insertion_{deciding}"] - found[f"deletion_{deciding}"]
    if batch.masks is not None:
        found |= {
            "pointing": pointing(heat, batch.masks),
            "pointing_near": pointing(heat, batch.masks, TOLERANCE),
            "energy": energy(heat, batch.masks),
            "overlap": object_iou(heat, batch.masks),
        }
    if sanity and method.needs.passes:
        found["randomisation"] = randomisation(method, model, images, target, heat)
        found["stability"] = stability(method, model, images, target, heat)
    if doubts:
        found |= doubtful_measures(method, model, images, target, heat, portions)
    return found
