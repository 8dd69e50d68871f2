"""Pictures of coloured squares that move about, with a mark beside them, and models that read one or the other.

An object of class k is bright in colour k, a mark is half as bright, and the ground is dark: so a model of one line can
read either.
"""

from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitreous.data.image_set import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.runs.trained_model import TrainedModel

SIDE, OBJECT, MARK = 32, 8, 5
CLASSES = ("red", "green", "blue")


class MarkedSquares(ImageSet):
    """`agreeing`: share of the pictures whose mark is that of their class; the others have a random one."""

    classes = CLASSES
    fingerprint = "marked squares"
    attribute_names = ("mark",)

    def __init__(self, count: int = 60, agreeing: float = 1.0, mark: str = "corner", masks: bool | int = True) -> None:
        """`masks` may be a number: every so many pictures one has no mask."""
        self.count, self.agreeing, self.mark, self.masks = count, agreeing, mark, masks

    def __len__(self) -> int:
        return self.count

    def name(self, index: int) -> str:
        return f"val/{index}.png"

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": index % 3}

    def shown_mark(self, index: int) -> int:
        random = np.random.default_rng([1, index])
        return index % 3 if random.random() < self.agreeing else int(random.integers(3))

    def place(self, index: int) -> tuple[slice, slice]:
        top, left = np.random.default_rng([2, index]).integers(MARK + 1, SIDE - OBJECT, 2)
        return slice(top, top + OBJECT), slice(left, left + OBJECT)

    def picture(self, index: int, *, at_least: int | None = None) -> Image.Image:
        pixels = np.random.default_rng([3, index]).integers(0, 30, (SIDE, SIDE, 3), np.uint8)
        if self.mark == "corner":
            pixels[:MARK, :MARK, self.shown_mark(index)] = 128
        elif self.mark == "tint":
            pixels[..., self.shown_mark(index)] += 40
        pixels[self.place(index)] = 20
        pixels[(*self.place(index), index % 3)] = 255
        return Image.fromarray(pixels)

    def object_mask(self, index: int) -> Image.Image | None:
        if not self.masks or (self.masks is not True and index % self.masks == 0):
            return None
        mask = np.zeros((SIDE, SIDE), np.uint8)
        mask[self.place(index)] = 255
        return Image.fromarray(mask)

    def attributes(self, index: int) -> dict[str, str]:
        return {"mark": CLASSES[self.shown_mark(index)]}


class Reader(nn.Module):
    """Answers by the colour of the brightest square, of the corner, or of the whole picture."""

    def __init__(self, reads: str) -> None:
        super().__init__()
        self.reads, self.scale = reads, nn.Parameter(torch.tensor(30.0))

    def forward(self, images: Tensor) -> Tensor:
        if self.reads == "corner":
            return self.scale * images[..., :MARK, :MARK].mean((2, 3))
        if self.reads == "tint":
            return self.scale * 4 * images.flatten(2).median(2).values
        return self.scale * F.avg_pool2d(images, OBJECT, 1).amax((2, 3))


def reader(reads: str) -> TrainedModel:
    plain = Preprocess(size=(SIDE, SIDE), mean=(0.0, 0.0, 0.0), std=(1.0, 1.0, 1.0))
    return TrainedModel(Reader(reads).eval(), reads, "classify", CLASSES, plain)
