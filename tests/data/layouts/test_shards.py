"""Tar shards: found by folder or pattern, indexed once, and then a set like any other."""

import io
import json
import os
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.tiny_data import write_shard
from vitreous.data.layouts import shards as shard_layout
from vitreous.data.layouts.shards import expand_braces
from vitreous.data.loader import FILES_SHUFFLED_TOGETHER, BatchSampler, Loader
from vitreous.data.source import describe, open_data
from vitreous.data.transforms import Augmentation, Preprocess
from vitreous.errors import InputError
from vitreous.tasks.classify import ClassifyTask


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def picture(number: int, kind: str = "png") -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(np.random.default_rng(number).integers(0, 256, (12, 10, 3), np.uint8)).save(
        buffer, {"jpg": "jpeg"}.get(kind, kind)
    )
    return buffer.getvalue()


def samples(first: int, count: int, kind: str = "png") -> dict[str, bytes]:
    """Samples whose label is their number modulo 3."""
    found = {}
    for number in range(first, first + count):
        found[f"{number:04d}.{kind}"] = picture(number, kind)
        found[f"{number:04d}.cls"] = f"{number % 3}\n".encode()
    return found


@pytest.fixture
def root(tmp_path) -> Path:
    for shard in range(3):
        write_shard(tmp_path / "shards" / f"train-{shard:06d}.tar", samples(5 * shard, 5))
    write_shard(tmp_path / "shards" / "val-000000.tar", samples(100, 4))
    return tmp_path / "shards"


def opened(data, split="train"):
    return open_data(str(data), split, size=(8, 8))


def test_samples_are_those_of_the_shards_in_order(root):
    images = opened(root)
    assert (len(images), images.classes, images.file_lengths) == (15, ("0", "1", "2"), (5, 5, 5))
    for number in (0, 7, 14):
        found, target = images[number]
        assert np.array_equal(np.asarray(found), np.asarray(Image.open(io.BytesIO(picture(number)))))
        assert target == {"labels": number % 3}
    assert images.name(7) == "train-000001.tar/0007.png"
    assert len(opened(root, "val")) == 4
    assert "(tar shards): 15 train images" in describe(str(root), train=images)


def test_labels_by_name_and_by_json(tmp_path):
    members = {"a.jpg": picture(1, "jpg"), "a.json": json.dumps({"caption": "", "label": "cat"}).encode()}
    members |= {"b.JPG": picture(2, "jpg"), "b.cls": b"ant", "b.json": b"{}"[:0] + json.dumps({"cls": "dog"}).encode()}
    write_shard(tmp_path / "train-0.tar", members)
    write_shard(tmp_path / "val-0.tar", {"x/y.z.png": b"", "x/c.png": picture(3), "x/c.json": b'{"class": "bee"}'})
    images = opened(tmp_path)
    assert images.classes == ("ant", "bee", "cat"), "all splits have a say; .cls goes before .json"
    assert [images.target(index)["labels"] for index in range(2)] == [2, 0]
    assert opened(tmp_path, "val").name(0) == "val-0.tar/x/c.png"
    (tmp_path / "classes.txt").write_text("cat\nbee\nant\n")
    assert opened(tmp_path).target(0) == {"labels": 0}
    (tmp_path / "classes.txt").write_text("cat\nbee\n")
    with pytest.raises(InputError, match=r"label 'ant' .* is none of the 2 classes in classes\.txt"):
        opened(tmp_path)


@pytest.mark.parametrize(
    "data",
    [
        "shards",
        "shards/*.tar",
        "shards/{train,val}-{000000..000002}.tar",
        "shards/train-{000000..000002}.tar",
        "shards/train-00000?.tar",
    ],
)
def test_folders_and_patterns(root, monkeypatch, data):
    monkeypatch.chdir(root.parent)
    for number in (1, 2):
        write_shard(root / f"val-{number:06d}.tar", samples(200 + 4 * number, 4))
    assert opened(data).fingerprint == opened(root).fingerprint
    if "train" not in data:
        assert len(opened(data, "val")) == 12


def test_folders_named_by_split_and_longer_names(tmp_path):
    write_shard(tmp_path / "a" / "train" / "00.tar", samples(0, 3))
    write_shard(tmp_path / "a" / "validation" / "00.tar", samples(9, 3))
    write_shard(tmp_path / "b" / "imagenet1k-train-0000.tar", samples(0, 3))
    write_shard(tmp_path / "b" / "imagenet1k-validation-00.tar", samples(9, 3))
    for folder in ("a", "b"):
        assert [len(opened(tmp_path / folder, split)) for split in ("train", "val")] == [3, 3]


def test_braces():
    assert expand_braces("a-{08..10}.tar") == ["a-08.tar", "a-09.tar", "a-10.tar"]
    assert expand_braces("{a,b}{0..1}") == ["a0", "a1", "b0", "b1"]
    for wrong in ("{0..99999999}", "{9..1}", "{0..9999}{0..9999}"):
        with pytest.raises(InputError, match="files"):
            expand_braces(wrong)


@pytest.mark.parametrize(
    ("members", "message"),
    [
        ({"1.png": picture(1)}, r"1 of the samples .* have no label .*'1'"),
        ({"1.cls": b"0"}, "have no picture"),
        ({}, "holds no samples"),
        ({"1.png": picture(1), "1.jpg": picture(2, "jpg"), "1.cls": b"0"}, "two pictures named '1'"),
        ({"1.png": picture(1), "1.json": b"{"}, "is no JSON"),
        ({"1.png": picture(1), "1.json": b'{"label": [1]}'}, "has no label; a number or a name under label or cls"),
        ({"1.png": picture(1), "1.cls": b"0" * (1 << 21)}, "too many for a label"),
    ],
)
def test_shards_that_cannot_be_used_say_why(tmp_path, members, message):
    write_shard(tmp_path / "train-0.tar", members)
    with pytest.raises(InputError, match=message):
        opened(tmp_path)


