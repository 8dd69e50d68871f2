"""Maps on a grid inside any model: where they are and how to read them, found by running the model once.

    place = find_place(model, images)            # the last map with more than one position that the answer depends on
    with watch(model, place) as seen:
        output = model(images)                   # the same pass gives the map, with its gradient
    features = place.read(seen[place])           # (B, C, H, W)

Nobody names a layer or writes a function that reshapes tokens. The first picture of a size goes through the model with
every module watched, and once back: this tells the shape of what each module gives, and which positions of it the
answer still depends on. A class token makes the patches of a vision transformer's last block idle; the map is then
what enters that block, behind its norm. What was found is kept for pictures of that size. Our own backbones, and timm's
feature extractors below a detector's or segmenter's head, say themselves where their maps are.

Shapes: B images, C channels, H W grid, N tokens.
"""

import math
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Literal, NamedTuple
from weakref import WeakKeyDictionary

import torch
from timm.models._features import FeatureDictNet, FeatureGetterNet, FeatureHookNet
from torch import Tensor, nn

from vitreous.attribution.attention import record_attention
from vitreous.errors import InputError, nearest
from vitreous.models.base import Backbone

Axes = Literal["NCHW", "NHWC", "NLC", "NCL"]  # the last two: tokens, and tokens with the channels first
CONTAINERS = (nn.Sequential, nn.ModuleList, nn.ModuleDict)
EXTRACTORS = (FeatureDictNet, FeatureGetterNet, FeatureHookNet)
MOST_PREFIX_TOKENS = 16  # class, distillation and register tokens before those of the patches
USUAL_SIZE = (224, 224)  # of the image that finds maps when there is none yet and the model does not tell


class MapPlace(NamedTuple):
    """Where a map is, and how the output of that module becomes (B, C, H, W)."""

    path: str  # of the module
    layout: Axes
    grid: tuple[int, int]
    prefix: int = 0  # tokens before those of the patches
    item: int | str | None = None  # which of several outputs

    def read(self, output: Tensor) -> Tensor:
        """(B, C, H, W) of what the module gave, or of its gradient."""
        if self.layout == "NCHW":
            return output
        if self.layout == "NHWC":
            return output.permute(0, 3, 1, 2)
        tokens = output if self.layout == "NLC" else output.transpose(1, 2)
        return tokens[:, self.prefix :].transpose(1, 2).unflatten(2, self.grid)


class AttentionPlace(NamedTuple):
    """A layer in which all positions of the image are looked at: by each other, or by a class token alone."""

    path: str
    grid: tuple[int, int]
    prefix: int
    by_all: bool  # every token looks, and not only the first


class Anatomy(NamedTuple):
    """What one pass showed about a model."""

    places: tuple[MapPlace, ...]  # the last of each grid, in the order of the network
    readable: dict[str, MapPlace]  # every module that gives a map
    unnormed: MapPlace | None = None  # the last before any norm, which would make all positions equally long
    attention: tuple[AttentionPlace, ...] = ()
    mixed_otherwise: bool = True  # also by other means than such attention
    reads: Tensor | None = None  # (N,), which tokens of the last layer of tokens the answer depends on


class Step(NamedTuple):
    """What a module gave in the traced pass."""

    path: str
    output: Tensor
    item: int | str | None
    vector: Tensor | None  # what it was given, if that has one vector for each image


_known: WeakKeyDictionary[nn.Module, dict[tuple[int, int], Anatomy]] = WeakKeyDictionary()


def find_place(
    model: nn.Module, images: Tensor | None = None, *, stage: int | None = None, layer: str | None = None
) -> MapPlace:
    """The last map, that of a stage (each grid is one, from 1), or that of the module with a path."""
    found = anatomy(model, images)
    if layer is not None:
        if layer not in found.readable:
            given = "there is no such module" if not has_module(model, layer) else "it gives no map on a grid"
            known = list(found.readable)
            raise InputError(f"layer {layer!r} cannot be used: {given}; nearest: {nearest(layer, known)}")
        return found.readable[layer]
    if not found.places:
        raise InputError(reason_for_none(model))
    if stage is not None and not 1 <= stage <= len(found.places):
        raise InputError(f"stage {stage} does not exist; this model has stages 1 to {len(found.places)}")
    usable = [place for place in found.places if math.prod(place.grid) > 1]
    return found.places[stage - 1] if stage is not None else (usable or found.places)[-1]


