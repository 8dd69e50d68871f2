"""Random answers of a classifier as a task gives them, and the arrays behind them."""

from typing import NamedTuple

import numpy as np
import torch


class Answers(NamedTuple):
    scores: np.ndarray  # (N, K) probabilities
    labels: np.ndarray  # (N,)

    def feed(self, metric, part: np.ndarray) -> None:
        order = (-self.scores[part]).argsort(1)
        ranked = torch.from_numpy(order)
        values = torch.from_numpy(np.take_along_axis(self.scores[part], order, 1))
        predictions = [{"labels": ranked[i], "scores": values[i]} for i in range(len(part))]
        targets = {"labels": torch.from_numpy(self.labels[part]), "indices": torch.from_numpy(part)}
        metric.update(predictions, targets)

    @property
    def answer(self) -> np.ndarray:
        return self.scores.argmax(1)

    @property
    def confidence(self) -> np.ndarray:
        return self.scores.max(1)


def random_answers(count: int, classes: int) -> Answers:
    rng = np.random.default_rng(0)
    scores = rng.dirichlet(np.full(classes, 0.3), count)
    return Answers(scores, rng.integers(0, classes, count))
