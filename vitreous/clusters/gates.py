"""Taking clusters away inside a PaCa model, exactly, and running only the part of the network that notices.

    with gated(model, stage=3, logit_gate=gate):      # (M,) or (B, M); 0 removes a cluster, 1 leaves it
        output = model(images)

    rest = PartialForward(model, images, layer)                 # everything before the clusters matter: computed once
    rest.scores(target, gates)                        # (B, S) for S sets of gates (S, M) or (B, S, M)

A cluster is removed in all blocks that use it: the softmax runs over the others, as if it had never been. Where the
classifier itself reads clusters, a removed one is not read and the weights of the others stay, so that the logit loses
exactly what the cluster contributed. Both gates are plain tensors, so gradients with respect to them are exact. Gates
live on the model while the block runs: one thread at a time. Where many rows are scored, `PartialForward` gives every
thread a copy of the modules, with the same weights.

Shapes: B images, M clusters, S sets of gates, R rows = pairs of an image and a set.
"""

import copy
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.attribution.method import readouts, rows_at_once, trunk
from vitreous.attribution.target import Target
from vitreous.clusters.layer import Layer, choose_layer
from vitreous.errors import InputError
from vitreous.layers.attention import Gates
from vitreous.layers.tap import record
from vitreous.runtime.threads import concurrent_pieces, map_concurrently, twin

ROWS_AT_ONCE = 8  # run together: of 4, 8, 16 and 32 none costs less for each row, and this leaves some for every thread
MANY_PIXELS = 32 * 224 * 224  # of all rows, from which on copies of the model for several threads are soon paid back


def cluster_layer(model: nn.Module, stage: int | None = None, block: int | None = None) -> Layer:
    """A clustering of a model of any task; by default the last one."""
    return choose_layer(trunk(model), stage=stage, block=block)


def cluster_stage(model: nn.Module, stage: int) -> tuple[str, Any]:
    """The path and the module of the clusters with this number: a stage, or the readout of one."""
    backbone = trunk(model)
    read = readouts(backbone).get(stage)
    path = f"stages.{stage - 1}" if read is None else f"readout.{read - 1}"
    return path, backbone.get_submodule(path)


def cluster_blocks(model: nn.Module, stage: int) -> dict[str, Any]:
    """All modules of a stage that make clusters or attend to them, by path. A readout does both, once."""
    path, module = cluster_stage(model, stage)
    if not hasattr(module, "blocks"):
        return {path: module}
    return {f"{path}.blocks.{j}": block for j, block in enumerate(module.blocks)}


def cluster_count(model: nn.Module, layer: Layer) -> int:
    blocks = cluster_blocks(model, layer.stage).values()
    makers = [block.clustering.logits.out_features for block in blocks if block.clustering is not None]
    return makers[0] if makers else trunk(model).teacher.clusters[layer.stage - 1]


def users(model: nn.Module, layer: Layer) -> list[int]:
    """Blocks of the layer's stage, from zero, that attend to its clusters: from the one that makes them to the next."""
    blocks = list(cluster_blocks(model, layer.stage).values())
    if layer.block is None:
        return list(range(len(blocks)))
    first = layer.block - 1
    later = [j for j, block in enumerate(blocks) if j > first and block.clustering is not None]
    return list(range(first, later[0] if later else len(blocks)))


def attentions(model: nn.Module, layer: Layer) -> dict[str, Any]:
    """What attends to the layer's clusters, by path."""
    blocks = list(cluster_blocks(model, layer.stage).items())
    return {f"{path}.attention": block.attention for path, block in (blocks[j] for j in users(model, layer))}


def maps_of(model: nn.Module, images: Tensor, layer: Layer) -> tuple[Any, Tensor]:
    """The model's output, and the layer's cluster maps (B, M, H, W)."""
    with record(trunk(model), layer.tap) as recorded:
        output = model(images)
    return output, recorded[layer.tap]


@contextmanager
def gated(
    model: nn.Module,
    stage: int | Layer | None = None,
    *,
    block: int | None = None,
    logit_gate: Tensor | None = None,
    value_gate: Tensor | None = None,
) -> Iterator[None]:
    """Gate the clusters of a stage (numbered from one; default: the last with clusters) in all blocks that use them.

    Args:
        model: Any model with a PaCa backbone.
        stage: Its number, or a `Layer`.
        block: The block that makes the clusters, where several do.
        logit_gate: (M,) or (B, M), zero or more; multiplies each cluster's attention weight before normalisation.
        value_gate: (M,) or (B, M); multiplies what is read from each cluster.
    """
    layer = stage if isinstance(stage, Layer) else cluster_layer(model, stage, block)
    count = cluster_count(model, layer)
    gates = Gates(
        None if logit_gate is None else check_logit_gate(as_rows("logit_gate", logit_gate, count)),
        None if value_gate is None else as_rows("value_gate", value_gate, count),
    )
    with ExitStack() as cleanup:
        for attention in attentions(model, layer).values():
            cleanup.callback(setattr, attention, "gates", attention.gates)
            attention.gates = gates
        yield


def as_rows(name: str, gate: Tensor, count: int) -> Tensor:
    if gate.ndim not in (1, 2) or gate.shape[-1] != count:
        raise InputError(f"{name} of shape {tuple(gate.shape)} given; this stage takes ({count},) or (batch, {count})")
    return gate if gate.ndim == 2 else gate[None]


