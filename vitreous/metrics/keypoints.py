"""PCK: the share of keypoints that were found within a distance proportional to the object's size.

Yang and Ramanan: "Articulated Human Detection with Flexible Mixtures of Parts", PAMI 2013.
"""

import numpy as np
from torch import Tensor

from vitreous.errors import InputError
from vitreous.metrics.figures import Counts, require_as_many


class PCK(Counts):
    """Counts keypoints by joint.

    Args:
        joints: Names of the joints.
        threshold: Largest distance that counts as found, in units of the larger side of the object's box.
    """

    counted = ("found", "labelled")

    def __init__(self, joints: tuple[str, ...], threshold: float = 0.1) -> None:
        if not threshold > 0:
            raise InputError(f"threshold={threshold} given; it is a share of the object's size, such as 0.1")
        self.joints, self.threshold = joints, threshold
        self.found = np.zeros(len(joints), dtype=np.int64)
        self.labelled = np.zeros(len(joints), dtype=np.int64)

    def update(self, predictions: list[dict[str, Tensor]], targets: dict[str, Tensor]) -> None:
        """Predictions: per object `keypoints` (K, 3): x, y, score. Targets, all in the pixels of the predictions:
        `keypoints` (B, K, 3): x, y, visibility (0 is not labelled), `boxes` (B, 4): x0 y0 x1 y1.
        """
        truth, boxes = targets["keypoints"].cpu().double().numpy(), targets["boxes"].cpu().double().numpy()
        require_as_many(predictions, truth)
        if not predictions:
            return
        answers = np.stack([prediction["keypoints"].cpu().double().numpy() for prediction in predictions])
        if answers.shape[1] != len(self.joints) or truth.shape[1] != len(self.joints):
            raise InputError(
                f"{answers.shape[1]} keypoints predicted and {truth.shape[1]} labelled; this metric has "
                f"{len(self.joints)} joints"
            )
        size = np.maximum(boxes[:, 2] - boxes[:, 0], boxes[:, 3] - boxes[:, 1])  # (B,)
        distance = np.hypot(*np.moveaxis(answers[..., :2] - truth[..., :2], -1, 0))  # (B, K)
        labelled = truth[..., 2] > 0
        self.labelled += labelled.sum(0)
        self.found += (labelled & (distance <= self.threshold * size[:, None])).sum(0)

    def compute(self) -> dict[str, float]:
        total = self.labelled.sum()
        if not total:
            raise InputError("no keypoint was scored; the data set is empty, or none of its keypoints is labelled")
        return {f"PCK@{self.threshold:g}": float(self.found.sum() / total)}

    def per_joint(self) -> dict[str, float | None]:
        """Share found of each joint; None where it is never labelled."""
        counts = zip(self.joints, self.found, self.labelled, strict=True)
        return {name: float(found / labelled) if labelled else None for name, found, labelled in counts}
