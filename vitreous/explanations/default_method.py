"""The method that a data set has shown to be the most faithful for a run, kept in the run's folder.

`vitreous score` writes it; `explain`, `serve` and the report take it from there and say why.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import NamedTuple

from vitreous.errors import InputError, command
from vitreous.explanations.explaining import Plan
from vitreous.faithfulness.scoring import IGNORANT, MethodScores
from vitreous.files.reading import reason_of
from vitreous.files.storage import read_stored_json, replace_file
from vitreous.runs.model_folder import find_model_folder, is_weights_file

DEFAULT_METHOD_FILE = "explain.json"
FEW = 30  # images: with fewer an interval says little
FEW_REMARK = " So few images prove little: score more."
UNSCORED = "Faithfulness to this model was not measured on a data set"


class DefaultMethod(NamedTuple):
    method: str | None  # None: nothing was measured
    reason: str  # a sentence for the reader
    verdicts: dict[str, bool]  # method -> whether it beat the controls that know nothing
    data: str = ""  # what it was measured on
    images: int = 0

    def applied(self, plan: Plan) -> Plan:
        return replace(plan, default=self.method, reason=self.reason, verdicts=self.verdicts)


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
        return DefaultMethod(str(content["method"]), str(content["reason"]), verdicts, data, int(content["images"]))
    except (LookupError, TypeError, ValueError, ArithmeticError, AttributeError) as reason:
        raise InputError(
            f"{path} was not written by vitreous score ({reason_of(reason)}); remove it, or score again"
        ) from reason


def most_faithful(scores: MethodScores, *, data: str, images: int, findings: bool = False) -> DefaultMethod:
    """The best method, with every reason to doubt it. `findings`: they were explained, and no classes."""
    method = scores.best()
    verdicts = {name: scores.beats_controls(name) for name in scores.values if name not in scores.controls}
    measured_on = f"{'the best findings in ' if findings else ''}{images} images of {data_name(data)}"
    reason = why(scores, method, measured_on) + (FEW_REMARK if images < FEW else "")
    return DefaultMethod(method, reason, verdicts, data, images)


def store_default_method(model: str, chosen: DefaultMethod) -> DefaultMethod:
    """Beside the weights, if they have a folder. Returns what stood there before."""
    path = file_of(model)
    if path is None:
        return NOT_KEPT
    try:
        before = read_default_method(model)
    except InputError:  # a damaged one
        before = NOT_MEASURED
    content = chosen._asdict()
    content["beats_controls"] = content.pop("verdicts")
    replace_file(path, json.dumps(content, indent=1) + "\n")
    return before


def data_name(data: str) -> str:
    """Without the folders above: the reason is shown to others, in reports and on the page."""
    return Path(data).name or data


def why(scores: MethodScores, method: str, measured_on: str) -> str:
    here, methods = scores.interval(method), [name for name in scores.values if name not in scores.controls]
    found = f"Of {len(methods)} methods it is the most faithful on {measured_on}: "
    found += f"insertion − deletion {here.mean:.2f} ({here.low:.2f} to {here.high:.2f})"
    others = ", ".join(f"{name.replace('_', ' ')} {scores.interval(name).mean:.2f}" for name in IGNORANT)
    lost = [name.replace("_", " ") for name, beaten in scores.verdict(method).items() if not beaten]
    if lost:
        return f"{found}, but it does not beat {' and '.join(lost)} ({others}): treat its maps with doubt."
    return f"{found}, above its controls ({others})."
