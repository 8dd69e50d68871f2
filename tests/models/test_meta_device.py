"""Models made on the meta device and filled from a state dict: nothing else may be needed to make them whole."""

import pytest
import torch

from tests.support.families import FAMILIES, assert_whole, awake, small

IMAGES = torch.randn(2, 3, 96, 160)
KINDS = (*FAMILIES, "paca_small_mlp", "paca_tiny_blockwise", "paca_tiny_linear")


@torch.no_grad()
@pytest.mark.parametrize("name", KINDS)
def test_filled_models_are_the_same(name: str) -> None:
    model = awake(small(name, 1)).eval()
    expected, state = model(IMAGES), model.state_dict()
    with torch.device("meta"):
        assigned, copied = small(name, 1).eval(), small(name, 1).eval()
    assert_whole(assigned)
    assigned.load_state_dict(state, assign=True)
    assert torch.equal(assigned(IMAGES), expected)
    copied.to_empty(device="cpu")
    for tensor in (*copied.parameters(), *copied.buffers()):
        tensor.fill_(torch.nan if tensor.is_floating_point() else -1)
    copied.load_state_dict(state)
    assert torch.equal(copied(IMAGES), expected)