def check_logit_gate(gate: Tensor) -> Tensor:
    values = gate.detach()
    if not bool((values >= 0).all() & values.isfinite().all()):
        raise InputError("logit_gate holds a negative number or NaN; 0 removes a cluster, 1 leaves it as it is")
    if not bool((values > 0).any(1).all()):
        raise InputError("every cluster was to be removed, which leaves nothing to attend to; keep at least one")
    return gate


def without(clusters: Sequence[int] | Tensor, count: int) -> Tensor:
    """The gate (M,) that removes these clusters."""
    numbers = [int(m) for m in clusters]
    wrong = [m for m in numbers if not 0 <= m < count]
    if wrong:
        raise InputError(f"cluster {wrong[0]} does not exist; this stage has clusters 0 to {count - 1}")
    gate = torch.ones(count)
    gate[numbers] = 0
    return gate


class PartialForward:
    """The part of a model that depends on the gates of one layer, for fixed images.

    The modules before it ran once; while the rest runs they hand out what they gave then. `output` is the model's
    ungated output.
    """

    def __init__(self, model: nn.Module, images: Tensor, layer: Layer) -> None:
        self.model, self.images, self.layer = model, images, layer
        self.count = cluster_count(model, layer)
        self.cached: dict[nn.Module, Any] = {}
        with ExitStack() as cleanup, torch.no_grad():
            for module in before_gates(model, layer):
                handle = module.register_forward_hook(lambda m, _inputs, output: self.cached.__setitem__(m, output))
                cleanup.callback(handle.remove)
            self.output = model(images)

    def run(self, rows: Tensor, *, logit_gate: Tensor | None = None, value_gate: Tensor | None = None) -> Any:
        """The model's output for the images `rows`, one gate for each row."""
        with self.replayed(rows), gated(self.model, self.layer, logit_gate=logit_gate, value_gate=value_gate):
            return self.model(select_rows(self.images, rows))

    def without(self, rows: Tensor, kept: Tensor) -> Any:
        """The output for these rows with the clusters removed for which `kept` (R, M) is 0."""
        return self.run(rows, **{"value_gate" if self.layer.is_readout else "logit_gate": kept})

    @contextmanager
    def replayed(self, rows: Tensor) -> Iterator[None]:
        with ExitStack() as cleanup:
            for module, output in self.cached.items():
                chosen = select_rows(output, rows)
                cleanup.callback(module.__dict__.pop, "forward")
                module.__dict__["forward"] = lambda *_inputs, chosen=chosen: chosen
            yield

    def scores(self, target: Target, gates: Tensor, *, batch_size: int = ROWS_AT_ONCE) -> Tensor:
        """The target without the clusters of each set, (S, M) for all images or (B, S, M), 0 for those: (B, S)."""
        return torch.cat(list(self.parts(target, gates, batch_size=batch_size))).unflatten(0, (len(self.images), -1))

    def parts(self, target: Target, gates: Tensor, *, batch_size: int = ROWS_AT_ONCE) -> Iterator[Tensor]:
        """The same in the order of its rows, `batch_size` after the other. Between two parts the model is as before."""
        rows_each = rows_at_once(self.images, batch_size)
        gates = gates.to(self.images.device).expand(len(self.images), -1, -1)
        image, chosen = torch.arange(len(gates)).repeat_interleave(gates.shape[1]), gates.flatten(0, 1)  # (R,), (R, M)
        pieces = list(zip(image.split(rows_each), chosen.split(rows_each), strict=True))

        def part(rest: PartialForward, rows: Tensor, gate: Tensor) -> Tensor:
            with torch.no_grad():
                return target.select(rows)(rest.without(rows, gate))

        together = min(len(pieces), concurrent_pieces()) if self.worth_threads(len(image)) else 1
        if together == 1:
            return (part(self, *piece) for piece in pieces)
        return map_concurrently(part, [self.twin() for _ in range(together)], pieces)

    def worth_threads(self, rows: int) -> bool:
        """A rule that looks at sizes only: numbers must not depend, in their last bits, on how busy the machine is."""
        many = rows * self.images.shape[-2] * self.images.shape[-1] >= MANY_PIXELS
        return many and self.images.device.type == "cpu" and not torch.is_autocast_enabled("cpu")

    def twin(self) -> "PartialForward":
        """The same on a twin of the model, which another thread may gate."""
        other = copy.copy(self)
        other.model = twin(self.model)
        same = dict(zip(self.model.modules(), other.model.modules(), strict=True))
        other.cached = {same[module]: output for module, output in self.cached.items()}
        return other

    def score(self, target: Target) -> Tensor:
        """The target with nothing removed, (B,)."""
        return target(self.output)


def before_gates(model: nn.Module, layer: Layer) -> list[nn.Module]:
    """Modules whose output no gate of the layer can change, the outermost of each."""
    backbone, blocks = trunk(model), list(cluster_blocks(model, layer.stage).values())
    used = users(model, layer)[0]
    stage, first = cluster_stage(model, layer.stage)[1], blocks[used]
    modules = [backbone.teacher, backbone.stem, *backbone.stages[: layer.stage - 1], first.clustering]
    if not layer.is_readout:  # the keys and values of the first gated block are gated after they are made
        modules += [stage.downsample, *blocks[:used], first.norm1]
        modules += [first.attention.q, first.attention.k, first.attention.v]
    return [module for module in modules if module is not None]


def select_rows(output: Any, rows: Tensor) -> Any:
    """Rows of every tensor in a module's output; a single image is repeated without a copy."""
    if isinstance(output, tuple | list):
        return type(output)(select_rows(item, rows) for item in output)
    if not isinstance(output, Tensor):
        return output
    return output.expand(len(rows), *output.shape[1:]) if len(output) == 1 else output[rows.to(output.device)]
