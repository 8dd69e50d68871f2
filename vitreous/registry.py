"""Registers the variants of a family with timm, with weights by tag.

A model file only calls `register(Family, VARIANTS, …)`; then `timm.create_model("name", …)` works. What timm's records
have no place for (the paper, its published figures) is kept in `ENTRIES` for `vitreous info`.
"""

import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, nullcontext
from pathlib import Path
from typing import Any, NamedTuple

import timm
from timm.data import IMAGENET_DEFAULT_MEAN, IMAGENET_DEFAULT_STD
from timm.models import (
    build_model_with_cfg,
    generate_default_cfgs,
    is_model,
    load_model_config_from_hf,
    load_state_dict_from_hf,
    register_model,
)
from timm.models._builder import resolve_pretrained_cfg
from timm.models._hub import load_model_config_from_path
from torch import Tensor, nn
from torch.nn.modules.module import (
    register_module_buffer_registration_hook,
    register_module_parameter_registration_hook,
)

from vitreous.errors import InputError, nearest
from vitreous.files.hub import NOT_IN_CACHE, hub_or_cache
from vitreous.files.limits import EXTRA_WEIGHTS_MARGIN, MAX_ARGUMENT_VALUE, MAX_STORED_TENSORS

FOLDER_PREFIX, HUB_PREFIXES = (
    "local-dir:",
    ("hf-hub:", "hf_hub:"),
)  # timm's prefixes of models that are stored with their settings


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
CHECKSUMS: dict[str, str] = {}  # URL of published weights -> sha256, where the publisher gives it


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
        weights: Name -> tag -> URL, or a mapping with `url`, the file's `sha256` if its publisher gives one, and
            whatever else differs for these weights; `pretrained=True` takes the first tag.
        inputs: Name -> what differs from 224 pixels, ImageNet statistics and 1000 classes.
    """
    module = sys.modules[family.__module__]
    configs: dict[str, Any] = {}
    for name, arguments in variants.items():
        if name in ENTRIES or is_model(name):
            raise InputError(f"model {name!r} is registered already; give the new one another name")
        urls = (weights or {}).get(name, {})
        common = _config(**(inputs or {}).get(name, {}))
        tagged = {tag: {"url": made} if isinstance(made, str) else dict(made) for tag, made in urls.items()}
        CHECKSUMS.update({made["url"]: made.pop("sha256") for made in tagged.values() if "sha256" in made})
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
        overlay, cache = given.pop("pretrained_cfg_overlay", None), given.pop("cache_dir", None)

        def build(**settings: Any) -> nn.Module:
            model = family(**settings)
            if pretrained:  # ours instead of timm's: original key layouts, changed cluster counts, one clear report
                config = resolve_pretrained_cfg(name, pretrained_cfg, overlay).to_dict()
                model.load_weights(_weights_source(name, config, cache))  # type: ignore[operator]
            return model

        stride = given.pop("output_stride", 32)
        if stride != 32:  # for which timm dilates convolutions
            raise InputError(
                f"output_stride={stride} given; {name} has no dilated form. Use a head that takes stride 32"
            )
        if given.get("features_only"):
            given = {**family.dense_arguments, **given}  # type: ignore[attr-defined]
        made_by = given.pop("feature_cls", "getter")
        if made_by != "getter":
            raise InputError(f"feature_cls={made_by!r} given; {name} makes its maps itself: leave it out")
        model: Any = build_model_with_cfg(
            build,
            name,
            pretrained=False,
            pretrained_cfg=pretrained_cfg,
            pretrained_cfg_overlay=overlay,
            feature_cfg=dict(out_indices=(0, 1, 2, 3), feature_cls="getter"),
            **{**arguments, **given},
        )
        backbone = getattr(model, "model", model)
        model.pretrained_cfg |= dict(first_conv=backbone.first_conv, pool_size=_pool_size(model, backbone))
        return model

    entrypoint.__name__ = entrypoint.__qualname__ = name
    entrypoint.__module__ = family.__module__
    return entrypoint


def _pool_size(model: Any, backbone: Any) -> tuple[int, ...] | None:
    """The grid that is pooled at the default image size, as in timm's records; None for a class token."""
    if backbone.pooling[0] != "avg":
        return None
    return tuple(-(-side // backbone.strides[-1]) for side in model.pretrained_cfg["input_size"][1:])


def _weights_source(name: str, config: Mapping[str, Any], cache: str | Path | None) -> Any:
    if config.get("source") == "hf-hub":
        return load_state_dict_from_hf(config["hf_hub_id"], cache_dir=cache)
    source = config.get("state_dict") or config.get("file") or config.get("url")
    if not source:
        known = [f"{entry.name}.{tag}" for entry in ENTRIES.values() for tag in entry.tags]
        raise InputError(
            f"no public weights exist for {name}; nearest with weights: {nearest(name, known)}. "
            f"Your own file: vitreous predict FILE IMAGES --model {name}, vitreous train {name} DATA --weights FILE, "
            "or in Python model.load_weights(FILE)"
        )
    return source


def create_model(name: str, **arguments: Any) -> nn.Module:
    """Like `timm.create_model`; also knows original names, and explains unknown names and missing weights."""
    resolved = resolve_name(name)
    folder = Path(resolved.removeprefix(FOLDER_PREFIX)) if resolved.startswith(FOLDER_PREFIX) else None
    if folder is not None:
        stored_arguments(resolved)  # refuses what no model can be built with
    with (
        _explained(
            name,
            fetches=arguments.get("pretrained") or resolved.startswith(HUB_PREFIXES),
            hub=_comes_from_hub(resolved, arguments),
        ),
        nullcontext() if folder is None else construction_limit(stored_bytes(folder)),
    ):
        return timm.create_model(resolved, **arguments)


def _comes_from_hub(resolved: str, arguments: Mapping[str, Any]) -> bool:
    """Whether weights or settings are the Hugging Face hub's, and not in a folder, at another URL or given."""
    if is_stored(resolved):
        return resolved.startswith(HUB_PREFIXES)
    given = {"pretrained_cfg", "pretrained_cfg_overlay"} & set(arguments)
    return bool(arguments.get("pretrained") and not given and resolve_pretrained_cfg(resolved).hf_hub_id)


def is_stored(name: str) -> bool:
    """Whether a name means a model stored with its settings and weights: `local-dir:FOLDER`, `hf-hub:USER/NAME`."""
    return name.startswith((FOLDER_PREFIX, *HUB_PREFIXES))


def stored_arguments(name: str) -> tuple[str, dict[str, Any]]:
    """The architecture of a name, and the arguments that are stored with it, if any."""
    resolved = resolve_name(name)
    if not is_stored(resolved):
        return resolved, {}
    stored_here = resolved.startswith(FOLDER_PREFIX)
    read = load_model_config_from_path if stored_here else load_model_config_from_hf
    with _explained(name, fetches=True, hub=not stored_here):
        _, architecture, arguments = read(resolved.partition(":")[2])
        if not is_plausible_argument(arguments):
            raise InputError(f"the model_args of {name} hold more than texts and numbers up to {MAX_ARGUMENT_VALUE:,}")
    return architecture, arguments


def is_plausible_argument(value: Any, depth: int = 5) -> bool:
    """Whether a value is acceptable among the arguments of a stored model; checked before building it."""
    if isinstance(value, list | tuple | dict):
        values = value.values() if isinstance(value, dict) else value
        return (
            depth > 0
            and len(value) <= MAX_ARGUMENT_VALUE
            and all(is_plausible_argument(one, depth - 1) for one in values)
        )
    return not isinstance(value, int | float) or abs(value) <= MAX_ARGUMENT_VALUE


@contextmanager
def construction_limit(stored_bytes: int) -> Iterator[None]:
    """Within the block, no model may grow beyond what weights of this size can fill.

    Torch reports every tensor before it is filled, so an oversized model is refused before it uses memory.
    """
    tensors, weights, most = 0, 0, stored_bytes + EXTRA_WEIGHTS_MARGIN

    def count(module: nn.Module, name: str, tensor: Tensor | None) -> None:
        nonlocal tensors, weights
        tensors, weights = tensors + 1, weights + (0 if tensor is None else tensor.numel())
        if tensors > MAX_STORED_TENSORS or weights > most:
            what = (
                f"more than {MAX_STORED_TENSORS:,} tensors"
                if tensors > MAX_STORED_TENSORS
                else f"more than {most:,} weights"
            )
            raise InputError(f"its arguments ask for {what}, and the file of weights has {stored_bytes:,} bytes")

    hooks = [register_module_parameter_registration_hook(count), register_module_buffer_registration_hook(count)]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def stored_bytes(folder: Path) -> int:
    """Total size of the files in a model folder that may be weights."""
    return sum(file.stat().st_size for file in folder.glob("*.*") if file.suffix in (".safetensors", ".bin", ".pth"))


@contextmanager
def _explained(name: str, *, fetches: bool, hub: bool) -> Iterator[None]:
    unreachable = None
    try:
        with hub_or_cache() if hub else nullcontext() as unreachable:
            yield
    except (InputError, TypeError, AssertionError):
        raise
    except Exception as error:  # the hub's client has many exceptions for "no network"
        absent = unreachable is not None and isinstance(error, NOT_IN_CACHE)
        reason = unreachable if absent else f"{type(error).__name__}: " + str(error).strip().split("\n")[0]
        if name.startswith(FOLDER_PREFIX):
            raise InputError(
                f"{name} cannot be used ({reason}). It needs a config.json and weights as vitreous or timm write them"
            ) from error
        if not fetches:
            raise
        raise InputError(
            f"the weights of {name} cannot be fetched ({reason}). They come from the Hugging Face "
            "hub: with no network here, download them on another machine and copy its cache folder (HF_HOME) over, or "
            f"give a file of weights in place of the name, with --architecture {name.partition('.')[0]}"
        ) from error


def resolve_name(name: str) -> str:
    """The name in the registry, with its tag if any, for a name of ours, of an original repository, or of timm."""
    if name.startswith(FOLDER_PREFIX) and not Path(name.removeprefix(FOLDER_PREFIX), "config.json").is_file():
        raise InputError(
            f"{name} given, but that folder has no config.json; give one such as {FOLDER_PREFIX}runs/photos/best"
        )
    if is_stored(name):
        return name
    bare, _, tag = name.partition(".")
    bare = ALIASES.get(bare, bare)
    if not is_model(bare):
        known = [*list_models(), *timm.list_models()]
        raise InputError(f"unknown model {name!r}; nearest: {nearest(bare, known)}; all: vitreous info")
    tags = [full.partition(".")[2] for full in timm.list_pretrained(f"{bare}.*")]
    if tag and tag not in tags:
        raise InputError(f"{bare} has no weights tagged {tag!r}; it has: {', '.join(tags) or 'none'}")
    return f"{bare}.{tag}" if tag else bare


def list_models(pattern: str = "*") -> list[str]:
    """Names of our models that match a shell-style pattern, in the order of their tables."""
    from fnmatch import fnmatchcase

    return [name for name in ENTRIES if fnmatchcase(name, pattern)]
