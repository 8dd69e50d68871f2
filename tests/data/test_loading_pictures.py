"""Pictures on their way into batches: the same for any workers and ranks, with some of them damaged."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.layouts.folder import ClassFolder
from vitreous.data.loader import LONGEST_GAP, BatchSampler, Loader
from vitreous.data.transforms import Augmentation, Preprocess
from vitreous.errors import InputError
from vitreous.tasks.classify import ClassifyTask

COUNT, BAD = 24, {3, 4, 11, 23}  # the last is replaced by the first


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("data")
    rng = np.random.default_rng(0)
    for index in range(COUNT):
        file = folder / "train" / "ab"[index // 12] / f"{index:02d}.jpg"
        file.parent.mkdir(parents=True, exist_ok=True)
        Image.fromarray(rng.integers(0, 256, (80, 100, 3), np.uint8)).save(file)
        if index in BAD:
            file.write_bytes(file.read_bytes()[:500])
    return folder


def load(root: Path, *, workers=0, replace=True, shuffle=True, batch=6, rank=0, world=1, start=0, epoch=2):
    images = ClassFolder(root, "train")
    task, preprocess = ClassifyTask(images.classes), Preprocess((16, 16))
    every = Augmentation(preprocess, policy="rand-m9-mstd0.5-inc1", color_jitter=0.4, erasing=0.5, scale=0.2)
    sampler = BatchSampler(len(images), batch, seed=5, shuffle=shuffle, rank=rank, world=world)
    view = every if replace else preprocess.pixels
    loader = Loader(
        task.dataset(images, view), sampler, task.collate, workers=workers, replace=replace,
        finish=preprocess.normalise_bytes,
    )  # fmt: skip
    loader.set_position(epoch, start)
    found = list(loader)
    loader.close()
    return found


def same(found, expected) -> None:
    assert [batch.indices for batch in found] == [batch.indices for batch in expected]
    assert [batch.unreadable for batch in found] == [batch.unreadable for batch in expected]
    assert all(torch.equal(a.images, b.images) for a, b in zip(found, expected, strict=True))
    assert all(torch.equal(a.targets["labels"], b.targets["labels"]) for a, b in zip(found, expected, strict=True))


@pytest.mark.filterwarnings("ignore:This DataLoader will create 4 worker processes")
@pytest.mark.parametrize("workers", [1, 2, 4])
def test_any_number_of_workers_gives_the_same(root, workers):
    same(load(root, workers=workers), load(root))


@pytest.mark.parametrize("workers", [0, 2])
def test_any_number_of_ranks_gives_the_same(root, workers):
    whole = load(root)
    ranks = [load(root, rank=rank, world=2, workers=workers) for rank in range(2)]
    for batch, *shares in zip(whole, *ranks, strict=True):
        made = [one for share in shares for one in zip(share.indices, share.images.tolist(), strict=True)]
        assert sorted(made) == sorted(zip(batch.indices, batch.images.tolist(), strict=True))
        assert sorted({one for share in shares for one in share.unreadable}) == sorted(set(batch.unreadable))


def test_an_epoch_continues_with_the_same(root):
    same(load(root, start=2), load(root)[2:])


def test_training_takes_the_next_one_instead(root):
    plain, drawn = load(root, shuffle=False), range(COUNT)
    replaced = {3: 5, 4: 5, 11: 12, 23: 0}
    assert [index for batch in plain for index in batch.indices] == [replaced.get(index, index) for index in drawn]
    assert {one.sample for batch in plain for one in batch.unreadable} == BAD
    assert "cannot be decoded" in plain[0].unreadable[0].reason
    labels = torch.cat([batch.targets["labels"] for batch in plain])
    assert labels[4] == 0, "the label is that of the picture that came instead"
    assert labels[11] == 1


def test_evaluation_goes_without(root):
    found = load(root, replace=False, shuffle=False, batch=1)
    assert [batch.indices for batch in found] == [() if index in BAD else (index,) for index in range(COUNT)]
    assert {one.sample for batch in found for one in batch.unreadable} == BAD
    assert [len(batch.images) for batch in load(root, replace=False, shuffle=False)] == [4, 5, 6, 5]


@pytest.mark.parametrize("workers", [0, 1])
def test_nothing_but_damage_ends_it(tmp_path, workers):
    for index in range(LONGEST_GAP + 20):
        file = tmp_path / "train" / "a" / f"{index}.png"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(b"nothing")
    with pytest.raises(InputError, match=rf"{LONGEST_GAP} images in a row cannot be read; the first: image '.*\.png'"):
        load(tmp_path, workers=workers)


def test_batches_are_finished_where_the_model_is(root):
    images, preprocess = ClassFolder(root, "train"), Preprocess((16, 16))
    task = ClassifyTask(images.classes)
    loader = Loader(
        task.dataset(images, preprocess.pixels), BatchSampler(2, 2), task.collate, workers=0,
        finish=preprocess.normalise_bytes,
    )  # fmt: skip
    batch = next(iter(loader))
    assert batch.images.dtype == torch.uint8
    ready, targets = loader.on(batch, torch.device("cpu"), torch.channels_last)
    assert ready.is_contiguous(memory_format=torch.channels_last)
    assert torch.equal(ready[1], preprocess(images[1][0]))
    assert targets["labels"].tolist() == [0, 0]
