"""A family's variant table becomes entries of timm's registry, with weights by tag.

`register(Family, VARIANTS, …)` is all a model file calls; afterwards `timm.create_model("name", …)` works. What we know
about a model beyond timm's records (its paper, its published figures) is kept in `ENTRIES` for `vitreous info`.
"""

import sys
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import build_model_with_cfg, generate_default_cfgs, is_model, register_model
from timm.models._builder import resolve_pretrained_cfg
from torch import nn

from vitreous.errors import InputError, nearest


class Published(NamedTuple):
    """Figures printed by a paper or its repository; None where it prints none."""

    params: float | None  # millions
    gmacs: float | None
    top1: float | None
    data: str = "ImageNet-1k"


class Entry(NamedTuple):
    name: str
    family: type[nn.Module]
    arguments: Mapping[str, Any]
    paper: str
    tags: tuple[str, ...]
    published: Published | None


ENTRIES: dict[str, Entry] = {}
ALIASES: dict[str, str] = {}


def register(
    family: type[nn.Module],
    variants: Mapping[str, Mapping[str, Any]],
    *,
    paper: str,
    aliases: Mapping[str, str] | None = None,
    weights: Mapping[str, Mapping[str, str | Mapping[str, Any]]] | None = None,
    published: Mapping[str, Published] | None = None,
    inputs: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Make every variant of a family known to timm.

    Args:
        weights: Name -> tag -> URL, or a mapping with `url` and what else differs for these weights; the first tag
            is the one `pretrained=True` takes.
        inputs: Name -> what differs from 224 pixels, ImageNet statistics and 1000 classes.
    """
    module = sys.modules[family.__module__]
    configs: dict[str, Any] = {}
    for name, arguments in variants.items():
        if name in ENTRIES or is_model(name):
            raise InputError(f"model {name!r} is registered already; give the new one another name")
        urls = (weights or {}).get(name, {})
        common = _config(**(inputs or {}).get(name, {}))
        tagged = {tag: {"url": made} if isinstance(made, str) else made for tag, made in urls.items()}
        configs |= {f"{name}.{tag}": {**common, **made} for tag, made in (tagged or {"untrained": {}}).items()}
        ENTRIES[name] = Entry(name, family, dict(arguments), paper, tuple(urls), (published or {}).get(name))
    # timm looks these up in the module that defines the entry points.
    module.default_cfgs = generate_default_cfgs(configs)  # type: ignore[attr-defined]
    for name in variants:
        register_model(_entrypoint(name, family, ENTRIES[name].arguments))
    ALIASES.update(aliases or {})


def _config(**changes: Any) -> dict[str, Any]:
    return (
        dict(
            num_classes=1000,
            input_size=(3, 224, 224),
            pool_size=None,
            fixed_input_size=False,
            crop_pct=0.9,
            interpolation="bicubic",
            mean=IMAGENET_DEFAULT_MEAN,
            std=IMAGENET_DEFAULT_STD,
            classifier="head",
        )
        | changes
    )


def _entrypoint(name: str, family: type[nn.Module], arguments: Mapping[str, Any]) -> Callable[..., nn.Module]:
    def entrypoint(pretrained: bool = False, pretrained_cfg: Any = None, **given: Any) -> nn.Module:
        overlay = given.pop("pretrained_cfg_overlay", None)

        def build(**settings: Any) -> nn.Module:
            model = family(**settings)
            if pretrained:  # ours instead of timm's: original key layouts, changed cluster counts, one clear report
                config = resolve_pretrained_cfg(name, pretrained_cfg, overlay).to_dict()
                model.load_weights(_weights_source(name, config))  # type: ignore[operator]
            return model

        given.pop("cache_dir", None)
        if given.get("features_only"):
            given = {**family.dense_arguments, **given}  # type: ignore[attr-defined]
        return build_model_with_cfg(
            build,
            name,
            pretrained=False,
            pretrained_cfg=pretrained_cfg,
            pretrained_cfg_overlay=overlay,
            feature_cfg=dict(out_indices=(0, 1, 2, 3), feature_cls="getter"),
            **{**arguments, **given},
        )

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__module__ = family.__module__
    return entrypoint


def _weights_source(name: str, config: Mapping[str, Any]) -> Any:
    source = config.get("state_dict") or config.get("file") or config.get("url")
    if not source:
        known = [f"{entry.name}.{tag}" for entry in ENTRIES.values() for tag in entry.tags]
        raise InputError(
            f"no public weights exist for {name}; nearest with weights: {nearest(name, known)}. "
            "Start without pretrained weights, or load your own file with model.load_weights(path)"
        )
    return source


def create_model(name: str, **arguments: Any) -> nn.Module:
    """`timm.create_model` that also knows original names, and explains unknown ones and weights it cannot get."""
    resolved = resolve_name(name)
    try:
        return timm.create_model(resolved, **arguments)
    except (InputError, TypeError, AssertionError):
        raise
    except Exception as error:  # the hub's client has many types for "no network"
        if not (arguments.get("pretrained") or resolved.startswith(("hf-hub:", "hf_hub:"))):
            raise
        reason = str(error).strip().split("\n")[0]
        raise InputError(
            f"the weights of {name} cannot be had ({type(error).__name__}: {reason}). They come from the Hugging Face "
            "hub: with no network here, download them on another machine and copy its cache folder (HF_HOME) over"
        ) from error


def resolve_name(name: str) -> str:
    """The registry name, with its tag if any, for a name of ours, of an original repository, or of timm."""
    if name.startswith(("hf-hub:", "hf_hub:", "local-dir:")):
        return name
    bare, _, tag = name.partition(".")
    bare = ALIASES.get(bare, bare)
    if not is_model(bare):
        known = list_models()
        raise InputError(f"unknown model {name!r}; nearest: {nearest(bare, known)}; all: vitreous info")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{bare}.*")]
    if tag and tag not in tags:
        raise InputError(f"{bare} has no weights tagged {tag!r}; it has: {', '.join(tags) or 'none'}")
    return f"{bare}.{tag}" if tag else bare


def list_models(pattern: str = "*") -> list[str]:
    """Names of our models that match a shell-style pattern, in the order of their tables."""
    from fnmatch import fnmatchcase

    return [name for name in ENTRIES if fnmatchcase(name, pattern)]
