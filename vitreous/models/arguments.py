"""Arguments that several families take: what all hand on to `Backbone`, and checks with messages that help."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, TypeVar

from vitreous.errors import InputError, nearest
from vitreous.layers.patch import HALVINGS

Settings = TypeVar("Settings")


class Common(TypedDict, total=False):
    """What every family hands on to `Backbone`."""

    num_classes: int
    in_chans: int
    global_pool: str | None
    drop_rate: float


MEANINGS = {  # of arguments that mean the same in every family, for `vitreous info`
    "dims": "Channels, per stage.",
    "depths": "Blocks, per stage.",
    "heads": "Attention heads, per stage.",
    "mlp_ratios": "Hidden channels of the feed-forward layers per channel, per stage.",
    "drop_path_rate": "Stochastic depth: how often a branch is skipped in training.",
    "num_classes": "Outputs of the classifier; 0 for none.",
    "in_chans": "Channels of the images.",
    "global_pool": "How the last map becomes one vector; '' for not at all.",
    "drop_rate": "Dropout before the classifier.",
}


def split_options(
    family: str, settings: type[Settings], options: Mapping[str, Any], defaults: Mapping[str, Any]
) -> tuple[Settings, Common]:
    """A family's own settings, which is a dataclass, and what is for `Backbone`; unknown names are refused."""
    known = list(settings.__dataclass_fields__)  # type: ignore[attr-defined]
    for name in options:
        if name not in known and name not in Common.__annotations__:
            raise InputError(
                f"unknown {family} option {name!r}; nearest: {nearest(name, known)}; all: {', '.join(known)}"
            )
    own = {name: value for name, value in options.items() if name in known}
    common = Common(**{name: value for name, value in options.items() if name not in known})  # type: ignore[typeddict-item]
    return settings(**{**defaults, **own}), common


def check_rows(dims: Sequence[int], **rows: Sequence[Any]) -> None:
    """Every row has an entry for every stage."""
    for name, row in rows.items():
        if len(row) != len(dims):
            raise InputError(f"{name}={tuple(row)} has {len(row)} entries; dims={tuple(dims)} asks for {len(dims)}")


def check_heads(dims: Sequence[int], heads: Sequence[int]) -> None:
    for dim, head in zip(dims, heads, strict=True):
        if head < 1 or dim % head:
            raise InputError(f"{head} heads cannot divide {dim} channels evenly; choose a divisor of {dim}")


def check_stem_stride(stride: int) -> None:
    if stride not in HALVINGS:
        raise InputError(f"stem_stride={stride!r} given; accepted: {', '.join(map(str, sorted(HALVINGS)))}")
