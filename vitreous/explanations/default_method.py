"""The method that a data set has shown to be the most faithful for a run, kept in the run's folder.

`vitreous score` writes it; `explain`, `serve` and the report take it from there and say why.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from vitreous.errors import InputError, command
from vitreous.explanations.explaining import Plan
from vitreous.explanations.model_card import DEFAULT_METHOD_FILE, data_name
from vitreous.faithfulness.intervals import Interval
from vitreous.faithfulness.scoring import IGNORANT, MethodScores, below_every_method
from vitreous.files.reading import reason_of
from vitreous.files.storage import read_stored_json, replace_file
from vitreous.runs.hub import is_hub_address
from vitreous.runs.model_folder import find_model_folder, is_weights_file

BUDGETS = (1, 3, 10, 50, 100)  # passes a map may take, for each of which a default is stored
FEW = 30  # images: with fewer an interval says little
FEW_REMARK = " So few images prove little: score more."
UNSCORED = "Faithfulness to this model was not measured on a data set"


class DefaultMethod(NamedTuple):
    method: str | None  # None: nothing was measured
    reason: str  # a sentence for the reader
    verdicts: dict[str, bool]  # method -> whether it beat the controls that know nothing
    data: str = ""  # what it was measured on
    images: int = 0
    by_budget: Mapping[int, str] = MappingProxyType({})  # passes -> the most faithful method with so many or fewer
    measured: Mapping[str, Interval] = MappingProxyType({})  # method -> insertion − deletion; none in older files

    def applied(self, plan: Plan) -> Plan:
        if plan.budget is None or not self.by_budget:
            default = None if plan.budget else self.method  # an older file does not tell what its method costs
            return replace(plan, default=default, reason=self.reason, verdicts=self.verdicts)
        method = self.for_budget(plan.budget)
        within = f"at most {plan.budget} {'pass' if plan.budget == 1 else 'passes'}"
        reason = f"Of the methods with {within} it is the most faithful on {self.images} images of {self.data}"
        found = self.measured.get(method or "")
        figure = f": {difference_text(found)}" if found else ""
        few = FEW_REMARK if self.images < FEW else ""
        return replace(plan, default=method, reason=f"{reason}{figure}.{few}", verdicts=self.verdicts)

    def for_budget(self, passes: int) -> str | None:
        """The most faithful method whose map takes at most so many passes; None if nothing was measured."""
        if not self.by_budget:
            return None
        fitting = [budget for budget in self.by_budget if budget <= passes]
        if not fitting:
            lowest = min(self.by_budget)
            raise InputError(below_every_method(passes, self.by_budget[lowest], lowest))
        return self.by_budget[max(fitting)]

    def refinement(self) -> tuple[str, ...]:
        """The defaults of growing budgets, each more faithful than the one before: what to show while one waits."""
        lowest = min(self.by_budget, default=math.inf)
        return tuple(dict.fromkeys(str(self.for_budget(passes)) for passes in BUDGETS if passes >= lowest))


NOT_MEASURED = DefaultMethod(None, f"{UNSCORED}; {command('score', 'RUN', 'DATA')} does that.", {})
NOT_KEPT = DefaultMethod(None, f"{UNSCORED}.", {})  # there is no folder in which a measurement could be found later


def file_of(model: str) -> Path | None:
    """Beside the weights that were measured; a model known by name or file only has no folder to keep it in."""
    folder = None if is_weights_file(model) else find_model_folder(model)
    return None if folder is None else folder / DEFAULT_METHOD_FILE


def read_default_method(model: str) -> DefaultMethod:
    path = file_of(model)
    if path is None:
        return NOT_KEPT
    if not path.is_file():
        return NOT_MEASURED
    content = read_stored_json(path)
    try:
        verdicts, data = dict(content["beats_controls"]), data_name(str(content["data"]))
        budgets = {int(passes): str(method) for passes, method in content.get("by_budget", {}).items()}
        measured = {str(method): read_interval(found) for method, found in content.get("measured", {}).items()}
        return DefaultMethod(
            str(content["method"]), str(content["reason"]), verdicts, data, int(content["images"]), budgets, measured
        )
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as reason:
        raise InputError(
            f"{path} was not written by vitreous score ({reason_of(reason)}); remove it, or score again"
        ) from reason


def read_interval(stored: Mapping[str, Any]) -> Interval:
    found = Interval(*(float(stored[name]) for name in Interval._fields))
    if not all(map(math.isfinite, found)):
        raise ValueError("a measured number is not finite")
    return found


def most_faithful(scores: MethodScores, *, data: str, images: int, findings: bool = False) -> DefaultMethod:
    """The best method, with every reason to doubt it. `findings`: they were explained, and no classes."""
    method = scores.best()
    verdicts = {name: scores.beats_controls(name) for name in scores.values if name not in scores.controls}
    measured_on = f"{'the best findings in ' if findings else ''}{images} images of {data_name(data)}"
    reason = why(scores, method, measured_on) + (FEW_REMARK if images < FEW else "")
    measured = {name: scores.interval(name) for name in verdicts}
    return DefaultMethod(method, reason, verdicts, data, images, scores.envelope(BUDGETS), measured)


def store_default_method(model: str, chosen: DefaultMethod) -> DefaultMethod:
    """Beside the weights, if they have a folder. Returns what stood there before."""
    path = None if is_hub_address(model) else file_of(model)
    if path is None:
        return NOT_KEPT
    try:
        before = read_default_method(model)
    except InputError:  # a damaged one
        before = NOT_MEASURED
    content = as_json(chosen)
    content["beats_controls"] = content.pop("verdicts")
    replace_file(path, json.dumps(content, indent=1) + "\n")
    return before


def as_json(chosen: DefaultMethod) -> dict[str, Any]:
    measured = {method: found._asdict() for method, found in chosen.measured.items()}
    return chosen._asdict() | {"by_budget": dict(chosen.by_budget), "measured": measured}


def difference_text(found: Interval) -> str:
    return f"insertion − deletion {found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def why(scores: MethodScores, method: str, measured_on: str) -> str:
    methods = [name for name in scores.values if name not in scores.controls]
    found = f"Of {len(methods)} methods it is the most faithful on {measured_on}: "
    found += difference_text(scores.interval(method))
    others = ", ".join(f"{name.replace('_', ' ')} {scores.interval(name).mean:.2f}" for name in IGNORANT)
    lost = [name.replace("_", " ") for name, beaten in scores.verdict(method).items() if not beaten]
    if lost:
        return f"{found}, but it does not beat {' and '.join(lost)} ({others}): treat its maps with doubt."
    return f"{found}, above its controls ({others})."
