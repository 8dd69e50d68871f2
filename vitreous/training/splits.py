"""The splits of a run's data, and the check that all processes have the same."""

from pathlib import Path

from vitreous.data.source import ImageSet, open_data
from vitreous.errors import InputError
from vitreous.runtime.distributed import CollectiveInputError, World
from vitreous.tasks.base import load_task
from vitreous.training.settings import TrainSettings


def open_splits(settings: TrainSettings) -> dict[str, ImageSet]:
    """The images to learn from and those to validate on."""
    size, task = (settings.size, settings.size), load_task(settings.task)
    counts = {"train": settings.train_count, "val": settings.val_count}
    quarantine = None if settings.quarantine is None else Path(settings.quarantine)
    splits = {
        split: open_data(
            settings.data,
            split,
            size=size,
            count=count,
            quarantine=quarantine,
            targets=task.targets,
            ignore=settings.ignore or None,
            reduce_zero_label=settings.reduce_zero_label,
            val_fraction=settings.val_fraction,
            follow=settings.follow,
            wording=task.wording(),
        )
        for split, count in counts.items()
    }
    require_choice(settings, splits["train"])
    return splits


def require_choice(settings: TrainSettings, images: ImageSet) -> None:
    """Refuse data from which nothing is learnt because every answer would be right."""
    remedy = load_task(settings.task).one_class_remedy
    if len(images.classes) > 1 or not remedy:
        return
    found = f"'{settings.data}' has one class, {images.classes[0]!r}" if images.classes else "there is no class"
    raise InputError(f"{found}, so every answer would be right; {remedy}")


def require_same_data(world: World, fingerprints: dict[str, str]) -> None:
    """Refuse to go on if machines have different files under the same path."""
    for rank, other in enumerate(world.gather(fingerprints)):
        for split, fingerprint in fingerprints.items():
            if other[split] != fingerprint:
                raise CollectiveInputError(
                    f"process {rank} has different data in split '{split}' from process {world.rank}; all need the same"
                )
