"""What was found in one picture, to look at, filter, write down and hand to other libraries.

found = Detections.of(prediction, classes)
found[found.scores > 0.5].to_supervision()
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.run_lengths import encode
from vitreous.errors import InputError, to_install


@dataclass(frozen=True)
class Detections:
    """Objects in pixels of the picture, in any order."""

    boxes: NDArray[np.float64]  # (n, 4) x0 y0 x1 y1
    labels: NDArray[np.int64]  # (n,) places in `classes`
    scores: NDArray[np.float64]  # (n,)
    classes: tuple[str, ...]
    masks: NDArray[np.bool_] | None = None  # (n, H, W)

    @classmethod
    def of(cls, prediction: Mapping[str, Tensor], classes: tuple[str, ...]) -> Self:
        """From the dictionary of tensors that the task gives for a picture."""
        masks = prediction.get("masks")
        return cls(
            prediction["boxes"].double().cpu().numpy(),
            prediction["labels"].cpu().numpy(),
            prediction["scores"].double().cpu().numpy(),
            classes,
            None if masks is None else masks.cpu().numpy().astype(np.bool_),
        )

    def __len__(self) -> int:
        return len(self.labels)

    def __getitem__(self, which: Any) -> Self:
        """Some of them: a slice, an array of places or one of booleans."""
        places = np.arange(len(self))[which]
        masks = None if self.masks is None else self.masks[places]
        return type(self)(self.boxes[places], self.labels[places], self.scores[places], self.classes, masks)

    @property
    def names(self) -> list[str]:
        return [self.classes[label] for label in self.labels]

    def to_coco(self, image_id: int, category_ids: Sequence[int] = ()) -> list[dict[str, Any]]:
        """Rows of COCO's result format; without `category_ids` classes are numbered from 1."""
        numbers = category_ids or range(1, len(self.classes) + 1)
        rows: list[dict[str, Any]] = [
            {"image_id": image_id, "category_id": numbers[label], "bbox": [x0, y0, x1 - x0, y1 - y0], "score": score}
            for (x0, y0, x1, y1), label, score in zip(
                self.boxes.tolist(), self.labels, self.scores.tolist(), strict=True
            )
        ]
        for row, mask in zip(rows, () if self.masks is None else self.masks, strict=False):
            row["segmentation"] = encode(mask)
        return rows

    def to_supervision(self) -> Any:
        """The same as `supervision.Detections`, for its trackers, counters and drawings."""
        try:
            import supervision
        except ImportError as error:
            hint = to_install("supervision")
            raise InputError(f"to_supervision() needs the package supervision: {hint}") from error
        return supervision.Detections(
            xyxy=self.boxes.astype(np.float32),
            mask=self.masks,
            confidence=self.scores.astype(np.float32),
            class_id=self.labels.astype(int),
            data={"class_name": np.array(self.names)},
        )