def test_damaged_shards_are_named(root):
    shard = root / "train-000001.tar"
    whole = shard.read_bytes()
    for content in (whole[:4000], whole[:2700], whole[:2048] + b"\x01" * 512 + whole[2560:], b"x" * 2048):
        shard.write_bytes(content)
        with pytest.raises(InputError, match=r"train-000001\.tar' (is cut off or damaged|cannot be read)"):
            opened(root)
    import gzip

    shard.write_bytes(gzip.compress(whole))
    with pytest.raises(InputError, match="compressed; unpack it"):
        opened(root)
    with pytest.raises(InputError, match=r"no shard at '.*train-9\.tar'"):
        opened(root / "train-{9..9}.tar")
    write_shard(root.parent / "odd" / "part-0.tar", samples(0, 3))
    with pytest.raises(InputError, match="says in its name which split"):
        opened(root.parent / "odd" / "part-*.tar")


# ---- the index -------------------------------------------------------------------------------------------------


@pytest.fixture
def scanned(monkeypatch) -> list[str]:
    """Names of the shards that were read through."""
    seen, scan = [], shard_layout._scan
    monkeypatch.setattr(shard_layout, "_scan", lambda path: (seen.append(path.name), scan(path))[1])
    return seen


def test_the_index_is_built_once_and_follows_changes(root, scanned):
    first = opened(root)
    assert len(scanned) == 4
    assert len(list(root.glob(".vitreous-*.npz"))) == 2, "one for each split, and no temporary file"
    scanned.clear()
    assert opened(root).fingerprint == first.fingerprint
    assert scanned == []
    write_shard(root / "train-000001.tar", samples(50, 7))
    changed = opened(root)
    assert scanned == ["train-000001.tar"]
    assert changed.file_lengths == (5, 7, 5)
    assert changed.fingerprint != first.fingerprint
    assert [changed.name(index) for index in (4, 5, 12)] == [
        "train-000000.tar/0004.png",
        "train-000001.tar/0050.png",
        "train-000002.tar/0010.png",
    ]


def test_a_damaged_index_is_built_again(root, scanned):
    first = opened(root).fingerprint
    for kept in root.glob(".vitreous-*.npz"):
        kept.write_bytes(kept.read_bytes()[:200])
    scanned.clear()
    assert opened(root).fingerprint == first
    assert len(scanned) == 4


def test_a_folder_that_cannot_be_written(root, scanned, monkeypatch):
    make = shard_layout.atomic_file

    def refuse(path, **options):
        if path.parent == root:
            raise PermissionError(13, "Permission denied")
        return make(path, **options)

    monkeypatch.setattr(shard_layout, "atomic_file", refuse)
    opened(root)
    scanned.clear()
    opened(root)
    assert scanned == [], "the index is in the cache folder"
    assert not list(root.glob(".vitreous*"))


# ---- as any other set ------------------------------------------------------------------------------------------


def batches(images, *, workers=0, rank=0, world=1, start=0):
    task = ClassifyTask(images.classes)
    sampler = BatchSampler(
        len(images), 6, seed=1, shuffle=True, file_lengths=images.file_lengths, rank=rank, world=world
    )
    loader = Loader(task.dataset(images, Augmentation(Preprocess((8, 8)))), sampler, task.collate, workers=workers)
    loader.set_position(3, start)
    found = list(loader)
    loader.close()
    return found


def test_same_batches_for_any_workers_ranks_and_position(root):
    images = opened(root)
    expected = batches(images)
    for workers in (1, 2):
        found = batches(opened(root), workers=workers)
        assert [batch.indices for batch in found] == [batch.indices for batch in expected]
        assert all(torch.equal(a.images, b.images) for a, b in zip(found, expected, strict=True))
    halves = [batches(images, rank=rank, world=2) for rank in range(2)]
    for whole, *parts in zip(expected, *halves, strict=True):
        shared = {index: image for part in parts for index, image in zip(part.indices, part.images, strict=True)}
        assert sorted(shared) == sorted(whole.indices)
        assert torch.equal(torch.stack([shared[index] for index in whole.indices]), whole.images)
    assert torch.equal(batches(images, start=1)[0].images, expected[1].images)


def test_many_shards_are_shuffled_in_windows():
    lengths = [3 + file % 2 for file in range(3 * FILES_SHUFFLED_TOGETHER)]
    sampler = BatchSampler(sum(lengths), 8, seed=1, shuffle=True, file_lengths=lengths)
    orders = [sampler.order(epoch) for epoch in (0, 1)]
    assert all(sorted(order) == list(range(sum(lengths))) for order in orders)
    assert orders[0] != orders[1]
    file = np.repeat(np.arange(len(lengths)), lengths)
    in_first = set(file[orders[0]][: 3 * FILES_SHUFFLED_TOGETHER].tolist())
    assert len(in_first) <= FILES_SHUFFLED_TOGETHER, "the first samples come from few files"
    assert in_first != set(file[orders[1]][: 3 * FILES_SHUFFLED_TOGETHER].tolist()), "in each epoch from others"


def test_a_sample_read_by_a_child_does_not_move_the_parent(root):
    """A file position is shared with a forked child; each process opens its own."""
    images = opened(root)
    first = images.encoded(0)
    child = os.fork()
    if child == 0:
        images.encoded(9)
        os._exit(0)
    os.waitpid(child, 0)
    assert images.encoded(1) == picture(1)
    assert first == picture(0)
