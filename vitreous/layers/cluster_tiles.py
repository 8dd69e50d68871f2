"""Clusters of a large map, tile by tile: the softmax over all positions is summed up exactly, not taken per tile.

Each tile gives, of every cluster, the largest logit in it, the sum of the exponentials relative to that, and the sum of
the tokens weighted by them. Brought to the largest logit of all tiles, these sums add up to what one softmax over all
positions gives. They are added in the order of the tiles, so that the result does not depend on threads.

Shapes: B batch, H W grid, M clusters, C channels; n positions of a tile.
"""

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor, nn

from vitreous.layers.tiles import GridTile, each_tile, tiles


class TileSums(NamedTuple):
    largest: Tensor  # (b, M) of the tile's b images
    weights: Tensor  # (b, M)
    tokens: Tensor  # (b, M, C)


def assign_in_tiles(
    clustering: nn.Module, norm: Callable[[Tensor], Tensor], x: Tensor, temperature: float
) -> tuple[Tensor, Tensor]:
    """Assignment (B, M, H, W) of normalised tokens x (B, H, W, C), and their weighted means (B, M, C)."""
    B, H, W, C = x.shape
    clusters, hidden = clustering.logits.weight.shape  # type: ignore
    logits = x.new_empty(B, H, W, clusters)

    def of_tile(tile: GridTile) -> TileSums:
        y = norm(tile.outer(x))
        own = clustering(y, tile)
        own = own if temperature == 1 else own / temperature
        tile.inner(logits).copy_(own)
        own, tokens = own.flatten(1, 2), tile.cropped(y).flatten(1, 2)  # (b, n, M), (b, n, C)
        largest = own.amax(1)
        weights = (own - largest[:, None]).exp_()
        return TileSums(largest, weights.sum(1), weights.transpose(1, 2) @ tokens)

    among = tiles(x.shape, max(C, clusters, hidden), halo=clustering.halo, item_bytes=x.element_size())  # type: ignore[arg-type]
    sums = each_tile(of_tile, among, x)
    largest, weights, means = added_up(sums, B)

    def normalise(tile: GridTile) -> None:
        part = tile.inner(logits)
        part.sub_(largest[tile.images, None, None]).exp_().div_(weights[tile.images, None, None])

    each_tile(normalise, tiles(x.shape, clusters, item_bytes=x.element_size()), x)
    return logits.permute(0, 3, 1, 2), means


def added_up(sums: Sequence[TileSums], images: int) -> tuple[Tensor, Tensor, Tensor]:
    """The largest logits and summed weights (B, M), and the weighted means (B, M, C), of all tiles of each image."""
    own, weights, tokens = (of_images(part, images) for part in zip(*sums, strict=True))  # (B, tiles, …)
    largest = own.amax(1)
    factors = (own - largest[:, None]).exp()
    whole = (weights * factors).sum(1)
    return largest, whole, (tokens * factors[..., None]).sum(1) / whole[..., None]


def of_images(parts: Sequence[Tensor], images: int) -> Tensor:
    """What the tiles gave, by image: a tile holds whole images, or all images have equally many tiles, one by one."""
    return torch.cat(list(parts)).unflatten(0, (images, -1))  # (B, tiles, …)


def means_in_tiles(assignment: Tensor, norm: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """Means (B, M, C) of normalised tokens x (B, H, W, C), weighted by an assignment (B, M, H, W) that is there."""
    maps = assignment.permute(0, 2, 3, 1)  # (B, H, W, M)

    def of_tile(tile: GridTile) -> Tensor:
        return tile.inner(maps).flatten(1, 2).transpose(1, 2) @ norm(tile.inner(x)).flatten(1, 2)

    among = tiles(x.shape, max(x.shape[3], maps.shape[3]), item_bytes=x.element_size())
    return of_images(each_tile(of_tile, among, x), x.shape[0]).sum(1)
