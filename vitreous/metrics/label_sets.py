"""How well sets of classes are told: average precision of each class, and answers at a threshold."""

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.metrics.figures import Counts

PRESENT_FROM = 0.5  # probability from which a class counts as said


class LabelSetAccuracy(Counts):
    """mAP over the classes that occur, F1 of all answers together, and the share of pictures whose set is right."""

    counted = ("scores", "truth")

    def __init__(self) -> None:
        self.scores: list[NDArray[np.float32]] = []  # (K,) of each image
        self.truth: list[NDArray[np.bool_]] = []

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        self.scores += [one["probabilities"].float().cpu().numpy() for one in predictions]
        self.truth += list(targets["present"].cpu().numpy() > PRESENT_FROM)

    def compute(self) -> dict[str, float]:
        scores, truth = np.stack(self.scores), np.stack(self.truth)  # (N, K)
        said = scores >= PRESENT_FROM
        right, wrong = float((said & truth).sum()), float((said != truth).sum())
        known = [average_precision(scores[:, k], truth[:, k]) for k in np.flatnonzero(truth.any(0))]
        return {
            "mAP": float(np.mean(known)) if known else 0.0,
            "F1": 2 * right / (2 * right + wrong) if right + wrong else 1.0,
            "exact": float((said == truth).all(1).mean()),
        }


def average_precision(scores: NDArray[np.float32], truth: NDArray[np.bool_]) -> float:
    """Area under precision over recall, in steps; equal scores are one step, whatever their order."""
    order = np.argsort(-scores, kind="stable")
    found, ends = np.cumsum(truth[order]), np.flatnonzero(np.diff(scores[order], append=-np.inf))
    recall, precision = found[ends] / found[-1], found[ends] / (ends + 1)
    return float(np.sum(np.diff(recall, prepend=0.0) * precision))
