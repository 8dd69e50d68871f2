"""Partial attention: full attention for a foreground of few tokens, one shared query for all others.

In every layer the tokens with the highest mean over channels are the foreground. They attend to one another, and to a
learned abstract token, with heads that are mixed before and after the softmax. The abstract token, having read the
foreground, becomes the only query over the background, and what it reads there is added to every background token.

Since nothing depends on the order within either set, tokens stay where they are: only the foreground is gathered, the
background is everything under a mask, and the result is written back over the image. The abstract token is number 0 of
1 + N; treated like the foreground it keeps every size above one, which torch.export would otherwise specialise on.

Shapes: B batch, H W grid, N = HW, F foreground tokens, m = F + 1, C channels, h heads, d = C / h, e h mixed heads.
"""

from dataclasses import dataclass
from fractions import Fraction
from typing import Annotated

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import Doc

from vitreous.layers.attention import dot_product_attention, split_heads
from vitreous.layers.inference import linear
from vitreous.layers.plain import is_plain
from vitreous.layers.tap import Tap


@dataclass(frozen=True)
class AttentionSettings:
    """Settings that the attention layers of a model share."""

    max_foreground: Annotated[
        int | None,
        Doc("Upper limit of foreground tokens, None for none. With it the cost grows linearly with the image."),
    ] = None
    sqa_residual: Annotated[
        bool, Doc("Add the normalised background tokens to their own update, as the paper's formula has it.")
    ] = True
    head_expansion: Annotated[int, Doc("Mixed heads per head.")] = 2
    bottleneck_ratio: Annotated[
        int, Doc("Narrowing of the two-layer network behind the background query, which has 8 channels at least.")
    ] = 32
    project: Annotated[
        str,
        Doc(
            '"all" makes queries, keys and values of every token, as published. "needed" computes the same function '
            "from the same weights with a seventh less work, as the background's need not be made."
        ),
    ] = "all"
    head_mixing: Annotated[
        bool, Doc("Mix heads before and after the softmax; False: the plain softmax of every head.")
    ] = True
    single_query: Annotated[
        bool, Doc("One query over the background; False: background tokens read nothing in attention.")
    ] = True


