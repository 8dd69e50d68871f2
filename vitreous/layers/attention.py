"""Multi-head attention of a grid of queries, fused unless a tap wants to see the weights.

Shapes: B batch, H W grid, N = HW, M keys, C channels, h heads, d = C / h.
"""

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.layers.tap import Tap


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, N, C) -> (B, h, N, d)


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
    """Attention of q (B, h, N, d) over k, v (B, h, M, d), with heads merged again: (B, N, C).

    Where all queries share what they look at, this is the place that chooses between the fused kernel and explicit
    weights. A listening tap receives the weights picture-shaped, (B, h, M, H, W): for each key, how much every position
    looks at it. `keys` (1, M) is False for keys that nobody may look at.
    """
    if not tap.listening:
        out = F.scaled_dot_product_attention(q, k, v, keys, dropout_p=dropout)
        return out.transpose(1, 2).flatten(2)  # (B, N, C)
    logits = q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5  # (B, h, N, M)
    weights = (logits if keys is None else logits.masked_fill(~keys, -torch.inf)).softmax(-1)
    weights = tap(weights.transpose(-2, -1).unflatten(-1, grid))  # (B, h, M, H, W)
    weights = F.dropout(weights, dropout)
    return (weights.flatten(-2).transpose(-2, -1) @ v).transpose(1, 2).flatten(2)  # (B, N, C)
