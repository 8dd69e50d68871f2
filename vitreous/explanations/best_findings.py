"""The best finding of every picture of a data set, with what the data say about it.

Pictures differ in size, and a detector answers for one class at a time, so that each is looked at alone.
"""

import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from torch import Tensor

from vitreous.attribution.target import Target
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, printable
from vitreous.explanations.answers import answers
from vitreous.explanations.dense import dense_task, see
from vitreous.explanations.findings import Seen, Wanted, choose_finding
from vitreous.explanations.truth import Truth, truth_of, truth_view
from vitreous.runs.model_folder import TrainedModel
from vitreous.runs.relabelled import labelled_for
from vitreous.runtime.progress import track
from vitreous.tasks.keypoints import Keypoints


@dataclass
class Tally:
    """What became of the pictures."""

    images: int = 0  # looked at
    nothing_found: int = 0
    unknown: int = 0  # of whose finding the data say nothing; only an atlas leaves them out
    with_known_object: int = 0


class BestFinding(NamedTuple):
    number: int  # of the picture within the data
    seen: Seen
    target: Target  # on the model's device
    truth: Truth

    @property
    def mask(self) -> Tensor | None:
        """The object in the picture as the model sees it, (1, h, w)."""
        return None if self.truth.mask is None else self.truth.mask[None]


def best_findings(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], tally: Tally, *, label: str
) -> Iterator[BestFinding]:
    """As `vitreous explain` chooses them; pictures without one are passed over and counted."""
    task = dense_task(trained)
    if isinstance(task, Keypoints) and images.keypoint_names != task.names:
        raise InputError(
            f"the joints of the data ({', '.join(images.keypoint_names)}) are not those of the model "
            f"({', '.join(task.names)})"
        )
    images = labelled_for(trained, images)
    view, device = truth_view(task, trained.preprocess), next(trained.model.parameters()).device
    for number in track(numbers, total=len(numbers), label=label):
        try:
            image = images.picture(number)
            sample = view(image, images.target(number))
        except ImageError as error:
            print(printable(f"skipped: {error}"), file=sys.stderr)
            continue
        tally.images += 1
        (prediction,) = answers(trained, task, [sample])
        seen = see(trained, task, image, sample)
        target = choose_finding(task, prediction, seen, Wanted()).target
        if target is None:
            tally.nothing_found += 1
            continue
        truth = truth_of(target, sample[1], seen.size)
        tally.with_known_object += truth.mask is not None
        yield BestFinding(number, seen, target.to(device), truth)
    if tally.images == tally.nothing_found:
        raise InputError(
            f"the model found nothing in any of {tally.images} images, so that there is nothing to explain; "
            "train it longer, or take other data"
            if tally.images
            else "none of the images could be read; the reasons are above"
        )
