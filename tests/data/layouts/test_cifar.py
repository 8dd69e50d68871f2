"""CIFAR's own files, written here in miniature, and pickles that want to do more than hold data."""

import os
import pickle
import tarfile
from pathlib import Path

import numpy as np
import pytest

from vitreous.data.layouts.cifar import EDITIONS
from vitreous.data.source import describe, open_data
from vitreous.errors import InputError

TEN, HUNDRED = EDITIONS
NAMES = {TEN.folder: ["plane", "car", "bird"], HUNDRED.folder: ["apple", "bear"]}


def rows(count: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (count, 3072), np.uint8)


def write(edition, folder: Path, protocol: int = 2) -> Path:
    """As Python 2 wrote them: keys, and the file's own name, are bytes."""
    folder.mkdir(parents=True)
    (folder / edition.names).write_bytes(
        pickle.dumps({edition.names_key: [name.encode() for name in NAMES[edition.folder]]}, protocol)
    )
    for number, file in enumerate(name for files in edition.files.values() for name in files):
        content = {b"data": rows(4, number), edition.labels_key: [0, 1, 1, 0], b"batch_label": file.encode()}
        (folder / file).write_bytes(pickle.dumps(content, protocol))
    return folder


def opened(data, split="train"):
    return open_data(str(data), split, size=(32, 32))


@pytest.mark.parametrize("edition", EDITIONS, ids=lambda edition: edition.folder)
@pytest.mark.parametrize("protocol", [1, 2, 3, 4])
def test_pictures_and_labels(tmp_path, edition, protocol):
    folder = write(edition, tmp_path / edition.folder, protocol)
    for place in (folder, tmp_path):
        images = opened(place)
        files = len(edition.files["train"])
        assert (len(images), images.classes) == (4 * files, tuple(NAMES[edition.folder]))
        last = len(images) - 1
        picture, target = images[last]
        assert target == {"labels": 0}
        assert np.array_equal(np.asarray(picture), rows(4, files - 1)[3].reshape(3, 32, 32).transpose(1, 2, 0))
        assert images.name(last) == f"train/{last}"
        held_out = opened(place, "val")
        assert np.array_equal(np.asarray(held_out[0][0])[..., 2].ravel(), rows(4, files)[0, 2048:])
        assert "(CIFAR)" in describe(str(place), train=images, val=held_out)
    assert opened(folder).fingerprint == opened(folder).fingerprint != opened(folder, "test").fingerprint


@pytest.mark.parametrize("edition", EDITIONS, ids=lambda edition: edition.folder)
def test_the_archive_need_not_be_unpacked(tmp_path, edition):
    folder = write(edition, tmp_path / "unpacked" / edition.folder)
    with tarfile.open(tmp_path / edition.archive, "w:gz") as archive:
        archive.add(folder, edition.folder)
    for place in (tmp_path / edition.archive, tmp_path):
        assert opened(place).fingerprint == opened(folder).fingerprint
    packed = (tmp_path / edition.archive).read_bytes()
    (tmp_path / edition.archive).write_bytes(packed[: len(packed) // 2])
    with pytest.raises(InputError, match="download it again"):
        opened(tmp_path)


class Hostile:
    def __init__(self, call, *arguments) -> None:
        self.reduced = call, arguments

    def __reduce__(self):
        return self.reduced


@pytest.mark.parametrize(
    "attack",
    [
        Hostile(os.system, "touch owned"),
        Hostile(eval, "open('owned', 'w')"),
        Hostile(open, "owned", "w"),
        Hostile(getattr, "text", "upper"),
        Hostile(np.fromfile, "owned"),
        Hostile(np.ndarray, (1,)),
    ],
    ids=lambda attack: str(attack.reduced[0]),
)
def test_a_pickle_cannot_do_anything(tmp_path, monkeypatch, attack):
    monkeypatch.chdir(tmp_path)
    folder = write(TEN, tmp_path / TEN.folder)
    for content in (attack, {b"data": attack, b"labels": [0]}, {b"data": rows(1, 0), b"labels": [attack]}):
        (folder / "data_batch_2").write_bytes(pickle.dumps(content))
        with pytest.raises(
            InputError, match=r"data_batch_2' is damaged or no CIFAR file: (it asks for|TypeError: _Array)"
        ):
            opened(folder)
    assert not (tmp_path / "owned").exists()


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        ({b"data": rows(3, 0), b"labels": [0, 1]}, "does not hold 32 x 32 pictures for its 2 labels"),
        ({b"data": rows(2, 0).astype(np.float32), b"labels": [0, 1]}, "plain bytes"),
        ({b"data": rows(2, 0), b"labels": [0, 3]}, "labels go from 0 to 3 for 3 classes"),
        ({b"data": rows(2, 0), b"labels": ["a", "b"]}, "no whole numbers"),
        ({b"data": "text", b"labels": [0]}, "does not hold"),
        ({b"labels": [0]}, "data"),
        ([1, 2], "is damaged"),
    ],
)
def test_other_content_is_refused(tmp_path, content, reason):
    folder = write(TEN, tmp_path / TEN.folder)
    (folder / "data_batch_1").write_bytes(pickle.dumps(content))
    with pytest.raises(InputError, match=reason):
        opened(folder)


def test_missing_and_cut_files_are_named(tmp_path):
    folder = write(TEN, tmp_path / TEN.folder)
    content = (folder / "data_batch_3").read_bytes()
    (folder / "data_batch_3").write_bytes(content[:100])
    with pytest.raises(InputError, match="data_batch_3' is damaged"):
        opened(folder)
    (folder / "data_batch_3").unlink()
    with pytest.raises(InputError, match="lacks data_batch_3"):
        opened(folder)
