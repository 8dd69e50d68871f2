"""Every picture that names stand for: files, tar shards and Parquet files, with what they say about classes."""

import io
import json
import pickle
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from PIL import Image

import vitreous_command
from tests.support.tiny_data import picture, write_shard
from vitreous.data.image import ImageError
from vitreous.data.many_pictures import PackedNames, class_name, gather_pictures, list_pictures
from vitreous.data.pictures import find_pictures
from vitreous.errors import InputError


@pytest.fixture(autouse=True)
def _cache_of_its_own(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def encoded(number: int) -> bytes:
    buffer = io.BytesIO()
    values = np.random.default_rng(number).integers(0, 256, (9, 11, 3), np.uint8)
    Image.fromarray(values).save(buffer, "png")
    return buffer.getvalue()


def pixels(content: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(content)))


def gathered(*names):
    return gather_pictures(names, size=(16, 16))


def labels(images) -> list:
    return [class_name(images, index) for index in range(len(images))]


def test_names_are_packed_and_come_back():
    names = ["a/b.jpg", "", "ü/\udc80.png", "x" * 500]
    packed = PackedNames(iter(names))
    assert list(packed) == names
    assert packed[-1] == names[-1]
    assert packed[1:3] == names[1:3]
    with pytest.raises(IndexError):
        packed[4]


def test_files_are_those_that_find_pictures_finds(tmp_path):
    for name in ("cat/1.png", "cat/2.jpg", "dog/deep/3.png"):
        picture(tmp_path / name)
    images = gathered(str(tmp_path))
    found = find_pictures([str(tmp_path)], size=(16, 16))
    assert [images.name(index) for index in range(3)] == [one.name for one in found]
    assert labels(images) == ["cat", "cat", "deep"]
    assert np.array_equal(np.asarray(images.picture(2)), np.asarray(found[2].load()))
    both = gathered(str(tmp_path / "cat"), str(tmp_path / "cat" / "1.png"), str(tmp_path / "dog"))
    assert len(both) == 3, "a picture named twice is looked at once"


def test_tar_shards_without_labels_and_with(tmp_path):
    caption = json.dumps({"caption": "a cat"}).encode()
    write_shard(tmp_path / "plain-0.tar", {"a.png": encoded(1), "a.json": caption, "b.png": encoded(2)})
    write_shard(tmp_path / "plain-1.tar", {"c.png": encoded(3), "c.txt": b"a dog"})
    images = gathered(str(tmp_path / "plain-{0..1}.tar"))
    names = [Path(images.name(index)).relative_to(tmp_path).as_posix() for index in range(3)]
    assert names == ["plain-0.tar/a.png", "plain-0.tar/b.png", "plain-1.tar/c.png"]
    assert labels(images) == [None] * 3
    assert np.array_equal(np.asarray(images.picture(2)), pixels(encoded(3)))
    write_shard(tmp_path / "named" / "x.tar", {"d.png": encoded(4), "d.cls": b"dog"})
    assert labels(gathered(str(tmp_path / "named"))) == ["dog"]


def test_threads_read_one_shard_at_the_same_time(tmp_path):
    write_shard(tmp_path / "many.tar", {f"{number:03d}.png": encoded(number) for number in range(60)})
    images = gathered(str(tmp_path / "many.tar"))
    with ThreadPoolExecutor(4) as threads:
        found = list(threads.map(images.picture, range(60)))
    for number, one in enumerate(found):
        assert np.array_equal(np.asarray(one), pixels(encoded(number)))


def write_parquet(path: Path, columns: dict, **options) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    pq.write_table(pa.table(columns), path, **options)
    return str(path)


