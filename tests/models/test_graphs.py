"""Every family as a graph: torch.export with dynamic batch, height and width, and torch.compile without breaks.

Making graphs takes long, and longer the more stages there are. `make test` exports models of one block of each kind;
the slow tests do all that can differ: a block in every stage, switches that change the program, other examples.
"""

import copy

import pytest
import torch
from torch import nn
from torch.export import Dim, export

from tests.support.families import FAMILIES, awake, small

DYNAMIC = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
EXAMPLE = (2, 3, 96, 160)
SHAPES = ((1, 3, 70, 99), (3, 3, 160, 96), (2, 3, 225, 131))

TWO = dict(dims=(24, 48), depths=(2, 1), mlp_ratios=(2, 2))
SHORT = {
    "paca_tiny": dict(TWO, heads=(2, 4), clusters=(10, 0)),
    "paca_tiny_teacher": dict(TWO, heads=(2, 4), clusters=(10, 9), teacher=dict(depths=(1, 1))),
    "paca_b0": dict(TWO, heads=(2, 4), clusters=(10, 0)),
    "xcit_nano_12_p16": dict(),
    "emsnet_xxtiny": dict(dims=(16,), depths=(1,), mlp_ratios=(2,)),
    "mat_1": dict(dims=(24, 48), depths=(1, 1), heads=(3, 6), mixers=("window", "mat")),
    "partialformer_b0": dict(dims=(24, 48), depths=(1, 1), heads=(2, 4), fractions=(1 / 32, 1 / 2)),
}
LONG = [
    *((name, {}) for name in FAMILIES),
    ("mat_1", dict(mixers=("none", "window", "mat", "mat"))),
    ("partialformer_b0", dict(project="needed", max_foreground=4)),
    ("xcit_nano_12_p16", dict(dense=True)),
]


def assert_equal(graph: nn.Module, model: nn.Module, shapes: tuple) -> None:
    """Up to sums of float32 in another order: about 1e-6 of the largest value, which is of the order of one."""
    for shape in shapes:
        images = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(graph(images), model(images), rtol=1e-4, atol=1e-4, msg=str(shape))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (not name.startswith(("paca", "xcit")))) for name in SHORT]
)
def test_export_with_every_size_dynamic(name: str) -> None:
    model = awake(small(name, 1, **SHORT[name])).eval()
    program = export(model, (torch.randn(EXAMPLE),), dynamic_shapes=(DYNAMIC,)).module()
    assert_equal(program, model, SHAPES)


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("example", [(2, 3, 64, 64), (2, 3, 330, 290)], ids=["small", "large"])
@pytest.mark.parametrize(("name", "options"), LONG, ids=str)
def test_one_exported_program_serves_all_sizes(name: str, options: dict, example: tuple) -> None:
    """Also those whose coarsest grids have a single cell, though the example's have more, and the other way round."""
    model = awake(small(name, 1, **options)).eval()
    program = export(model, (torch.randn(example),), dynamic_shapes=(DYNAMIC,)).module()
    assert_equal(program, model, ((1, 3, 40, 61), (2, 3, 33, 34), (2, 3, 97, 230), (3, 3, 320, 288)))


@pytest.mark.slow
@pytest.mark.timeout(1800)
@pytest.mark.parametrize("backend", ["aot_eager", "inductor"])
@pytest.mark.parametrize("name", SHORT)
def test_compile_without_a_break(name: str, backend: str) -> None:
    """Traced for one size, then for any; code is made for one size alone, as it takes the compiler long."""
    torch._dynamo.reset()
    model = awake(small(name, 1, **SHORT[name])).eval()
    compiled = torch.compile(model, fullgraph=True, backend=backend)
    assert_equal(compiled, model, SHAPES if backend == "aot_eager" else SHAPES[:1])


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_compiled_training_with_gradient_checkpointing() -> None:
    """Whose statistics of batch norms must not count the images of a recomputed block twice."""
    torch._dynamo.reset()
    plain = small("emsnet_xxtiny", 1, **SHORT["emsnet_xxtiny"]).train()
    frugal = copy.deepcopy(plain)
    frugal.set_grad_checkpointing()
    images = torch.randn(2, 3, 64, 64)
    plain(images).square().sum().backward()
    torch.compile(frugal, fullgraph=True, backend="aot_eager")(images).square().sum().backward()
    for key, parameter in plain.named_parameters():
        torch.testing.assert_close(frugal.get_parameter(key).grad, parameter.grad, rtol=1e-4, atol=1e-5, msg=key)
    for key, buffer in plain.named_buffers():
        torch.testing.assert_close(frugal.get_buffer(key), buffer, msg=key)
