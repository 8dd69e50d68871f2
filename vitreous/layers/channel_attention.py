"""Attention between the channels of each head, over all positions; the cost is linear in the number of positions.

Shapes: B batch, H W grid, N = HW, C channels, h heads, d = C / h.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.layers.exporting import exports_one_size
from vitreous.layers.inference import eager_inference, linear
from vitreous.layers.plain import is_plain
from vitreous.layers.tap import Tap


class ChannelAttention(nn.Module):
    """Cross-covariance attention: in each head, softmax over d x d scaled correlations of its channels.

    The paper's ablations: `normalise=False` takes products in place of correlations, and `learned_temperature=False`
    scales by one.
    """

    def __init__(self, dim: int, heads: int, *, normalise: bool = True, learned_temperature: bool = True) -> None:
        super().__init__()
        self.heads, self.normalise = heads, normalise
        self.temperature = nn.Parameter(torch.ones(heads, 1, 1)) if learned_temperature else None
        self.qkv = nn.Linear(dim, 3 * dim)
        self.channel_attention = Tap()
        self.proj = nn.Linear(dim, dim)

    def forward(self, x: Tensor) -> Tensor:
        _, H, W, C = x.shape
        tokens = x.flatten(1, 2)  # (B, N, C)
        # Three C x C products per image must cost less than the two passes over all positions that they save.
        # Sums of squares over all positions leave the range of float16, which autocast would use.
        exact = x.dtype.itemsize >= 4 and not torch.is_autocast_enabled("cpu")
        many = exact and (eager_inference(x) or exports_one_size(x)) and H * W > 2 * C
        shorter = many and is_plain(self.qkv, self.proj)
        return (self.through_covariance(tokens) if shorter else self.per_position(tokens)).unflatten(1, (H, W))

    def per_position(self, tokens: Tensor) -> Tensor:
        """As published: queries, keys and values of every position."""
        q, k, v = linear(self.qkv, tokens).unflatten(-1, (3, self.heads, -1)).unbind(2)  # (B, N, h, d)
        if q.dtype.itemsize >= 4:
            # Normalising the d x d products costs far less than normalising q and k.
            # On a CPU, squares and a sum take a quarter of the time of vector_norm.
            weights = self.attention(channel_products(q, k), q.square().sum(1), k.square().sum(1))
        else:
            # Sums over thousands of positions leave half precision's range, so normalise first, in float32.
            if self.normalise:
                q, k = (F.normalize(t.float(), dim=1).to(t.dtype) for t in (q, k))
            weights = self.attention(channel_products(q, k)).to(v.dtype)
        # One head at a time reads v in place; all heads at once would copy it first.
        parts = [torch.bmm(v[:, :, i], weights[:, i].transpose(1, 2)) for i in range(self.heads)]  # (B, N, d)
        return linear(self.proj, torch.cat(parts, -1))

    def through_covariance(self, tokens: Tensor) -> Tensor:
        """The same from the tokens' C x C covariance: half the products if positions outnumber channels.

        With S = X'X, q'k is Wq S Wk', the squared lengths of q are the diagonal of Wq S Wq', and values, attention
        and projection combine into one C x C matrix that is applied to X. A one appended to X carries the biases.
        """
        N, C = tokens.shape[1:]
        sums = tokens.sum(1, keepdim=True)  # (B, 1, C)
        ones = torch.cat([sums, sums.new_full((len(sums), 1, 1), N)], -1)  # (B, 1, C + 1)
        S = torch.cat([torch.cat([tokens.transpose(1, 2) @ tokens, sums.transpose(1, 2)], -1), ones], 1)
        q, k, v = torch.cat([self.qkv.weight, self.qkv.bias[:, None]], -1).chunk(3)  # (C, C + 1)
        qS, kS = q @ S, k @ S  # (B, C, C + 1)
        qk = qS.unflatten(1, (self.heads, -1)) @ k.unflatten(0, (self.heads, -1)).transpose(-2, -1)  # (B, h, d, d)
        squares = ((t * w).sum(-1).unflatten(1, (self.heads, -1)) for t, w in ((qS, q), (kS, k)))  # (B, h, d)
        weights = self.attention(qk, *squares)
        onward = weights.transpose(-2, -1) @ self.proj.weight.t().unflatten(0, (self.heads, -1))  # (B, h, d, C)
        whole = v.t() @ onward.flatten(1, 2)  # (B, C + 1, C)
        return torch.baddbmm(whole[:, C:] + self.proj.bias, tokens, whole[:, :C])

    def attention(self, qk: Tensor, *squares: Tensor) -> Tensor:
        """Softmax (B, h, d, d) of correlations, given products and, unless these are normalised, squared lengths."""
        if squares and self.normalise:
            q_length, k_length = (square.clamp(min=0).sqrt().clamp(min=1e-12) for square in squares)  # (B, h, d)
            qk = qk / (q_length[..., None] * k_length[..., None, :])
        return self.channel_attention((qk if self.temperature is None else qk * self.temperature).softmax(-1))


def channel_products(q: Tensor, k: Tensor) -> Tensor:
    """Products of channels over all positions of (B, N, h, d), one head at a time to read them in place."""
    return torch.stack([torch.bmm(q[:, :, i].transpose(1, 2), k[:, :, i]) for i in range(q.shape[2])], 1)