class HeadMixer(nn.Module):
    """Scores of h heads -> e h heads -> softmax over keys -> h heads. Starts as the plain softmax of every head."""

    def __init__(self, heads: int, expansion: int) -> None:
        super().__init__()
        self.expand = nn.Linear(heads, heads * expansion)
        self.reduce = nn.Linear(heads * expansion, heads)

    def reset(self) -> None:
        heads, wide = self.expand.in_features, self.expand.out_features
        identity = torch.eye(heads, device=self.expand.weight.device).repeat(wide // heads, 1)  # (e h, h)
        with torch.no_grad():
            self.expand.weight.copy_(identity)
            self.reduce.weight.copy_(identity.T * (heads / wide))

    def forward(self, scores: Tensor) -> Tensor:
        m = scores.shape[-1]
        wide = along_heads(self.expand, scores.flatten(2)).unflatten(2, (m, m)).softmax(-1)  # (B, e h, m, m)
        return along_heads(self.reduce, wide.flatten(2)).unflatten(2, (m, m))  # (B, h, m, m)


def along_heads(linear: nn.Linear, x: Tensor) -> Tensor:
    """A linear layer over the second axis of (B, h, n), without moving that axis if possible."""
    if not is_plain(linear):
        return linear(x.transpose(1, 2)).transpose(1, 2)
    return torch.baddbmm(linear.bias[:, None], linear.weight.expand(x.shape[0], -1, -1), x)


class PartialAttention(nn.Module):
    """Mixed-head attention among the foreground and one query over the background."""

    def __init__(self, dim: int, heads: int, fraction: Fraction, settings: AttentionSettings) -> None:
        super().__init__()
        self.heads, self.fraction, self.settings = heads, fraction, settings
        self.token = nn.Parameter(torch.zeros(dim))
        self.qkv = nn.Linear(dim, 3 * dim)
        self.mixer = HeadMixer(heads, settings.head_expansion) if settings.head_mixing else None
        self.proj = nn.Linear(dim, dim)
        hidden = max(8, dim // settings.bottleneck_ratio)
        self.spread: nn.Module | None = None
        if settings.single_query:
            self.spread = nn.Sequential(nn.Linear(dim, hidden), nn.LayerNorm(hidden), nn.ReLU(), nn.Linear(hidden, dim))
        self.score = Tap()  # (B, H, W) mean over channels, which decides what is foreground
        self.rank = Tap()  # (B, H, W) rank by score, 0 is first
        self.foreground = Tap()  # (B, H, W) True for the foreground
        self.positions = Tap()  # (B, F) position in the flattened grid of rows 1, 2, … of the next two
        self.unmixed = Tap()  # (B, h, m, m) scaled scores before the heads are mixed; row and column 0: abstract token
        self.mixed = Tap()  # (B, h, m, m) weights after it
        self.abstract = Tap()  # (B, h, H, W) how the abstract token reads the foreground
        self.background = Tap()  # (B, h, H, W) how it then reads the background

    def forward(self, x: Tensor, score: Tensor) -> Tensor:
        """Normalised tokens (B, H, W, C) and the scores (B, H, W) of the tokens before the norm."""
        B, H, W, C = x.shape
        z = torch.cat([self.token.to(x.dtype).expand(B, 1, C), x.flatten(1, 2)], 1)  # (B, 1 + N, C)
        chosen = self.choose(self.score(score))  # (B, m)
        rows = (chosen + torch.arange(B, device=x.device)[:, None] * z.shape[1]).flatten()  # (B m), in the whole batch
        needed = self.settings.project == "needed" or self.spread is None
        if needed and is_plain(self.qkv):
            front = self.attend_foreground(linear(self.qkv, gather_rows(z, rows, chosen)), chosen, (H, W))  # (B, m, C)
            if self.spread is None:
                return self.joined(z, z.clone(), rows, front, (H, W))
            read = self.attend_tokens(front[:, :1], z, chosen, (H, W))  # (B, 1, C)
        else:
            qkv = linear(self.qkv, z)  # (B, 1 + N, 3C)
            front = self.attend_foreground(gather_rows(qkv, rows, chosen), chosen, (H, W))  # (B, m, C)
            read = self.attend_background(front[:, :1], qkv[..., C:], chosen, (H, W))  # (B, 1, C)
        if self.spread is None:
            return self.joined(z, z.clone(), rows, front, (H, W))
        update = self.spread(read)
        out = z + update if self.settings.sqa_residual else update.expand_as(z).clone()  # (B, 1 + N, C)
        return self.joined(z, out, rows, front, (H, W))

    def joined(self, z: Tensor, background: Tensor, rows: Tensor, front: Tensor, grid: tuple[int, int]) -> Tensor:
        """The foreground written over the background: (B, H, W, C)."""
        out = background.flatten(0, 1).index_copy_(0, rows, front.flatten(0, 1).to(background.dtype)).view_as(z)
        return out[:, 1:].unflatten(1, grid)

    def choose(self, score: Tensor) -> Tensor:
        """The abstract token, which is 0, and the foreground, best first; equal scores in reading order.

        Scores (B, H, W) -> (B, m), in which the token at row i and column j of the grid is 1 + i W + j.
        """
        order = F.pad(score.detach().flatten(1), (1, 0), value=torch.inf)  # (B, 1 + N)
        count = self.foreground_count(score.shape[1] * score.shape[2]) + 1
        if torch.compiler.is_exporting() and not (self.rank.listening or self.foreground.listening):
            # Other programs sort slowly. Theirs take the first of equals in reading order too, as ONNX asks of them.
            chosen = order.topk(count, 1).indices
        else:
            order = order.argsort(dim=1, descending=True, stable=True)
            chosen = order[:, :count]
        if self.rank.listening:
            self.rank(order.argsort(1)[:, 1:].view_as(score) - 1)
        if self.positions.listening:
            self.positions(chosen[:, 1:] - 1)
        if self.foreground.listening:
            mask = torch.zeros_like(order, dtype=torch.bool).scatter_(1, chosen, True)
            self.foreground(mask[:, 1:].view_as(score))
        return chosen

    def foreground_count(self, tokens: int) -> int | torch.SymInt:
        cap, share = self.settings.max_foreground, tokens * self.fraction.numerator // self.fraction.denominator
        if isinstance(share, Tensor):  # to torch.jit.trace, on which fvcore builds, sizes are tensors
            return share.clamp(min=1, max=cap)
        count = torch.sym_max(1, share)  # integer arithmetic that also holds for the symbolic sizes of torch.export
        return count if cap is None else torch.sym_min(count, cap)

    def attend_foreground(self, qkv: Tensor, chosen: Tensor, grid: tuple[int, int]) -> Tensor:
        """Attention among the abstract token and the foreground, (B, m, 3C) -> (B, m, C)."""
        q, k, v = qkv.unflatten(2, (3, self.heads, -1)).permute(2, 0, 3, 1, 4).contiguous().unbind(0)  # (B, h, m, d)
        scores = self.unmixed((q * q.shape[-1] ** -0.5) @ k.transpose(-2, -1))  # (B, h, m, m)
        weights = self.mixed(scores.softmax(-1) if self.mixer is None else self.mixer(scores))
        if self.abstract.listening:
            reads, where = weights[:, :, 0], chosen[:, None].expand(-1, self.heads, -1)  # (B, h, m)
            picture = reads.new_zeros(*reads.shape[:2], 1 + grid[0] * grid[1]).scatter(2, where, reads)
            self.abstract(picture[..., 1:].unflatten(2, grid))
        return linear(self.proj, (weights @ v).transpose(1, 2).flatten(2))

    def attend_background(self, query: Tensor, kv: Tensor, chosen: Tensor, grid: tuple[int, int]) -> Tensor:
        """What one query (B, 1, C) reads from all but the chosen tokens; fused unless the tap listens."""
        q, k, v = (split_heads(y, self.heads) for y in (query, *kv.chunk(2, -1)))  # (B, h, 1, d), (B, h, 1 + N, d)
        mask = masking_bias(q, chosen, k.shape[2])[:, None]  # (B, 1, 1, 1 + N)
        if not self.background.listening:
            return dot_product_attention(q, k, v, mask).transpose(1, 2).flatten(2)
        weights = (q @ k.transpose(-2, -1) * q.shape[-1] ** -0.5 + mask).softmax(-1)[:, :, 0]  # (B, h, 1 + N)
        weights = self.background(weights[..., 1:].unflatten(-1, grid)).flatten(2)[:, :, None]
        return (weights @ v[:, :, 1:]).transpose(1, 2).flatten(2)  # (B, 1, C)

    def attend_tokens(self, query: Tensor, z: Tensor, chosen: Tensor, grid: tuple[int, int]) -> Tensor:
        """The same from unprojected tokens: with a single query it is cheaper to project the query and the result.

        q (K z) = (q K) z, and the keys' bias shifts all scores of a head alike. The weights of a head sum to one, so
        the values' bias is added once.
        """
        _, key, value = self.qkv.weight.unflatten(0, (3, self.heads, -1)).unbind(0)  # (h, d, C)
        q = query[:, 0].unflatten(1, (self.heads, -1))  # (B, h, d)
        q = torch.einsum("bhd,hdc->bhc", q * q.shape[-1] ** -0.5, key)
        scores = q @ z.transpose(1, 2)  # (B, h, 1 + N)
        weights = (scores + masking_bias(scores, chosen, z.shape[1])).softmax(-1)
        if self.background.listening:
            weights = F.pad(self.background(weights[..., 1:].unflatten(-1, grid)).flatten(2), (1, 0))
        read = torch.einsum("bhc,hdc->bhd", weights @ z, value).flatten(1)  # (B, C)
        return (read + self.qkv.bias[-read.shape[1] :])[:, None]


def gather_rows(x: Tensor, rows: Tensor, chosen: Tensor) -> Tensor:
    """The chosen rows (B, m) of (B, 1 + N, C), given as `rows` of the flattened batch: (B, m, C)."""
    return x.flatten(0, 1).index_select(0, rows).unflatten(0, chosen.shape)


def masking_bias(scores: Tensor, chosen: Tensor, tokens: int) -> Tensor:
    """What to add to the scores of all tokens so that the chosen ones get no weight: (B, 1, 1 + N).

    Finite, so that an image that is all foreground, whose result is unused, also has finite gradients.
    """
    lowest = torch.finfo(scores.dtype).min / 2
    return scores.new_zeros(scores.shape[0], tokens).scatter_(1, chosen, lowest)[:, None]
