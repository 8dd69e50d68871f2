"""Pictures through a model, however many: the next ones are read and scaled while the network computes.

On the CPU every thread takes a batch of its own from the file to the answer, so that no core waits for another, and the
rest of the machine may be busy. Elsewhere threads prepare batches, and the calling one hands them to the model. Answers
come in the order of the pictures; a few batches are in memory at a time.
"""

import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from typing import Any, NamedTuple, TypeVar

from PIL import Image
from torch import nn

from vitreous.data.detector_boxes import Found
from vitreous.data.image import ImageError
from vitreous.exports.model import ExportedModel
from vitreous.runs.trained_model import PreparedPicture, TrainedModel, predict_prepared, prepare_picture
from vitreous.runtime.threads import concurrent_pieces, map_concurrently, twin
from vitreous.tasks.base import Task
from vitreous.tasks.results import PictureResult

DECODING_THREADS = 8  # at most, beside a GPU: more of them wait for Python's lock
BLANK = Image.new("RGB", (1, 1))  # stands for a picture that nobody will draw on

_Ready = TypeVar("_Ready")
_Answer = TypeVar("_Answer")


class PictureSource(NamedTuple):
    """A picture that has not been read yet."""

    number: int  # its place among all
    name: str
    load: Callable[[], Image.Image]


class Question(NamedTuple):
    """What a model is asked about every picture."""

    task: Task
    batch_size: int
    objects: Callable[[str], Sequence[Found] | None] = lambda _: None  # those in a picture, by its name
    drawn: bool = True  # whether the answer will be drawn on the picture
    side_by_side: int | None = None  # batches that are computed at once on the CPU; None: one in every thread


class PictureOutcome(NamedTuple):
    """What became of a picture: an answer, or the reason why it cannot be read."""

    source: PictureSource
    answer: Any
    error: ImageError | None = None


def stream_answers(
    trained: TrainedModel, question: Question, batches: Iterable[Sequence[PictureSource]]
) -> Iterator[list[PictureOutcome]]:
    """For every picture a `PictureResult`."""
    task, kept = question.task, question.drawn or question.task.has_findings

    def prepare(source: PictureSource) -> PreparedPicture:
        prepared = prepare_picture(trained, task, source.load(), question.objects(source.name))
        return prepared if kept else prepared._replace(picture=BLANK)

    def answer(model: TrainedModel, prepared: list[PreparedPicture]) -> list[PictureResult]:
        return predict_prepared(model, task, prepared, question.batch_size)

    return stream(trained, batches, prepare, answer, side_by_side=question.side_by_side)


def even_batch_size(pictures: int, batch_size: int) -> int:
    """Smaller batches where there are too few pictures for every thread to have one."""
    return max(1, min(batch_size, -(-pictures // concurrent_pieces())))


def stream(
    trained: TrainedModel,
    batches: Iterable[Sequence[PictureSource]],
    prepare: Callable[[PictureSource], _Ready],
    answer: Callable[[TrainedModel, list[_Ready]], Sequence[_Answer]],
    *,
    side_by_side: int | None = None,
) -> Iterator[list[PictureOutcome]]:
    """The outcomes of each batch, in order.

    `prepare` reads a picture; an ImageError concerns that picture alone. `answer` gets those that could be read, and a
    model that no other thread uses. `side_by_side` is the most batches that are computed at once on the CPU.
    """
    weight = next(trained.model.parameters(), None)
    most = concurrent_pieces() if side_by_side is None else side_by_side
    own_threads = isinstance(trained.model, ExportedModel)  # of the program that runs it, which takes one at a time
    if weight is None or weight.device.type != "cpu" or own_threads:
        yield from _prepared_ahead(trained, batches, prepare, answer)
        return
    first = list(islice(iterator := iter(batches), most))
    models = [trained.model, *(twin(trained.model) for _ in first[1:])]
    if len(models) <= 1:  # a single batch gets all threads
        for batch in chain(first, iterator):
            yield _answered(trained, _loaded(prepare, batch), answer)
        return

    def whole(model: nn.Module, batch: Sequence[PictureSource]) -> list[PictureOutcome]:
        return _answered(trained._replace(model=model), _loaded(prepare, batch), answer)

    yield from map_concurrently(whole, models, ((batch,) for batch in chain(first, iterator)))


def _prepared_ahead(
    trained: TrainedModel,
    batches: Iterable[Sequence[PictureSource]],
    prepare: Callable[[PictureSource], Any],
    answer: Any,
) -> Iterator[list[PictureOutcome]]:
    threads = min(DECODING_THREADS, os.cpu_count() or 1)
    read = map_concurrently(lambda _, batch: _loaded(prepare, batch), range(threads), ((batch,) for batch in batches))
    yield from map(partial(_answered, trained, answer=answer), read)


def _loaded(
    prepare: Callable[[PictureSource], Any], batch: Sequence[PictureSource]
) -> list[tuple[PictureSource, Any, ImageError | None]]:
    found: list[tuple[PictureSource, Any, ImageError | None]] = []
    for source in batch:
        try:
            found.append((source, prepare(source), None))
        except ImageError as error:
            found.append((source, None, error))
    return found


def _answered(
    trained: TrainedModel,
    loaded: list[tuple[PictureSource, Any, ImageError | None]],
    answer: Callable[..., Sequence[Any]],
) -> list[PictureOutcome]:
    ready = [one for _, one, error in loaded if error is None]
    answers = iter(answer(trained, ready) if ready else ())
    return [PictureOutcome(source, None if error else next(answers), error) for source, _, error in loaded]
