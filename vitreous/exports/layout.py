"""A program in one layout: maps stay (B, C, H, W), where torch.export has them as tokens (B, H, W, C) in between.

To torch, tokens and channels-last maps are two views of the same memory. Other programs copy a map to go from one to
the other, and compute a 1x1 convolution with what follows it in one go, which they do not for a linear layer. So every
operation on tokens that are a view of a map is exchanged for the same on the map: linear layers become 1x1
convolutions, a LayerNorm averages over the first axis of a map, and what is done to single values stays. Views of views
are left out. What has no rule here, such as attention, still gets tokens. So does LayerNorm for ONNX Runtime, which
computes it in one go on tokens alone.

It is a change of the program and not of the layers, so that it serves every family, head and model of others alike.
"""

import operator
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, fx
from torch.export import ExportedProgram

aten = torch.ops.aten
TO_MAP = {4: [0, 3, 1, 2], 3: [0, 2, 1]}  # tokens (B, H, W, C) or (B, N, C) to (B, C, H, W) or (B, C, N)
TO_TOKENS = {4: [0, 2, 3, 1], 3: [0, 2, 1]}
AXIS_OF_MAP = {4: [0, 2, 3, 1], 3: [0, 2, 1]}  # where an axis of tokens is in a map

SINGLE_VALUES = (
    *(aten.gelu.default, aten.relu.default, aten.silu.default, aten.sigmoid.default),
    *(aten.add.Tensor, aten.sub.Tensor, aten.mul.Tensor, aten.div.Tensor, aten.addcmul.default),
)


def in_one_layout(program: ExportedProgram, *, norms: bool = True) -> ExportedProgram:
    """The same program, changed in place. Without `norms`, a LayerNorm stays one operation, on tokens."""
    graph = program.graph_module
    with graph._set_replace_hook(program.graph_signature.get_replace_hook()):
        _Layout(program, norms).rewrite()
    graph.recompile()
    return program


