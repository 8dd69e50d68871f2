"""The clusters of a picture beside what a detector, a segmenter or a finder of keypoints made of it."""

import math
from typing import NamedTuple

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.maps.clusters import entropy, stretch
from vitreous.maps.draw import Panel, contact_sheet, enlarge, overlay


class Clusters(NamedTuple):
    name: str
    picture: Image.Image  # as the model saw it
    answer: Image.Image  # a drawing of what it found
    maps: Tensor  # (M, H, W), each sums to one

    def entropy(self) -> Tensor:
        """(M,) in nats; small = concentrated."""
        return entropy(self.maps)

    def order(self) -> list[int]:
        """Numbers of the clusters, the most concentrated first."""
        return self.entropy().argsort(stable=True).tolist()

    def sheet(self, heading: str, place: str, most: int, width: int) -> Image.Image:
        """The answer and the first clusters in one row, each `width` pixels wide; `place` says where they are from."""
        small = enlarge(self.picture, width)
        # A model sees keypoints in a part of the picture, of another shape than the drawing.
        alike = self.answer.width * self.picture.height == self.answer.height * self.picture.width
        panels = [Panel(self.answer.resize(small.size) if alike else small, "found" if alike else "picture")]
        heat, spread = np.asarray(stretch(self.maps)), self.entropy().tolist()
        for number in self.order()[:most]:
            details = (f"entropy {spread[number]:.2f} nats",)
            panels.append(Panel(overlay(self.picture, heat[number], width=width), f"cluster {number}", details))
        clusters, rows, columns = self.maps.shape
        return contact_sheet(
            panels,
            heading=heading,
            subheading=f"{self.name} · {place} · {clusters} maps of {columns} x {rows}",
            footnote=f"the most concentrated first; entropy of a flat map: {math.log(rows * columns):.2f} nats",
        )
