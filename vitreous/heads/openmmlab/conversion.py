"""Loads a whole model from a checkpoint of one of OpenMMLab's toolboxes, with a report of every key.

Such a checkpoint has parts: `backbone.`, with the keys of the backbone's own release, and `neck.`, `decode_head.`, …,
whose keys a table of rules translates to ours.
"""

import logging
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.models.base import Backbone
from vitreous.models.weights import (
    BACKBONE_PREFIX,
    MAX_SHOWN_DIFFERENCES,
    REBUILT_KEYS,
    STRICT_HINT,
    MisfitError,
    describe_layout,
    read_tensors,
)

_logger = logging.getLogger(__name__)

Outcome = Literal["loaded", "left out", "fresh", "wrong shape", "missing", "unexpected"]
MISFITS: tuple[Outcome, ...] = ("wrong shape", "missing", "unexpected")
Rules = Sequence[tuple[str, str]]  # regular expressions of their names, and ours


class Decision(NamedTuple):
    """What became of one tensor."""

    outcome: Outcome
    theirs: str | None  # key in the checkpoint; None if it has none
    ours: str | None  # key in the model; None if the tensor is unused
    shape: tuple[int, ...]  # in the checkpoint, or in the model if the checkpoint lacks it
    reason: str = ""

    def __str__(self) -> str:
        names = " -> ".join(name for name in (self.theirs, self.ours) if name)
        return f"{self.outcome}: {names} {self.shape}" + (f" ({self.reason})" if self.reason else "")


class Conversion(NamedTuple):
    """The report of a conversion: a decision for every tensor of the checkpoint and of the model."""

    decisions: list[Decision]

    def having(self, *outcomes: Outcome) -> list[Decision]:
        return [decision for decision in self.decisions if decision.outcome in outcomes]

    def __str__(self) -> str:
        counts = {outcome: len(self.having(outcome)) for outcome in Outcome.__args__}  # type: ignore[attr-defined]
        head = ", ".join(f"{count} {outcome}" for outcome, count in counts.items() if count)
        return "\n".join([head, *(f"  {decision}" for decision in self.decisions)])


def load_release(
    model: nn.Module,
    backbone: Any,
    source: str | Path | dict[str, Any],
    rules: Rules,
    *,
    may_differ: str,
    strict: bool = True,
) -> Conversion:
    """Load a checkpoint into a model; if `strict`, a misfit is an error before anything is changed.

    Args:
        backbone: The part of the model that `backbone.` belongs to.
        rules: For the keys of all other parts. A key that no rule matches is unexpected.
        may_differ: Regular expression of our keys that are re-initialised if shapes differ, such as the classifier's.
    """
    state = read_tensors(source)
    name = str(source) if isinstance(source, (str, Path)) else "the given state dict"
    if not any(key.startswith(BACKBONE_PREFIX) for key in state):
        parts = ", ".join(sorted({key.partition(".")[0] for key in state})[:8])
        raise InputError(
            f"{name} has no part 'backbone.'; it has: {parts}. For a backbone alone use its load_weights(path)"
        )
    path = next(path for path, module in model.named_modules() if module is backbone)
    renamed, origin, left = translate_keys(state, backbone, f"{path}.", rules)
    own = {key: value for key, value in model.state_dict().items() if not REBUILT_KEYS.search(key)}
    resized = getattr(backbone, "reset_when_resized", "$^")  # parameters whose shapes may change between tasks
    restarts = rf"{may_differ}|{re.escape(path)}\.\S*(?:{resized})"
    decisions = [*left, *compare_tensors(own, renamed, origin, restarts)]
    report = Conversion(decisions)
    misfits = report.having(*MISFITS)
    if strict and misfits:
        fit = f"{len(report.having('loaded'))} of its {len(own)} tensors are in the file, by name and shape"
        shown = [str(decision) for decision in misfits[:MAX_SHOWN_DIFFERENCES]]
        more = [f"and {len(misfits) - MAX_SHOWN_DIFFERENCES} more"] if len(misfits) > MAX_SHOWN_DIFFERENCES else []
        lines = [fit, f"the file is {describe_layout(state)}", *shown, *more]
        raise MisfitError(f"{name} does not fit this {type(model).__name__}", lines, STRICT_HINT)
    wanted = [decision.ours for decision in report.having("loaded") if decision.ours]
    bad = [key for key in wanted if not torch.isfinite(renamed[key]).all()]
    if bad:
        raise InputError(f"{name} holds NaN or infinite values in {len(bad)} tensors, first {bad[0]}; it is damaged")
    model.load_state_dict({key: renamed[key] for key in wanted}, strict=False)
    if misfits or report.having("fresh"):
        _logger.warning("%s: %s", name, "; ".join(map(str, report.having(*MISFITS, "fresh"))))
    return report


