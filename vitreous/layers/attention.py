"""Multi-head attention of a grid of queries, fused unless a tap records the weights.

Shapes: B batch, H W grid, N = HW, M keys, C channels, h heads, d = C / h.
"""

from collections.abc import Sequence
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.layers.tap import Tap
from vitreous.runtime.device import cpu_multiplies_bf16


def split_heads(x: Tensor, heads: int) -> Tensor:
    return x.unflatten(-1, (heads, -1)).transpose(1, 2)  # (B, N, C) -> (B, h, N, d)


MOST_IN_STEPS = 256  # keys, or queries; with more of both, the weights would fill the memory
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
        out = dot_product_attention(q, k, v, keys, dropout=dropout)  # (B, h, N, d)
    else:
        weights = attention_weights(q, k, keys)
        weights = tap(weights.transpose(-2, -1).unflatten(-1, grid))  # (B, h, M, H, W)
        weights = F.dropout(weights, dropout).flatten(-2).transpose(-2, -1)  # (B, h, N, M)
        out = weights.to(v.dtype) @ v
    return out.transpose(1, 2).flatten(2)  # (B, N, C)


def dot_product_attention(
    q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, *, dropout: float = 0.0
) -> Tensor:
    """Attention (B, h, N, d), fused, or in steps where that is faster. The mask is False, or added to the scores."""
    if not faster_in_steps(q, k):
        return F.scaled_dot_product_attention(q, k, v, mask, dropout_p=dropout)
    return F.dropout(attention_weights(q, k, mask), dropout).to(v.dtype) @ v


def attention_weights(q: Tensor, k: Tensor, mask: Tensor | None = None) -> Tensor:
    """(B, h, N, M), of which each query's sum to one, in single precision at least."""
    logits = (q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1)
    if mask is not None:
        logits = logits.masked_fill(~mask, -torch.inf) if mask.dtype == torch.bool else logits + mask
    return logits.softmax(-1, torch.promote_types(logits.dtype, torch.float32))


def faster_in_steps(q: Tensor, k: Tensor) -> bool:
    """Whether the fused kernel loses: learning in bfloat16 on a CPU that multiplies it, with few keys or few queries.

    The kernel leaves these instructions unused. With 100 keys, forwards and backwards took 2.5 to 5 times as long fused
    as in steps (AMD EPYC, AVX-512). Inference would gain less, and need memory for the weights of all queries.
    """
    if not isinstance(q, Tensor) or not torch.is_grad_enabled() or q.dtype != torch.bfloat16:  # (a tracer's stand-in)
        return False
    few = min(q.shape[-2], k.shape[-2]) <= MOST_IN_STEPS
    return few and q.device.type == "cpu" and cpu_multiplies_bf16()
