"""Pictures of a data set, read in batches with their labels and, where the data know it, the object.

Shapes: B images of a batch.
"""

import sys
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import printable
from vitreous.runs.results import report_skipped
from vitreous.runs.trained_model import TrainedModel
from vitreous.runtime.console import track

UNLABELLED = -1
MOST_PIXELS_WITH_GRADIENTS = 16 * 224 * 224  # of a batch: with its gradients, paca_tiny then takes 0.6 GB


class ImageBatch(NamedTuple):
    numbers: Tensor  # (B,) of the images within the data
    inputs: Tensor  # (B, 3, height, width)
    labels: Tensor  # (B,), of pictures without one UNLABELLED
    objects: Tensor  # (B, height, width), all False where the data do not know it


def read_batches(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], batch_size: int, *, label: str
) -> Iterator[ImageBatch]:
    """The pictures that can be read; the others are named. `label` stands before the progress bar."""
    read = 0
    for batch in batches_of(trained, images, track(numbers, total=len(numbers), label=label), batch_size):
        read += len(batch.numbers)
        yield batch
    report_skipped(len(numbers) - read, len(numbers))


def batches_of(
    trained: TrainedModel, images: ImageSet, numbers: Iterable[int], batch_size: int
) -> Iterator[ImageBatch]:
    """Of some pictures those that can be read, without a word about how many that were."""
    device, (height, width) = next(trained.model.parameters()).device, trained.preprocess.size
    at_once = max(1, min(batch_size, MOST_PIXELS_WITH_GRADIENTS // (height * width)))
    rows: list[tuple[int, Tensor, int, Tensor]] = []

    def batch() -> ImageBatch:
        found, inputs, labels, objects = zip(*rows, strict=True)
        rows.clear()
        return ImageBatch(
            torch.tensor(found), torch.stack(inputs).to(device), torch.tensor(labels), torch.stack(objects)
        )

    for number in numbers:
        try:
            pixels = trained.preprocess(images.picture(number))
        except ImageError as error:
            print(printable(f"skipped: {error}"), file=sys.stderr)
            continue
        mask = object_mask(trained.preprocess, images.object_mask(number))
        unknown = torch.zeros(height, width, dtype=torch.bool)
        rows.append(
            (number, pixels, images.target(number).get("labels", UNLABELLED), unknown if mask is None else mask)
        )
        if len(rows) == at_once:
            yield batch()
    if rows:
        yield batch()


def object_mask(preprocess: Preprocess, mask: Image.Image | None) -> Tensor | None:
    """The mask as the model would see it, (height, width) of booleans."""
    if mask is None:
        return None
    return torch.from_numpy(np.array(preprocess.part(mask.convert("L"))) > 127)


def selection(count: int, limit: int | None) -> Sequence[int]:
    """Numbers of at most `limit` images: of as many equal stretches of the data one each, anywhere within it.

    Every tenth image, say, would not do: where classes take turns in the data, half of them might never be met.
    """
    if limit is None or limit >= count:
        return range(count)
    places = torch.rand(limit, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ((torch.arange(limit) + places) * (count / limit)).long().clamp_max(count - 1).unique().tolist()