def reason_for_none(model: nn.Module) -> str:
    return (
        f"no module of {type(unwrapped(model)).__name__} gives features on a grid of more than one position, on which "
        "the answer depends; occlusion, rise and the gradients of pixels need none"
    )


def is_differentiable(model: nn.Module) -> bool:
    """Whether gradients, weights and layers can be asked for; a graph that another program runs shows none of them."""
    return getattr(model, "differentiable", True)


def lacks_map(model: nn.Module) -> str | None:
    """Why a model has no map on a grid; None if it has one."""
    if not is_differentiable(model):
        return "an exported model has no layers to look into; explain the run that it was exported from"
    try:
        return None if anatomy(model).places else reason_for_none(model)
    except InputError as reason:
        return str(reason)


@contextmanager
def watch(model: nn.Module, *places: MapPlace) -> Iterator[dict[MapPlace, Tensor]]:
    """What the modules at these places give in the passes within the block, in their own layout, with gradients."""
    seen: dict[MapPlace, Tensor] = {}

    def keep(place: MapPlace) -> Any:
        return lambda _module, _inputs, output: seen.__setitem__(place, picked(output, place.item))

    with ExitStack() as cleanup:
        for place in places:
            cleanup.callback(model.get_submodule(place.path).register_forward_hook(keep(place)).remove)
        yield seen


def has_module(model: nn.Module, path: str) -> bool:
    return path in dict(model.named_modules())


def picked(output: Any, item: int | str | None) -> Tensor:
    return output if item is None else output[item]


# ---- finding -----------------------------------------------------------------------------------------------------


def anatomy(model: nn.Module, images: Tensor | None = None) -> Anatomy:
    """Of pictures like these; without any, what is known already, or what the model's usual size shows."""
    if not is_differentiable(model):
        return Anatomy((), {})
    known = _known.setdefault(model, {})
    if images is None and known:
        return next(reversed(known.values()))
    size = usual_size(model) if images is None else (images.shape[-2], images.shape[-1])
    if size not in known:
        declared = declared_anatomy(model, size)
        known[size] = declared or trace(model, images[:1] if images is not None else sample_image(model, size))
    return known[size]


def share_anatomy(copied: nn.Module, model: nn.Module) -> None:
    """A copy has its maps where the model has them, whatever its weights have become."""
    _known[copied] = _known.setdefault(model, {})


def usual_size(model: nn.Module) -> tuple[int, int]:
    """Height and width that a model was made for, where it or what is in it tells."""
    for module in model.modules():
        config = getattr(module, "pretrained_cfg", None)
        told = config.get("input_size") if isinstance(config, Mapping) else None
        told = told or getattr(module, "size", None)  # of `Framed` and of adapters
        if isinstance(told, tuple) and len(told) in (2, 3) and all(isinstance(side, int) for side in told):
            return told[-2], told[-1]
    return USUAL_SIZE


def sample_image(model: nn.Module, size: tuple[int, int]) -> Tensor:
    like = next(model.parameters(), torch.empty(0))
    return torch.randn(1, 3, *size, generator=torch.Generator().manual_seed(0)).to(like.device, like.dtype)


def declared_anatomy(model: nn.Module, size: tuple[int, int]) -> Anatomy | None:
    """Of a model with one of our backbones, or one of timm's feature extractors, inside."""
    for path, module in model.named_modules():
        if isinstance(module, Backbone):
            paths = [".".join(filter(None, (path, f"stages.{i}.output"))) for i in range(len(module.stages))]
            grids = [cells(size, stride) for stride in module.strides]
            found = [MapPlace(name, "NCHW", grid) for name, grid in zip(paths, grids, strict=True)]
            return Anatomy(tuple(found), {place.path: place for place in found}, found[-1])
        if isinstance(module, EXTRACTORS) and not any(isinstance(part, Backbone) for part in module.modules()):
            layout: Axes = "NHWC" if getattr(module, "output_fmt", None) == "NHWC" else "NCHW"
            info: Any = module.feature_info
            names = info.module_name() if type(module) is FeatureDictNet else range(len(info.reduction()))
            grids = [cells(size, stride) for stride in info.reduction()]
            found = [MapPlace(path, layout, grid, item=name) for name, grid in zip(names, grids, strict=True)]
            return Anatomy(tuple(found), {}, found[-1])
    return None


