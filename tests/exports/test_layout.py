"""A program in one layout computes what the model computes, without linear layers and copies on maps."""

from copy import deepcopy
from pathlib import Path

import pytest
import torch
from torch import Tensor, nn
from torch.export import ExportedProgram

from tests.support.families import FAMILIES, ONE_OF_EACH, awake, small
from vitreous.exports.graph import export_onnx, traced_program
from vitreous.exports.layout import in_one_layout
from vitreous.layers.tap import record, tap_names
from vitreous.layers.windows import ExportedWindows

aten = torch.ops.aten
TOLERANCE = 1e-4  # of the largest value: sums of float32 in another order


def assert_same(found: Tensor, wanted: Tensor) -> None:
    assert found.shape == wanted.shape
    assert (found - wanted).abs().max() <= TOLERANCE * wanted.abs().max()


def count(program: ExportedProgram, target: object) -> int:
    return sum(node.target is target for node in program.graph.nodes)


def cases() -> list:
    """Every family at an odd size; all sizes are left to the slow tests, as following a model takes seconds."""
    shapes = ((2, 3, 75, 99), (1, 3, 64, 64), (1, 3, 129, 40))
    return [
        pytest.param(name, shape, marks=[pytest.mark.slow] * (shape != shapes[0] or name not in ONE_OF_EACH))
        for name in FAMILIES
        for shape in shapes
    ]


@pytest.mark.parametrize(("name", "shape"), cases(), ids=str)
def test_every_family_gives_the_same_in_one_layout(name: str, shape: tuple) -> None:
    model, images = awake(small(name, 1)).eval(), torch.randn(shape)
    program = traced_program(model, images)
    permutes = count(program, aten.permute.default)
    with_norms = in_one_layout(deepcopy(program), norms=False)
    changed = in_one_layout(program)
    assert count(changed, aten.permute.default) < permutes / 2, "copies are left"
    assert count(with_norms, aten.layer_norm.default) >= count(changed, aten.layer_norm.default)
    with torch.no_grad():
        wanted = model(images)
        for one in (changed, with_norms):
            one.validate()
            assert_same(one.module()(images), wanted)


@pytest.mark.slow
@pytest.mark.parametrize("name", FAMILIES)
def test_every_family_gives_the_same_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
    model, images = awake(small(name, 1)).eval(), torch.randn(2, 3, 75, 99)
    export_onnx(model, images, tmp_path / "model.onnx")
    session = onnxruntime.InferenceSession(tmp_path / "model.onnx", providers=["CPUExecutionProvider"])
    with torch.no_grad():
        assert_same(torch.from_numpy(session.run(None, {"images": images.numpy()})[0]), model(images))


@pytest.mark.slow
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_pyramids_give_the_same(name: str) -> None:
    model, images = awake(small(name, 1, features_only=True)).eval(), torch.randn(2, 3, 70, 98)
    changed = in_one_layout(traced_program(model, images))
    with torch.no_grad():
        for found, wanted in zip(changed.module()(images), model(images), strict=True):
            assert_same(found, wanted)


class Shown(nn.Module):
    """A model with its cluster maps beside its answer."""

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        self.model = model
        self.names = [name for name in tap_names(model) if name.endswith((".clusters", ".attention.map"))]

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        with record(self.model, *self.names) as maps:
            answer = self.model(images)
        return answer, *(maps[name] for name in self.names)


def test_maps_of_listening_taps_are_the_same() -> None:
    model, images = Shown(awake(small("paca_tiny", 1))).eval(), torch.randn(2, 3, 64, 96)
    changed = in_one_layout(traced_program(model, images))
    with torch.no_grad():
        found, wanted = changed.module()(images), model(images)
    assert len(found) == len(wanted) == 1 + 3 + 4  # clusters of three stages, attention of all
    for one, other in zip(found, wanted, strict=True):
        assert_same(one, other)


@pytest.mark.slow
def test_programs_for_any_size_are_changed_too() -> None:
    options = dict(dims=(24, 48), depths=(1, 1), heads=(2, 4), clusters=(10, 0), mlp_ratios=(2, 2))
    model = awake(small("paca_tiny", 1, **options)).eval()
    changed = in_one_layout(traced_program(model, torch.randn(2, 3, 64, 96), dynamic=True)).module()
    for shape in ((1, 3, 48, 50), (3, 3, 80, 64)):
        images = torch.randn(shape)
        with torch.no_grad():
            assert_same(changed(images), model(images))


class Mixed(nn.Module):
    """All that may meet a map: vectors, positions, other maps, numbers, parts, a LayerNorm without weights."""

    def __init__(self) -> None:
        super().__init__()
        self.norm, self.bare = nn.LayerNorm(8), nn.LayerNorm(8, elementwise_affine=False)
        self.wide = nn.Linear(8, 16, bias=False)
        self.gamma, self.position = nn.Parameter(torch.randn(8)), nn.Parameter(torch.randn(5, 7, 8))

    def forward(self, images: Tensor) -> tuple[Tensor, ...]:
        x = images.permute(0, 2, 3, 1)
        y = torch.addcmul(x + self.position, self.gamma, self.bare(self.norm(x))) * 2
        left, right = self.wide(y).split([10, 6], -1)
        z = torch.cat([right.sigmoid(), left[..., 2:4]], -1)[:, 1:, :6]
        return z.permute(0, 3, 1, 2), z.mean(-1), z.flatten(1, 2).softmax(1).transpose(1, 2), z


@pytest.mark.parametrize("norms", [True, False])
def test_what_meets_a_map_is_turned_with_it(norms: bool) -> None:
    model, images = Mixed().eval(), torch.randn(2, 8, 5, 7)
    changed = in_one_layout(traced_program(model, images), norms=norms)
    assert count(changed, aten.linear.default) == 0
    assert count(changed, aten.layer_norm.default) == (0 if norms else 2)
    with torch.no_grad():
        for found, wanted in zip(changed.module()(images), model(images), strict=True):
            assert_same(found, wanted)


def test_a_graph_for_one_size_keeps_the_plain_windows_and_no_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ExportedWindows, "prepare", None)  # calling it would fail
    traced_program(small("mat_1", 1), torch.randn(1, 3, 64, 96))
    program = traced_program(small("partialformer_b0", 1), torch.randn(1, 3, 64, 96))
    assert count(program, aten.topk.default) == 4
    assert count(program, aten.argsort.stable) == 0