class _Layout:
    def __init__(self, program: ExportedProgram, norms: bool) -> None:
        self.graph, self.norms = program.graph, norms
        self.maps: dict[Any, fx.Node] = {}  # tokens -> the map with the same values
        self.parts: dict[Any, fx.Node] = {}  # tokens split along their channels -> the map that is split
        self.here: fx.Node | None = None
        values = [node.meta["val"] for node in self.graph.nodes if isinstance(node.meta.get("val"), Tensor)]
        self.fake_mode = values[0].fake_mode

    def rewrite(self) -> None:
        for node in list(self.graph.nodes):
            rule = RULES.get(node.target) if node.op == "call_function" else None
            if rule is None:
                continue
            self.here = node
            made = rule(self, node)
            if made is not None:
                tokens = self.insert(aten.permute.default, made, TO_TOKENS[value_of(made).ndim])
                self.maps[tokens] = made
                node.replace_all_uses_with(tokens)
        for node in reversed(list(self.graph.nodes)):  # not in-place operations, whose result nobody may use
            if not node.users and node.op == "call_function" and node.target in RULES:
                self.graph.erase_node(node)

    def insert(self, target: Any, *arguments: Any, **options: Any) -> fx.Node:
        """A new operation before the one at hand, with the shape of its result."""
        assert self.here is not None
        with self.graph.inserting_before(self.here):
            node = self.graph.call_function(target, arguments, options)
        node.meta = {key: value for key, value in self.here.meta.items() if key != "val"}
        with self.fake_mode:
            values = fx.map_arg((arguments, options), value_of)
            node.meta["val"] = target(*values[0], **values[1])
        return node

    # ---- rules: the map that takes the place of the node's tokens, or None -----------------------------------------

    def permuted(self, node: Any) -> None:
        source, axes = node.args[0], list(node.args[1])
        if axes == TO_TOKENS[4]:
            self.maps[node] = source
        elif axes == TO_MAP[4] and source in self.maps:
            node.replace_all_uses_with(self.maps[source])

    def transposed(self, node: Any) -> None:
        source, *axes = node.args
        rank = value_of(node).ndim
        if rank == 3 and {axis % rank for axis in axes} == {1, 2} and source in self.maps:
            node.replace_all_uses_with(self.maps[source])

    def unchanged(self, node: Any) -> None:
        """Dropout outside training."""
        if not node.args[2]:
            node.replace_all_uses_with(node.args[0])

    def of_single_values(self, node: Any) -> fx.Node | None:
        operands = [each for each in node.args if isinstance(each, fx.Node)]
        if value_of(node).ndim != 4 or not any(each in self.maps for each in operands):
            return None
        arguments = [self.aligned(each) if isinstance(each, fx.Node) else each for each in node.args]
        return self.insert(node.target, *arguments, **node.kwargs)

    def aligned(self, tokens: fx.Node) -> fx.Node:
        """As a map; of fewer axes, as what is broadcast over one."""
        if tokens in self.maps:
            return self.maps[tokens]
        rank = value_of(tokens).ndim
        if rank == 0:
            return tokens
        if rank == 1:
            return self.per_channel(tokens)
        axes = TO_MAP[4] if rank == 4 else [rank - 1, *range(rank - 1)]
        return self.insert(aten.permute.default, tokens, axes)

    def per_channel(self, vector: fx.Node) -> fx.Node:
        return self.insert(aten.unsqueeze.default, self.insert(aten.unsqueeze.default, vector, -1), -1)  # (C, 1, 1)

    def linear(self, node: Any) -> fx.Node | None:
        tokens, weight, *bias = node.args
        if tokens not in self.maps or value_of(tokens).ndim != 4:
            return None
        return self.insert(aten.conv2d.default, self.maps[tokens], self.per_channel(weight), *bias)

    def layer_norm(self, node: Any) -> fx.Node | None:
        tokens, shape, weight, bias, eps = (*node.args, *(None, None, 1e-5)[len(node.args) - 2 :])[:5]
        if not self.norms or tokens not in self.maps or value_of(tokens).ndim != 4 or len(shape) > 1:
            return None
        image = self.maps[tokens]
        centred = self.insert(aten.sub.Tensor, image, self.insert(aten.mean.dim, image, [1], True))
        square = self.insert(aten.mul.Tensor, centred, centred)
        variance = self.insert(aten.add.Tensor, self.insert(aten.mean.dim, square, [1], True), eps)
        made = self.insert(aten.mul.Tensor, centred, self.insert(aten.rsqrt.default, variance))
        if weight is not None:
            made = self.insert(aten.mul.Tensor, made, self.per_channel(weight))
        return made if bias is None else self.insert(aten.add.Tensor, made, self.per_channel(bias))

    def mean(self, node: Any) -> None:
        """Over channels: there is no layout in what is left."""
        tokens, axes, kept = (*node.args, False)[:3]
        over_channels = tokens in self.maps and value_of(tokens).ndim == 4 and [axis % 4 for axis in axes] == [3]
        if over_channels and not kept:
            node.replace_all_uses_with(self.insert(aten.mean.dim, self.maps[tokens], [1], False, **node.kwargs))

    def flattened(self, node: Any) -> fx.Node | None:
        tokens, *axes = node.args
        if tokens not in self.maps or value_of(tokens).ndim != 4 or axes != [1, 2]:
            return None
        return self.insert(aten.flatten.using_ints, self.maps[tokens], 2, 3)  # (B, C, N)

    def along_axis(self, node: Any) -> fx.Node | None:
        """Softmax and slices: the same axis, elsewhere."""
        tokens, axis, *rest = node.args
        if tokens not in self.maps:
            return None
        rank = value_of(tokens).ndim
        return self.insert(node.target, self.maps[tokens], AXIS_OF_MAP[rank][axis % rank], *rest, **node.kwargs)

    def joined(self, node: Any) -> fx.Node | None:
        tokens, axis = node.args[0], (*node.args[1:], 0)[0]
        if not all(each in self.maps for each in tokens) or value_of(node).ndim != 4:
            return None
        return self.insert(aten.cat.default, [self.maps[each] for each in tokens], AXIS_OF_MAP[4][axis % 4])

    def split(self, node: Any) -> None:
        tokens, sizes, axis = (*node.args, 0)[:3]
        if tokens in self.maps and value_of(tokens).ndim == 4:
            self.parts[node] = self.insert(node.target, self.maps[tokens], sizes, AXIS_OF_MAP[4][axis % 4])

    def part(self, node: Any) -> fx.Node | None:
        source, number = node.args
        return self.insert(operator.getitem, self.parts[source], number) if source in self.parts else None

    def size(self, node: Any) -> None:
        tokens, axis = node.args
        if tokens in self.maps:
            rank = value_of(tokens).ndim
            node.args = (self.maps[tokens], AXIS_OF_MAP[rank][axis % rank])


def value_of(node: Any) -> Any:
    return node.meta["val"] if isinstance(node, fx.Node) else node


RULES: dict[Any, Callable[[_Layout, Any], fx.Node | None]] = {
    aten.permute.default: _Layout.permuted,
    aten.transpose.int: _Layout.transposed,
    aten.dropout.default: _Layout.unchanged,
    aten.linear.default: _Layout.linear,
    aten.layer_norm.default: _Layout.layer_norm,
    aten.mean.dim: _Layout.mean,
    aten.flatten.using_ints: _Layout.flattened,
    aten.softmax.int: _Layout.along_axis,
    aten.slice.Tensor: _Layout.along_axis,
    aten.cat.default: _Layout.joined,
    aten.split_with_sizes.default: _Layout.split,
    operator.getitem: _Layout.part,
    aten.sym_size.int: _Layout.size,
    **dict.fromkeys(SINGLE_VALUES, _Layout.of_single_values),
}
