"""Data with the class numbers of a trained model: classes are matched by name."""

from dataclasses import replace
from typing import Any

import numpy as np

from vitreous.data.image_set import ImageSet, Wrapped
from vitreous.data.joint import IGNORE
from vitreous.runs.trained_model import TrainedModel, class_columns


class Relabelled(Wrapped):
    """An image set whose labels are positions in the model's class list instead of its own."""

    def __init__(self, images: ImageSet, trained: TrainedModel) -> None:
        super().__init__(images)
        self.classes, self._label = trained.classes, np.array(class_columns(trained, images.classes))

    def target(self, index: int) -> dict[str, Any]:
        target = super().target(index)
        if "labels" in target:
            return target | {"labels": int(self._label[target["labels"]])}
        if "semantic" in target:
            table = np.full(IGNORE + 1, IGNORE, np.uint8)
            table[: len(self._label)] = self._label
            return target | {"semantic": table[target["semantic"]]}
        named = {key: target[key] for key in ("objects", "annotated") if key in target}
        return target | {key: replace(value, labels=self._label[value.labels]) for key, value in named.items()}


def labelled_for(trained: TrainedModel, images: ImageSet) -> ImageSet:
    """Match classes by name: the data may have fewer classes, or another order."""
    return images if images.classes == trained.classes else Relabelled(images, trained)
