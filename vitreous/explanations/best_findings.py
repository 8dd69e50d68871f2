"""The best finding of every picture of a data set, with what the data say about it.

Pictures differ in size, and a detector answers for one class at a time, so that each is looked at alone.
"""

import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

from torch import Tensor

from vitreous.attribution.target import Target
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, printable
from vitreous.explanations.dense import view_of
from vitreous.runs.trained_model import TrainedModel, labelled_for, predict_samples
from vitreous.tasks.findings import FindingQuery, FindingTruth, ModelView


@dataclass
class Tally:
    """What became of the pictures."""

    images: int = 0  # looked at
    nothing_found: int = 0
    unknown: int = 0  # of whose finding the data say nothing; only an atlas leaves them out
    with_known_object: int = 0

    def __add__(self, other: "Tally") -> "Tally":
        return Tally(*(getattr(self, one.name) + getattr(other, one.name) for one in fields(self)))

    @classmethod
    def restored(cls, told: Mapping[str, Any]) -> "Tally":
        return cls(**{name: int(count) for name, count in told.items()})

    def require_findings(self) -> None:
        if self.images == self.nothing_found:
            raise InputError(
                f"the model found nothing in any of {self.images} images, so that there is nothing to explain; "
                "train it longer, or take other data"
                if self.images
                else "none of the images could be read; the reasons are above"
            )


class BestFinding(NamedTuple):
    number: int  # of the picture within the data
    view: ModelView
    target: Target  # on the model's device
    truth: FindingTruth

    @property
    def mask(self) -> Tensor | None:
        """The object in the picture as the model sees it, (1, h, w)."""
        return None if self.truth.mask is None else self.truth.mask[None]


def best_findings(
    trained: TrainedModel, images: ImageSet, numbers: Iterable[int], tally: Tally, *, quiet: bool = False
) -> Iterator[BestFinding]:
    """As `vitreous explain` chooses them; pictures without one are passed over and counted.

    With `quiet`, those that cannot be read are not named.
    """
    task = trained.build_task()
    task.check_data(images)
    images = labelled_for(trained, images)
    truth_view = task.truth_view(trained.preprocess)
    for number in numbers:
        try:
            image = images.picture(number)
            sample = truth_view(image, images.target(number))
        except ImageError as error:
            if not quiet:
                print(printable(f"skipped: {error}"), file=sys.stderr)
            continue
        tally.images += 1
        (prediction,) = predict_samples(trained, task, [sample])
        view = view_of(task, image, sample)
        target = task.choose_finding(prediction, view, FindingQuery()).target
        if target is None:
            tally.nothing_found += 1
            continue
        truth = task.finding_truth(target, sample[1], view.size)
        tally.with_known_object += truth.mask is not None
        yield BestFinding(number, view, target.to(trained.device), truth)
