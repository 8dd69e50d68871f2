"""The data of a run: its splits, and that all processes have the same."""

from pathlib import Path

from vitreous.data.source import ImageSet, open_data
from vitreous.training.distributed import Refusal, World
from vitreous.training.settings import TrainSettings


def open_splits(settings: TrainSettings) -> dict[str, ImageSet]:
    """The images to learn from and those to validate on."""
    size = (settings.size, settings.size)
    counts = {"train": settings.train_count, "val": settings.val_count}
    quarantine = None if settings.quarantine is None else Path(settings.quarantine)
    return {
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
        )
        for split, count in counts.items()
    }


def require_same_data(world: World, fingerprints: dict[str, str]) -> None:
    """Processes on several machines may well find different files under the same path."""
    for rank, other in enumerate(world.gather(fingerprints)):
        for split, fingerprint in fingerprints.items():
            if other[split] != fingerprint:
                raise Refusal(
                    f"process {rank} has other data in split '{split}' than process {world.rank}; all need the same"
                )
