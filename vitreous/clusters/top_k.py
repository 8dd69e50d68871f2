"""The best few of a stream, for many rows at once, in memory that does not grow with the stream.

    best = TopK(rows=100, size=8)
    best.offer(scores, {"image": numbers, "map": maps})      # scores (R, B), every field (R, B, ...)
    best.fields["image"][3, : best.count(3)]                 # of row 3, highest score first

Shapes: R rows, S places of a row, B offered at a time.
"""

import torch
from torch import Tensor


class TopK:
    def __init__(self, rows: int, size: int) -> None:
        self.score = torch.full((rows, size), -torch.inf, dtype=torch.float64)
        self.fields: dict[str, Tensor] = {}

    def offer(self, score: Tensor, fields: dict[str, Tensor]) -> None:
        """A score of -inf is never kept. Of equal scores the one offered first stays."""
        rows, size = self.score.shape
        if not self.fields:
            self.fields = {name: value.new_zeros((rows, size, *value.shape[2:])) for name, value in fields.items()}
        scores = torch.cat([self.score, score.double()], 1)  # (R, S + B)
        order = scores.argsort(dim=1, descending=True, stable=True)[:, :size]  # (R, S)
        if bool((order < size).all()):
            return  # nobody new is better
        self.score = scores.gather(1, order)
        row = torch.arange(rows)[:, None]
        for name, value in fields.items():
            self.fields[name] = torch.cat([self.fields[name], value], 1)[row, order]

    def count(self, row: int) -> int:
        """Places of a row that are taken."""
        return int((self.score[row] > -torch.inf).sum())
