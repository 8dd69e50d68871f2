"""PaCa and XCiT as graphs: torch.export with dynamic batch, height and width, and torch.compile without breaks.

The other families' graphs take longer to make; their own slow tests do it.
"""

import pytest
import timm
import torch
from torch.export import Dim, export

import vitreous  # noqa: F401  (registers the models)

SMALL = {
    "paca_tiny": dict(depths=(1, 1, 2, 1)),
    "paca_tiny_teacher": dict(depths=(1, 1, 1, 1)),
    "paca_b0": dict(depths=(1, 1, 1, 1)),
    "xcit_nano_12_p16": dict(depth=4),
}
# Reordered sums of float32; the outputs are of the order of one.
TOLERANCE = dict(rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("name", SMALL)
def test_export_with_every_size_dynamic(name: str) -> None:
    model = timm.create_model(name, num_classes=5, **SMALL[name]).eval()
    dynamic = {0: Dim.DYNAMIC, 2: Dim.DYNAMIC, 3: Dim.DYNAMIC}
    program = export(model, (torch.randn(2, 3, 96, 160),), dynamic_shapes=(dynamic,)).module()
    for shape in ((1, 3, 70, 99), (3, 3, 160, 96), (2, 3, 225, 131)):
        images = torch.randn(shape)
        with torch.no_grad():
            torch.testing.assert_close(program(images), model(images), **TOLERANCE)


@pytest.mark.slow
@pytest.mark.parametrize("name", SMALL)
def test_compile_without_a_break(name: str) -> None:
    torch._dynamo.reset()
    model = timm.create_model(name, num_classes=5, **SMALL[name]).eval()
    compiled = torch.compile(model, fullgraph=True)
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        torch.testing.assert_close(compiled(images), model(images), **TOLERANCE)
