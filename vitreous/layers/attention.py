"""Multi-head attention of a grid of queries, fused unless a tap records the weights.

Shapes: B batch, H W grid, N = HW, M keys, C channels, h heads, d = C / h.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.layers.tap import Tap


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, N, C) -> (B, h, N, d)


CLOSED = 1e-35  # factor on the weight of a closed key: nothing beside any other, and still a number if it is alone


class Gates(NamedTuple):
    """Factors on M keys, 1 for no change: tensors (1 or B, M), or None for all 1.

    `logit` multiplies a key's weight before the softmax normalises, so that 0 is attention without that key; `value`
    multiplies the key's value and leaves the weights of the other keys as they are.
    """

    logit: Tensor | None = None
    value: Tensor | None = None

    def closing(self, closed: Sequence[int], count: int, device: torch.device) -> "Gates":
        """The same gates, with these of `count` keys closed for good.

        In float32 or finer: half precision cannot tell CLOSED from 0.
        """
        factors = torch.ones(1, count, device=device)
        factors[:, list(closed)] = CLOSED
        return self._replace(logit=factors if self.logit is None else self.logit * factors.to(self.logit.device))

    def applied(self, v: Tensor) -> tuple[Tensor, Tensor | None]:
        """Gated values (B, h, M, d), and what `attend` takes as `keys`."""
        keys = None if self.logit is None else self.logit.log()[:, None, None].to(v.dtype)  # (B, 1, 1, M)
        return v if self.value is None else v * self.value[:, None, :, None].to(v.dtype), keys


def attend(
    q: Tensor,
    k: Tensor,
    v: Tensor,
    tap: Tap,
    grid: tuple[int, int],
    *,
    dropout: float = 0.0,
    keys: Tensor | None = None,
) -> Tensor:
    """Attention of q (B, h, N, d) over k, v (B, h, M, d), with heads merged: (B, N, C).

    This is where attention with keys shared by all queries chooses between the fused kernel and explicit weights. A
    listening tap receives the weights as maps (B, h, M, H, W): for each key, the weight it has at every position.
    `keys` (1, M) is False for masked keys, or holds numbers to add to all scores of a key.
    """
    if not tap.listening:
        out = F.scaled_dot_product_attention(q, k, v, keys, dropout_p=dropout)
        return out.transpose(1, 2).flatten(2)  # (B, N, C)
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, h, N, M)
    if keys is not None:
        logits = logits.masked_fill(~keys, -torch.inf) if keys.dtype == torch.bool else logits + keys
    weights = logits.softmax(-1)
    weights = tap(weights.transpose(-2, -1).unflatten(-1, grid))  # (B, h, M, H, W)
    weights = F.dropout(weights, dropout)
    return (weights.flatten(-2).transpose(-2, -1) @ v).transpose(1, 2).flatten(2)  # (B, N, C)
