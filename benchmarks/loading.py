"""Speed of JPEGs to batches: ours beside torchvision's ImageFolder with timm's transforms, in turns.

python benchmarks/loading.py                       # 500 x 375, as in ImageNet
python benchmarks/loading.py --width 4000 --height 3000 --images 24

Both crop at random (8 % to 100 % of the area), scale to 224 x 224, mirror and normalise. The pictures are photographs
where some are given (--photos DIR), otherwise waves and noise that compress about as well.
"""

import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import torch
import tyro
from PIL import Image

from vitreous.data.layouts.folder import ClassFolder
from vitreous.data.loader import BatchSampler, Loader
from vitreous.data.transforms import Augmentation, Preprocess
from vitreous.tasks.classify import ClassifyTask

SIZE, SCALE = 224, 0.08


def write_pictures(root: Path, images: int, width: int, height: int, photos: Path | None) -> None:
    rng = np.random.default_rng(0)
    sources = sorted(photos.rglob("*.jpg")) if photos else []
    y, x = np.mgrid[:height, :width] / 40
    for index in range(images):
        folder = root / "train" / str(index % 4)
        folder.mkdir(parents=True, exist_ok=True)
        if sources:
            picture = Image.open(sources[index % len(sources)]).convert("RGB").resize((width, height))
        else:
            waves = [
                128 + 80 * np.sin(a * x + b * y) + 40 * np.sin(b * x * y / 9) for a, b in rng.uniform(1, 4, (3, 2))
            ]
            picture = Image.fromarray(
                (np.stack(waves, -1) + rng.normal(0, 6, (height, width, 3))).clip(0, 255).astype("u1")
            )
        picture.save(folder / f"{index}.jpg", quality=90)


def ours(root: Path, batch: int, workers: int, scale: float) -> Iterator[torch.Tensor]:
    images, preprocess = ClassFolder(root, "train"), Preprocess((SIZE, SIZE))
    task = ClassifyTask(images.classes)
    views = task.dataset(images, Augmentation(preprocess, scale=scale))
    sampler = BatchSampler(len(images), batch, shuffle=True)
    loader = Loader(views, sampler, task.collate, workers=workers, replace=True, finish=preprocess.normalise_bytes)
    for ready in loader:
        yield loader.on(ready, torch.device("cpu"))[0]
    loader.close()


def theirs(root: Path, batch: int, workers: int, scale: float) -> Iterator[torch.Tensor]:
    from timm.data import create_transform
    from torchvision.datasets import ImageFolder

    transform = create_transform(
        (3, SIZE, SIZE), is_training=True, interpolation="bicubic", scale=(scale, 1.0), color_jitter=None
    )
    images = ImageFolder(str(root / "train"), transform)
    loader = torch.utils.data.DataLoader(images, batch, shuffle=True, num_workers=workers)
    for ready, _ in loader:
        yield ready


def measured(load: Callable[..., Iterator[torch.Tensor]], *arguments: object) -> tuple[float, float]:
    """Images per second, and milliseconds of processor time per image, workers included."""
    clock, spent = time.perf_counter(), _processor_seconds()
    count = sum(len(images) for images in load(*arguments))
    return count / (time.perf_counter() - clock), 1000 * (_processor_seconds() - spent) / count


def _processor_seconds() -> float:
    usage = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    return sum(u.ru_utime + u.ru_stime for u in usage)


def main(
    width: int = 500,
    height: int = 375,
    images: int = 384,
    batch: int = 64,
    rounds: int = 7,
    scale: float = SCALE,
    photos: Path | None = None,
) -> None:
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, load {os.getloadavg()[0]:.1f}, {rounds} rounds, {images} JPEGs {width} x {height}"
    )
    with tempfile.TemporaryDirectory() as folder:
        root = Path(folder)
        write_pictures(root, images, width, height, photos)
        print(f"{sum(f.stat().st_size for f in root.rglob('*.jpg')) / images / 1000:.0f} kB each")
        for workers in (0, 2):
            for load in (ours, theirs):
                measured(load, root, batch, workers, scale)  # the first round reads the disk and imports
            pairs = [[measured(load, root, batch, workers, scale) for load in (ours, theirs)] for _ in range(rounds)]
            for number, what in enumerate(("images/s", "processor ms/image")):
                mine, other = ([pair[side][number] for pair in pairs] for side in (0, 1))
                ratios = sorted((a / b if number == 0 else b / a) for a, b in zip(mine, other, strict=True))
                low, high = ratios[len(ratios) // 4], ratios[-1 - len(ratios) // 4]
                ratio = statistics.median(ratios)
                print(
                    f"workers {workers}  {what:18}  ours {statistics.median(mine):8.2f}  "
                    f"theirs {statistics.median(other):8.2f}  ratio {ratio:.2f} [{low:.2f}, {high:.2f}]",
                    flush=True,
                )


if __name__ == "__main__":
    tyro.cli(main)
