"""Images of a run that could not be read: each is listed once in `bad_images.jsonl`, and too many stop the run.

{"split": "train", "index": 7, "name": "train/cat/7.jpg", "reason": "image '…/train/cat/7.jpg' cannot be decoded: …"}
"""

import json
from collections.abc import Callable, Iterable
from pathlib import Path

from vitreous.data.image_set import ImageSet
from vitreous.data.loader import Unreadable
from vitreous.errors import InputError
from vitreous.files.storage import damaged_line, read_json_lines, replace_file
from vitreous.files.writing import open_for_writing

BAD_IMAGES_FILE = "bad_images.jsonl"

ImageKey = tuple[str, int]  # split and index
Gather = Callable[[list[tuple[str, Unreadable]]], list[list[tuple[str, Unreadable]]]]


class BadImages:
    """The unreadable images so far. Each process collects its own; `settle` merges and writes them.

    Args:
        folder: The run folder.
        images: The splits.
        limit: Share of a split that may be unreadable before the run stops.
        writes: Whether this process writes the list.
    """

    def __init__(self, folder: Path, images: dict[str, ImageSet], limit: float, *, writes: bool = True) -> None:
        self.file, self.images, self.limit, self.writes = folder / BAD_IMAGES_FILE, images, limit, writes
        self._known: dict[ImageKey, None] = {}  # in the order of the list
        self._new: dict[ImageKey, str] = {}

    def __len__(self) -> int:
        return len(self._known)

    def note(self, split: str, unreadable: Iterable[Unreadable]) -> None:
        """Add the unreadable images of a batch; too many are an InputError."""
        fresh = {(split, sample): reason for sample, reason in unreadable if (split, sample) not in self._known}
        self._new |= fresh
        if fresh:
            try:
                self._check(split, [*self._known, *self._new])
            except InputError:
                self._list(self._new)
                raise

    def settle(self, gather: Gather = lambda own: [own]) -> int:
        """Merge what all processes found since the last call into the list; returns how many are new."""
        own = [(split, Unreadable(sample, reason)) for (split, sample), reason in self._new.items()]
        self._new = {}
        met = sorted({(split, one.sample): one.reason for part in gather(own) for split, one in part}.items())
        fresh = {key: reason for key, reason in met if key not in self._known}
        self._known |= dict.fromkeys(fresh)
        self._list(fresh)
        for split in self.images:
            self._check(split, self._known)
        return len(fresh)

    def restore(self, count: int) -> None:
        """Go back to the first `count` entries: those of the checkpoint from which the run continues."""
        entries = read_json_lines(self.file)[:count]
        for number, entry in enumerate(entries, 1):
            split, index = entry.get("split"), entry.get("index")
            if not isinstance(split, str) or split not in self.images or not isinstance(index, int):
                raise damaged_line(self.file, number, "it names no split or no index of an image")
        self._known = dict.fromkeys((entry["split"], entry["index"]) for entry in entries)
        if self.file.exists() and self.writes:
            replace_file(self.file, "".join(json.dumps(entry) + "\n" for entry in entries))

    def _list(self, fresh: dict[ImageKey, str]) -> None:
        if not fresh or not self.writes:
            return
        with open_for_writing(self.file, "a") as file:
            for (split, sample), reason in fresh.items():
                entry = {"split": split, "index": sample, "name": self.images[split].name(sample), "reason": reason}
                file.write(json.dumps(entry) + "\n")

    def _check(self, split: str, found: Iterable[ImageKey]) -> None:
        samples, total = [sample for where, sample in found if where == split], len(self.images[split])
        if len(samples) > self.limit * total:
            first = self.images[split].name(samples[0])
            raise InputError(
                f"{len(samples)} of the {total} {split} images cannot be read so far, among them {first!r}; "
                f"--max-corrupt allows {self.limit:.1%}. "
                "Run `vitreous check` on the data to list them and to leave them out"
            )