def translate_keys(
    state: dict[str, Tensor], backbone: Any, path: str, rules: Rules
) -> tuple[dict[str, Tensor], dict[str, str], list[Decision]]:
    """Tensors by our keys, the original key of each, and decisions on those without a key of ours."""
    left: list[Decision] = []
    renamed: dict[str, Tensor] = {}
    origin: dict[str, str] = {}
    inner: dict[str, Tensor] = {}
    for key, value in state.items():
        matching = next((rule for rule in rules if re.match(rule[0], key)), None)
        if REBUILT_KEYS.search(key):
            left.append(Decision("left out", key, None, tuple(value.shape), "counter or constant"))
        elif key.startswith(BACKBONE_PREFIX):
            inner[key] = value
        elif matching is None:
            left.append(Decision("unexpected", key, None, tuple(value.shape), "no such part here"))
        else:
            # `{i/2}` is half of i: their indices also count the layers between convolutions.
            halved = re.sub(*matching, key)
            ours = re.sub(r"\{(\d+)/(\d+)\}", lambda match: str(int(match[1]) // int(match[2])), halved)
            renamed[ours], origin[ours] = value, key
    of_backbone, sources = backbone_tensors(inner, backbone)
    renamed |= {path + key: value for key, value in of_backbone.items()}
    origin |= {path + key: theirs for key, theirs in sources.items()}
    for key in inner.keys() - set(sources.values()):
        left.append(Decision("left out", key, None, tuple(inner[key].shape), "not a part of the dense form"))
    return renamed, origin, left


def backbone_tensors(inner: dict[str, Tensor], backbone: Any) -> tuple[dict[str, Tensor], dict[str, str]]:
    """Tensors of the backbone by our keys, and the original key of each."""
    bare = {key.removeprefix(BACKBONE_PREFIX): value for key, value in inner.items()}
    if not isinstance(backbone, Backbone):
        return bare, {key: BACKBONE_PREFIX + key for key in bare}
    # Translating tensors filled with their own index shows which became which.
    numbers = {key: torch.tensor(float(i)).expand(value.shape) for i, (key, value) in enumerate(bare.items())}
    keys = list(inner)
    sources = {ours: keys[int(number.flatten()[0])] for ours, number in backbone.translate(numbers).items()}
    return backbone.translate(bare), sources


def compare_tensors(
    own: dict[str, Tensor], renamed: dict[str, Tensor], origin: dict[str, str], restarts: str
) -> list[Decision]:
    decisions = []
    for ours, value in renamed.items():
        shape, theirs = tuple(value.shape), origin[ours]
        if ours not in own and re.search(r"(?:^|\.)head\.(?:weight|bias)$", ours):
            decisions.append(Decision("left out", theirs, None, shape, "classifier of the pre-training"))
        elif ours not in own:
            decisions.append(Decision("unexpected", theirs, None, shape, "the model has no such layer"))
        elif own[ours].shape == value.shape:
            decisions.append(Decision("loaded", theirs, ours, shape))
        else:
            outcome: Outcome = "fresh" if re.match(restarts, ours) else "wrong shape"
            decisions.append(Decision(outcome, theirs, ours, shape, f"here {tuple(own[ours].shape)}"))
    decisions += [
        Decision("missing", None, key, tuple(value.shape)) for key, value in own.items() if key not in renamed
    ]
    return decisions