def test_parquet_rows_in_groups(tmp_path):
    for number in range(2):
        rows = [encoded(10 * number + row) for row in range(7)]
        columns = {"image": pa.array(rows, pa.binary()), "label": [row % 3 for row in range(7)]}
        write_parquet(tmp_path / f"part-{number}.parquet", columns, row_group_size=3)
    images = gathered(str(tmp_path))
    assert (len(images), images.file_lengths, images.name(8)) == (
        14,
        (7, 7),
        (tmp_path / "part-1.parquet/1").as_posix(),
    )
    for index in (0, 2, 3, 6, 7, 13):
        assert np.array_equal(np.asarray(images.picture(index)), pixels(encoded(10 * (index // 7) + index % 7)))
    assert labels(images) == ["0", "1", "2", "0", "1", "2", "0"] * 2
    assert pickle.loads(pickle.dumps(images)).name(13) == images.name(13)


def test_parquet_as_datasets_write_it(tmp_path):
    rows = pa.array([{"bytes": encoded(1), "path": "1.png"}, {"bytes": None, "path": "2.png"}])
    features = {"image": {"_type": "Image"}, "label": {"_type": "ClassLabel", "names": ["cat", "dog"]}}
    table = pa.table({"image": rows, "label": [1, None]}).replace_schema_metadata(
        {"huggingface": json.dumps({"info": {"features": features}})}
    )
    pq.write_table(table, tmp_path / "a.parquet")
    images = gathered(str(tmp_path / "a.parquet"))
    assert labels(images) == ["dog", None]
    assert np.array_equal(np.asarray(images.picture(0)), pixels(encoded(1)))
    with pytest.raises(ImageError, match=r"a\.parquet/1' is empty"):
        images.picture(1)


def test_parquet_without_pictures_is_refused(tmp_path):
    with pytest.raises(InputError, match=r"has the columns text \(string\); one with the bytes"):
        gathered(write_parquet(tmp_path / "a.parquet", {"text": ["x"]}))
    (tmp_path / "b.parquet").write_bytes(b"PAR1 not really PAR1")
    with pytest.raises(InputError, match=r"b\.parquet cannot be read"):
        gathered(str(tmp_path / "b.parquet"))


def test_a_missing_extra_is_named_before_the_work(tmp_path, monkeypatch, capsys):
    file = write_parquet(tmp_path / "a.parquet", {"image": pa.array([encoded(1)], pa.binary())})
    for name in [name for name in sys.modules if name.partition(".")[0] == "pyarrow"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    out = tmp_path / "out"
    for words in (["embed", "no_such_model", "shapes:val:0", "--to", "parquet", "--out", str(out)],):
        assert vitreous_command.main(words) == 2
        assert "[parquet]" in capsys.readouterr().err
    assert not out.exists()
    with pytest.raises(ImportError):
        gathered(file)


def test_names_of_every_kind_together(tmp_path):
    picture(tmp_path / "cat" / "1.png")
    write_shard(tmp_path / "a.tar", {"a.png": encoded(1)})
    memory = Image.new("RGB", (5, 5))
    images = gathered(str(tmp_path / "cat"), "shapes:val:2-3", str(tmp_path / "a.tar"), memory)
    names = [images.name(index) for index in range(len(images))]
    assert names == [
        (tmp_path / "cat" / "1.png").as_posix(),
        "shapes:val:2",
        "shapes:val:3",
        f"{tmp_path}/a.tar/a.png",
        "image 4",
    ]
    assert labels(images)[0] == "cat"
    assert labels(images)[3:] == [None, None]
    assert images.picture(4).size == (5, 5)
    assert [one.name for one in list_pictures([memory, memory], size=(4, 4))] == ["image 1", "image 2"]


def test_the_fingerprint_follows_the_names(tmp_path):
    picture(tmp_path / "a" / "1.png")
    before = gathered(str(tmp_path / "a")).fingerprint
    assert gathered(str(tmp_path / "a")).fingerprint == before
    picture(tmp_path / "a" / "2.png")
    assert gathered(str(tmp_path / "a")).fingerprint != before


def test_nothing_to_find_is_said(tmp_path):
    (tmp_path / "empty").mkdir()
    with pytest.raises(InputError, match="holds no image"):
        gathered(str(tmp_path / "empty"))
    with pytest.raises(InputError, match="no images given"):
        gathered()
    with pytest.raises(InputError, match=r"no shard at .*x\.parquet"):
        gathered(str(tmp_path / "x.parquet"))
