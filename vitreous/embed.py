"""Pooled features of pictures: what a classifier sees last, to search, cluster and classify with.

vitreous embed runs/demo photos --out features
"""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from vitreous.data.image_set import ImageSet
from vitreous.data.many_pictures import gather_pictures
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.measurements.plan import read_amount
from vitreous.models.pooled import forward_pooled
from vitreous.predict import images_together, opened_model
from vitreous.runs.answer_shards import fill_shards, report_shards
from vitreous.runs.features import ENDINGS, FEATURES, WRITERS, FeatureSet, collect, load_features
from vitreous.runs.result_shards import model_fingerprint, open_shards, own_share
from vitreous.runs.results import require_numbers, require_positive
from vitreous.runs.streaming import PictureOutcome, PictureSource, stream
from vitreous.runs.trained_model import TrainedModel, feature_width
from vitreous.runtime.device import choose_device


def embed(
    model: str,
    data: tuple[str, ...],
    *,
    out: Path,
    split: str | None = None,
    to: Literal["safetensors", "parquet"] = "safetensors",
    shard_size: int | None = None,
    batch_size: int = 32,
    size: int | str | None = None,
    max_memory: str | None = None,
    follow: bool = False,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
) -> FeatureSet | None:
    """Write the pooled features of pictures, which the model's classifier takes its answer from.

    Any of our classifiers and of timm's. --out gets shards that are whole or absent, with names, labels where the data
    know them, and shards.json, which says what they are of. The same command continues after a kill; torchrun divides
    the shards over processes and machines (docs/many.md). In Python, vitreous.load_features("features") gives names,
    labels and one array, of which only what is used is read.

    Files that cannot be read are named and left out.

    Examples:
        vitreous embed runs/demo photos --out features
        vitreous embed runs/demo shapes --split val --out features
        vitreous embed paca_tiny 'photos-{000..099}.tar' --to parquet --out features
        torchrun --nproc-per-node 2 -m vitreous embed runs/demo photos --out features

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous info). In
            Python also what `vitreous.load_model` gives.
        data: Files, folders, patterns such as 'photos/*.jpg', tar shards, Parquet files with pictures as bytes, samples
            of the embedded data (shapes:val:0-7), or with --split data of any layout (docs/data.md). In Python also
            pictures in memory.
        out: Folder for the shards.
        split: train, val or test of data in a layout, with its labels; default: every picture that DATA stands for.
            A file's label then is the name of its folder.
        to: Kind of files.
        shard_size: Pictures in a shard; default: 2,048, and fewer where there are few for the processes.
        batch_size: Pictures per forward pass.
        size: Height and width the pictures are brought to, as 448 or 4000x6000; default: what the model was trained
            with.
        max_memory: Most memory to take beside the loaded model, such as 3GB; a plan is told first.
        follow: With --split: open pictures that the files of the data name outside of its folder.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where it does not tell it itself.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.

    Returns:
        The features, as `vitreous.load_features` gives them; None while shards of other processes are missing.
    """
    require_positive(shard_size=shard_size, batch_size=batch_size)
    allowed = None if max_memory is None else read_amount(max_memory)
    if to == "parquet":
        import pyarrow  # noqa: F401  (a missing package is told before the work)
    share = own_share()
    place = choose_device(device, local_rank=share.on_machine)
    trained = opened_model(model, architecture, model_args, size, device, place, features=True)
    width = feature_width(trained)
    together = images_together(trained, batch_size, allowed)
    images = pictures_to_embed(trained, data, split, follow)
    about = {"model": trained.name, "fingerprint": model_fingerprint(trained), "settings": {"split": split, "to": to}}
    shards = open_shards(out, FEATURES, ENDINGS[to], images, share, shard_size, about)

    def streamed(batches: Iterable[Sequence[PictureSource]]) -> Iterator[list[PictureOutcome]]:
        def prepare(source: PictureSource) -> Tensor:
            return trained.preprocess.pixels(source.load())

        return stream(trained, batches, prepare, pooled_features, side_by_side=together.passes)

    def write(file: IO[bytes], outcomes: Iterator[PictureOutcome]) -> None:
        WRITERS[to](file, collect(images, width, outcomes))

    report_shards(shards, fill_shards(shards, images, together.batch, streamed, write, label="embed"))
    return None if shards.missing(range(shards.count)) else load_features(out)


def pictures_to_embed(trained: TrainedModel, data: Sequence[Any], split: str | None, follow: bool) -> ImageSet:
    if split is None:
        return gather_pictures(data, size=trained.preprocess.size)
    if len(data) != 1 or not isinstance(data[0], str):
        raise InputError(f"--split {split} goes with one data set, and {len(data)} were given; leave it out")
    return open_data(data[0], split, size=trained.preprocess.size, val_fraction=trained.val_fraction, follow=follow)


def pooled_features(trained: TrainedModel, pixels: list[Tensor]) -> list[NDArray[np.float32]]:
    """(C) of each of pictures as `Preprocess.pixels` gives them."""
    inputs = trained.preprocess.normalise_bytes(torch.stack(pixels).to(trained.device))
    with torch.inference_mode():
        found = forward_pooled(trained.model, inputs).float().cpu()
    require_numbers(trained.name, found)
    return list(found.numpy())
