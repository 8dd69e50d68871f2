"""The data of a run: its splits, and that all processes have the same."""

from pathlib import Path

from vitreous.data.source import ImageSet, open_data
from vitreous.errors import InputError
from vitreous.runtime.distributed import CollectiveInputError, World
from vitreous.training.settings import TrainSettings


def open_splits(settings: TrainSettings) -> dict[str, ImageSet]:
    """The images to learn from and those to validate on."""
    size = (settings.size, settings.size)
    counts = {"train": settings.train_count, "val": settings.val_count}
    quarantine = None if settings.quarantine is None else Path(settings.quarantine)
    splits = {
        split: open_data(
            settings.data,
            split,
            size=size,
            count=count,
            quarantine=quarantine,
            task=settings.task,
            ignore=settings.ignore or None,
            reduce_zero_label=settings.reduce_zero_label,
            val_fraction=settings.val_fraction,
            follow=settings.follow,
        )
        for split, count in counts.items()
    }
    require_choice(settings, splits["train"])
    return splits


def require_choice(settings: TrainSettings, images: ImageSet) -> None:
    """With a single class every answer is right, and nothing is learnt."""
    if len(images.classes) > 1 or settings.task not in ("classify", "segment"):
        return
    found = f"'{settings.data}' has one class, {images.classes[0]!r}" if images.classes else "there is no class"
    if settings.task == "segment":
        raise InputError(
            f"{found}, so every answer would be right; a segmenter needs two or more: give what is around the objects "
            "a value of its own in the masks"
        )
    raise InputError(
        f"{found}, so every answer would be right; a classifier needs two or more: add pictures of something else, in "
        "a folder of their own beside it, or use --task detect to find where things are"
    )


def require_same_data(world: World, fingerprints: dict[str, str]) -> None:
    """Processes on several machines may well find different files under the same path."""
    for rank, other in enumerate(world.gather(fingerprints)):
        for split, fingerprint in fingerprints.items():
            if other[split] != fingerprint:
                raise CollectiveInputError(
                    f"process {rank} has other data in split '{split}' than process {world.rank}; all need the same"
                )