def cells(size: tuple[int, int], stride: int) -> tuple[int, int]:
    return -(-size[0] // stride), -(-size[1] // stride)


@torch.enable_grad()
def trace(model: nn.Module, image: Tensor) -> Anatomy:
    """One pass with every module watched, and one back."""
    with record_attention(model) as weights:
        steps, output = run_watched(model, image)
    size, prefixes = (image.shape[-2], image.shape[-1]), declared_prefixes(model)
    channels_last = any(getattr(module, "output_fmt", None) == "NHWC" for module in model.modules())
    readable: dict[str, MapPlace] = {}
    grids: list[tuple[int, int]] = []  # of convolutions so far, which cannot be misread
    for step in steps:
        if isinstance(model.get_submodule(step.path), nn.Conv2d) and step.output.ndim == 4:
            grids.append((step.output.shape[2], step.output.shape[3]))
        place = understand(step, size, grids[::-1], prefixes, channels_last)
        readable.pop(step.path, None)
        if place is not None:
            readable[step.path] = place
    slopes = slopes_of(steps, readable, output)
    alive = [path for path, place in readable.items() if depends_on_several(place, slopes[path])]
    usable = candidates(model, readable, alive)
    paths = stage_paths(model, usable, readable)
    plain = [path for path in usable if computes(model.get_submodule(path))]
    if paths:
        paths[-1] = entrance(model, paths[-1], readable, alive)
    between = set(central(model))
    tokens = [slopes[path] for path in readable if path in between and readable[path].layout == "NLC"]
    return Anatomy(
        tuple(readable[path] for path in paths),
        readable,
        readable[plain[-1]] if plain else None,
        tuple(attention_places(weights, steps, size, grids[::-1], prefixes)),
        mixes_otherwise(model, steps, weights),
        None if not tokens or tokens[-1] is None else (tokens[-1][0] != 0).any(-1).float().cpu(),
    )


def slopes_of(steps: list[Step], readable: Mapping[str, MapPlace], output: Any) -> dict[str, Tensor | None]:
    """The gradient of the answer by each map; of the pooled features, where the classifier is still all zeros."""
    outputs = {step.path: step.output for step in steps if step.path in readable}
    slopes = dict(zip(outputs, gradients(output, list(outputs.values())), strict=True))
    if any(slope is not None and slope.any() for slope in slopes.values()):
        return slopes
    pooled = [step.vector for step in steps if step.vector is not None]
    return dict(zip(outputs, gradients(pooled, list(outputs.values())), strict=True))


def attention_places(
    weights: Mapping[str, Tensor],
    steps: list[Step],
    size: tuple[int, int],
    grids: list[tuple[int, int]],
    prefixes: tuple[int, ...],
) -> Iterator[AttentionPlace]:
    given = {step.path: step.output.shape for step in steps}
    for path, attention in weights.items():
        queries, keys = attention.shape[-2:]
        whole = len(attention) == 1 and queries in (1, keys)
        answered = given.get(path, ())[1:2] == (queries,)  # one token for each query, or the weights are of channels
        found = token_grid(keys, size, grids, prefixes) if whole and answered else None
        if found is not None:
            yield AttentionPlace(path, found[1], found[0], queries == keys)


def mixes_otherwise(model: nn.Module, steps: list[Step], weights: Mapping[str, Tensor]) -> bool:
    """Whether positions also meet in windows, in convolutions, or in grids of several sizes."""
    if not weights or len({attention.shape for attention in weights.values()}) > 1:
        return True
    if any(len(attention) > 1 or attention.shape[-1] != attention.shape[-2] for attention in weights.values()):
        return True
    paths = [step.path for step in steps]
    first = min(paths.index(path) for path in weights if path in paths)
    later = (model.get_submodule(path) for path in paths[first:])
    return any(isinstance(module, nn.Conv2d) and max(module.kernel_size) > 1 for module in later)


def stage_paths(model: nn.Module, paths: list[str], readable: Mapping[str, MapPlace]) -> list[str]:
    """The last path of each grid, but for what lies in a block that goes on to another grid."""
    ends = {}
    for path in paths:
        above = [path[:place] for place, sign in enumerate(path) if sign == "."]
        blocks = [readable[up] for up in above if up in readable and not is_container(model, up)]
        if path == paths[-1] or all(block.grid == readable[path].grid for block in blocks):
            ends[readable[path].grid] = path
    return sorted(ends.values(), key=paths.index)


def computes(module: nn.Module) -> bool:
    return not is_norm(module) and any(True for _ in module.parameters())


def is_norm(module: nn.Module) -> bool:
    return "Norm" in type(module).__name__


def is_container(model: nn.Module, path: str) -> bool:
    return isinstance(model.get_submodule(path), CONTAINERS)


def run_watched(model: nn.Module, image: Tensor) -> tuple[list[Step], Any]:
    """The outputs of all modules in the order in which they were ready, and the answer; in evaluation mode."""
    steps: list[Step] = []

    def keep(path: str) -> Any:
        def hook(_module: nn.Module, inputs: Any, output: Any) -> None:
            given = inputs[0] if inputs and isinstance(inputs[0], Tensor) and inputs[0].ndim == 2 else None
            several = isinstance(output, list | tuple)
            for item, value in enumerate(output) if several else [(None, output)]:
                if isinstance(value, Tensor) and value.is_floating_point() and value.requires_grad and len(value) == 1:
                    steps.append(Step(path, value, item, given))
                    return

        return hook

    modes = {module: module.training for module in model.modules()}
    with ExitStack() as cleanup:
        for path, module in model.named_modules():
            if path:
                cleanup.callback(module.register_forward_hook(keep(path)).remove)
        try:
            output = model.eval()(image.detach().clone().requires_grad_())
        except (AssertionError, RuntimeError, ValueError, TypeError) as reason:  # models have no common way to say so
            text = (str(reason).splitlines() or [type(reason).__name__])[0]
            height, width = image.shape[-2:]
            raise InputError(
                f"{type(model).__name__} cannot be run on an image of {width} x {height} pixels ({text}); "
                "give preprocess=Preprocess(size=(height, width)) with its own size"
            ) from reason
        finally:
            for module, training in modes.items():
                module.training = training
    return steps, output


def understand(
    step: Step, size: tuple[int, int], grids: list[tuple[int, int]], prefixes: tuple[int, ...], channels_last: bool
) -> MapPlace | None:
    """How an output is read as a map, if it can be. `grids`: those of the convolutions before it, the last first."""
    shape = step.output.shape
    if len(shape) == 4:
        ways: list[tuple[Axes, tuple[int, int]]] = [("NCHW", (shape[2], shape[3])), ("NHWC", (shape[1], shape[2]))]
        if channels_last:
            ways.reverse()
        for test in (lambda grid: grid in grids, lambda grid: fits(grid, size)):
            for layout, grid in ways:
                if test(grid):
                    return MapPlace(step.path, layout, grid, item=step.item)
    if len(shape) == 3:
        found = token_grid(shape[1], size, grids, prefixes)
        if found is not None and math.prod(found[1]) in map(math.prod, grids):
            return MapPlace(step.path, "NLC", found[1], found[0], step.item)
        for grid in grids:
            if math.prod(grid) == shape[2] and shape[1] > 1:
                return MapPlace(step.path, "NCL", grid, item=step.item)
        return None if found is None else MapPlace(step.path, "NLC", found[1], found[0], step.item)
    return None


def token_grid(
    count: int, size: tuple[int, int], grids: list[tuple[int, int]], prefixes: tuple[int, ...]
) -> tuple[int, tuple[int, int]] | None:
    """How many of some tokens come before those of the patches, and the grid of these."""
    for prefix in (*prefixes, *range(MOST_PREFIX_TOKENS + 1)):
        for grid in grids:
            if math.prod(grid) == count - prefix > 1:
                return prefix, grid
    for prefix in (*prefixes, 0, 1, 2):
        grown = grid_of(count - prefix, size)
        if grown is not None:
            return prefix, grown
    return None


def fits(grid: tuple[int, int], size: tuple[int, int]) -> bool:
    """Whether a grid has the image's proportions, but for what rounding may change, and is no finer."""
    (rows, columns), (height, width) = grid, size
    low, high = (rows - 1) / (columns + 1), (rows + 1) / max(columns - 1, 0.5)
    return rows <= height and columns <= width and low < height / width < high


def grid_of(count: int, size: tuple[int, int]) -> tuple[int, int] | None:
    """Rows and columns of some positions of an image, if a grid of its proportions has so many."""
    if count < 2:
        return None
    ways = [(rows, count // rows) for rows in range(1, count + 1) if count % rows == 0]
    best = min(ways, key=lambda grid: abs(math.log(grid[0] * size[1] / (grid[1] * size[0]))))
    return best if fits(best, size) else None


def declared_prefixes(model: nn.Module) -> tuple[int, ...]:
    told = (getattr(module, "num_prefix_tokens", None) for module in model.modules())
    return tuple(dict.fromkeys(count for count in told if isinstance(count, int)))


def gradients(output: Any, inputs: list[Tensor]) -> list[Tensor | None]:
    """Of a random sum of all that the model answers."""
    answers = [value.float() for value in tensors(output) if value.requires_grad]
    if not answers or not inputs:
        return [None] * len(inputs)
    random = torch.Generator().manual_seed(0)
    total = sum((answer * torch.randn(answer.shape, generator=random).to(answer)).sum() for answer in answers)
    return list(torch.autograd.grad(total, inputs, allow_unused=True, retain_graph=True))  # type: ignore[arg-type]


def tensors(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, Mapping | list | tuple):
        for one in value.values() if isinstance(value, Mapping) else value:
            yield from tensors(one)


def depends_on_several(place: MapPlace, slope: Tensor | None) -> bool:
    """Whether the answer depends on more than one position."""
    return slope is not None and int((place.read(slope) != 0).any(1).sum()) > 1


def unwrapped(model: nn.Module) -> nn.Module:
    """The model within modules that hold nothing else."""
    while len(children := list(model.children())) == 1 and not isinstance(model, CONTAINERS):
        model = children[0]
    return model


def central(model: nn.Module) -> list[str]:
    """Paths of the modules that stand on the way of everything: those at the top, and the elements of containers."""
    modules = dict(model.named_modules())
    outer = {id(child) for child in unwrapped(model).children()}
    return [
        path
        for path, module in modules.items()
        if path and (id(module) in outer or isinstance(modules[path.rpartition(".")[0]], CONTAINERS))
    ]


def candidates(model: nn.Module, readable: Mapping[str, MapPlace], alive: list[str]) -> list[str]:
    """Central modules whose maps the answer depends on, and which are no part of one whose map is idle."""
    chosen = set(central(model))
    blocks = [path for path in readable if path in chosen and not is_container(model, path)]
    idle = tuple(f"{path}." for path in blocks if path not in alive)
    return [
        path
        for path in alive
        if path in chosen
        and math.prod(readable[path].grid) > 1
        and not path.startswith(idle)
        and not isinstance(model.get_submodule(path), nn.Linear)  # scores of classes for each token, and no features
    ]


def entrance(model: nn.Module, path: str, readable: Mapping[str, MapPlace], alive: list[str]) -> str:
    """The norm with which the next block begins, where that block's own map is idle; else the path itself."""
    parent, _, name = path.rpartition(".")
    siblings = [key for key, _ in model.get_submodule(parent).named_children()]
    after = siblings[siblings.index(name) + 1 :][:1]
    for key in after:
        block = ".".join(filter(None, (parent, key)))
        if block in alive or block not in readable:
            return path
        for child, module in model.get_submodule(block).named_children():
            inner = f"{block}.{child}"
            if is_norm(module) and inner in alive and readable[inner].grid == readable[path].grid:
                return inner
    return path
