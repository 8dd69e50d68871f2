"""Work through all pictures of a set, shard after shard, with one answer for each; what is there is not done again."""

import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import chain, groupby
from typing import Any, NamedTuple

from vitreous.data.image_set import ImageSet
from vitreous.errors import printable
from vitreous.runs.result_shards import ResultShards
from vitreous.runs.results import report_unreadable
from vitreous.runs.streaming import PictureOutcome, PictureSource, even_batch_size
from vitreous.runtime.console import track


class ShardTally(NamedTuple):
    """What one process did."""

    done: int  # pictures with an answer
    skipped: int  # those that cannot be read
    resumed: int  # those of its own share that were there before

    def line(self, shards: ResultShards) -> str:
        share = shards.share
        who = f"process {share.number} of {share.processes}: " if share.processes > 1 else ""
        return f"{who}{self.done:,} pictures done, {self.skipped:,} unreadable, {self.resumed:,} were there before"


Streamed = Callable[[Iterable[Sequence[PictureSource]]], Iterator[list[PictureOutcome]]]


def fill_shards(
    shards: ResultShards,
    images: ImageSet,
    batch_size: int,
    streamed: Streamed,
    write: Callable[[Any, Iterator[PictureOutcome]], None],
    *,
    label: str,
) -> ShardTally:
    """Write every shard of this process that is missing.

    `streamed` answers batches; no batch lies in two shards, but the next shard's pictures are read while the last
    answers of this one are computed. `write` puts the outcomes of a shard into an open file.
    """
    missing = shards.missing(shards.own())
    wanted = shards.pictures_of(missing)
    answered, skipped = 0, 0

    def counted(outcomes: Iterable[PictureOutcome]) -> Iterator[PictureOutcome]:
        nonlocal answered, skipped
        for outcome in outcomes:
            if outcome.error is None:
                answered += 1
            else:
                skipped += 1
                report_unreadable(outcome.error)
            yield outcome

    at_once = even_batch_size(min(wanted, shards.size), batch_size)
    batches = (batch for shard in missing for batch in _batches(images, shards.numbers(shard), at_once))
    outcomes: Iterator[PictureOutcome] = chain.from_iterable(streamed(batches))
    if shards.share.main:  # others are silent, or bars would be drawn over each other
        outcomes = track(outcomes, total=wanted, label=label)
    for shard, own in groupby(counted(outcomes), lambda outcome: outcome.source.number // shards.size):
        with shards.writing(shard) as file:
            write(file, own)
    return ShardTally(answered, skipped, shards.pictures_of(shards.own()) - wanted)


def report_shards(shards: ResultShards, tally: ShardTally) -> None:
    """The last line of a process; the one that completes the set says so."""
    print(printable(tally.line(shards)))
    missing = len(shards.missing(range(shards.count)))
    if not missing:
        print(printable(f"complete: {shards.count:,} shards of {shards.pictures:,} pictures in {shards.folder}"))
    elif shards.share.processes > 1:
        print(f"{missing:,} of {shards.count:,} shards are those of other processes, and not there yet")


def write_rows(file: Any, outcomes: Iterator[PictureOutcome]) -> None:
    """One JSON object a line for each picture: its name and the answer, or the reason why it cannot be read."""
    for source, result, error in outcomes:
        told = {"error": str(error)} if error is not None else result.to_dict()
        file.write(json.dumps({"image": source.name, **told}, allow_nan=False).encode() + b"\n")


def _batches(images: ImageSet, numbers: range, batch_size: int) -> Iterator[list[PictureSource]]:
    for start in range(0, len(numbers), batch_size):
        part = numbers[start : start + batch_size]
        yield [PictureSource(number, images.name(number), partial(images.picture, number)) for number in part]
