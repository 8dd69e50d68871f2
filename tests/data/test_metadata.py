"""What else is known about pictures: read lazily, matched by path, passed on by every wrapper."""

import json
from pathlib import Path

import pytest

from tests.support.tiny_data import picture
from vitreous.check import check
from vitreous.data import metadata
from vitreous.data.groups import group_pictures
from vitreous.data.image_set import Subset
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.shapes import shapes

SIZE = (32, 32)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(8):
        split, kind = ("train", "val")[number // 6], ("cat", "dog")[number % 2]
        picture(tmp_path / "photos" / split / kind / f"{number}.png", seed=number)
    return tmp_path / "photos"


def table(root: Path, rows: dict[str, str], header: str = "file_name,place") -> None:
    (root / "metadata.csv").write_text("\n".join([header, *(f"{name},{value}" for name, value in rows.items())]) + "\n")


def places(data: Path | str, split: str = "train", **options) -> dict[str, str | None]:
    images = open_data(str(data), split, size=SIZE, **options)
    return {images.name(i): images.attributes(i).get("place") for i in range(len(images))}


ALL = {
    "cat/0.png": "garden",
    "dog/1.png": "street",
    "cat/2.png": "street",
    "dog/3.png": "street",
    "cat/4.png": "garden",
}


def test_rows_are_paths_from_the_folder_of_the_file(photos):
    expected = {f"train/{name}": place for name, place in ALL.items()} | {"train/dog/5.png": None}
    table(photos, {f"train/{name}": place for name, place in ALL.items()} | {"val/cat/6.png": "moon"})
    assert places(photos) == expected
    assert places(photos, "val") == {"val/cat/6.png": "moon", "val/dog/7.png": None}
    (photos / "metadata.csv").unlink()
    table(photos / "train", ALL)
    assert places(photos) == expected
    assert places(photos / "train", val_fraction=1, split="val") == {
        n.removeprefix("train/"): p for n, p in expected.items()
    }


def test_the_file_nearest_to_the_pictures_counts(photos):
    table(photos, {"train/cat/0.png": "far"})
    table(photos / "train", {"cat/0.png": "near"})
    assert places(photos)["train/cat/0.png"] == "near"


def test_json_lines_and_other_names_of_the_column(photos):
    rows = [
        {"img_filename": f"train/{name}", "place": place, "y": 1, "sunny": True, "boxes": [1, 2]}
        for name, place in ALL.items()
    ]
    rows[0] |= {"place": None}
    (photos / "metadata.jsonl").write_text("\n".join(map(json.dumps, rows)) + "\n\n")
    images = open_data(str(photos), "train", size=SIZE)
    assert images.attribute_names == ("place", "y", "sunny")
    assert dict(images.attributes(0)) == {"y": "1", "sunny": "true"}


def test_wrappers_pass_it_on(photos):
    table(photos / "train", ALL)
    (photos / "quarantine.txt").write_text("train/cat/0.png\n")
    kept = open_data(str(photos), "train", size=SIZE)
    assert kept.attribute_names == ("place",)
    assert [kept.attributes(i).get("place") for i in range(5)] == ["street", "garden", "street", "street", None]
    assert Subset(kept, [1, 3]).attributes(1) == {"place": "street"}
    held = {**places(photos / "train", "train"), **places(photos / "train", "val")}
    assert held == {name: ALL.get(name) for name in [*ALL, "dog/5.png"]}


def test_who_asks_for_nothing_is_not_stopped(photos, monkeypatch):
    (photos / "metadata.csv").write_bytes(b"\xff\x00nonsense")
    images = open_data(str(photos), "train", size=SIZE)
    assert len(images) == 6
    with pytest.raises(InputError, match=r"metadata.csv cannot be read: .*; save it as UTF-8"):
        images.attributes(0)
    monkeypatch.setattr(metadata, "MAX_METADATA_BYTES", 4)
    with pytest.raises(InputError, match="has 10 bytes; at most 4 are read"):
        images.attributes(0)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("id,place\n1,a\n", "line 1 has no column file_name or img_filename or filename, which names the"),
        ("id,place\n1,a\n", "picture; it has: id, place; correct the file"),
        ("", "line 1 has no column"),
        ("file_name,place\ncat/0.png,a\ncat/0.png,b\n", "line 3 is a second row about 'cat/0.png', with other values"),
        ("file_name,place\ncat/0.png,a,b\n", "line 2 has 3 cells, but the first line has 2"),
        ("file_name,place,place\n", "has the column 'place' twice"),
        ("file_name,place\n,a\n", "line 2 names no picture"),
        ('file_name,place\n"cat/0.png,a\n', "unexpected end of data"),
        ("file_name,place\nmouse.png,a\n", "is about none of the 6 pictures: its first row is for 'mouse.png', and the first "),
        ("file_name,place\n", "is about none of the 6 pictures: it has no row"),
        (f"file_name,{','.join(map(str, range(1001)))}\ncat/0.png\n,", "more than 1,000 columns"),
    ],
)  # fmt: skip
def test_faults_are_one_line_that_names_the_file(photos, text, said):
    (photos / "train" / "metadata.csv").write_text(text)
    images = open_data(str(photos), "train", size=SIZE)
    with pytest.raises(InputError) as refused:
        images.attributes(0)
    assert said in str(refused.value)
    assert str(photos / "train" / "metadata.csv") in str(refused.value)
    assert "\n" not in str(refused.value)


def test_faults_of_json_lines(photos):
    file = photos / "train" / "metadata.jsonl"
    for text, said in (("[1]\n", r"line 1 is \[1\], not an object in braces"), ("{\n", "cannot be read")):
        file.write_text(text)
        with pytest.raises(InputError, match=said):
            open_data(str(photos), "train", size=SIZE).attributes(0)


def test_check_remarks_on_rows_and_pictures_that_do_not_fit(photos, capsys):
    table(photos / "train", ALL | {"cat/99.png": "lost"})
    report = check(str(photos), workers=0, write=False)
    found = {finding.text: finding.images for finding in report.findings if finding.kind == "metadata"}
    assert list(found.values()) == [("cat/99.png",), ("train/dog/5.png",)]
    assert report.exit_code == 0
    table(photos / "train", {"x": "1"}, header="id,y")
    report = check(str(photos), workers=0, write=False)
    assert [finding.problem for finding in report.findings if finding.kind == "metadata"] == [False]


# ---- groups -------------------------------------------------------------------------------------------------------


def test_groups_of_several_columns(photos):
    table(photos / "train", ALL | {"dog/5.png": "garden"})
    groups = group_pictures(open_data(str(photos), "train", size=SIZE), ("place", "class"), "--groups")
    assert groups.names == (
        "place=garden, class=cat", "place=garden, class=dog", "place=street, class=cat", "place=street, class=dog",
    )  # fmt: skip
    assert groups.members == (0, 2, 0, 3, 3, 1)
    assert groups.sizes == (2, 1, 1, 2)


def test_groups_that_cannot_be_made(photos):
    images = open_data(str(photos), "train", size=SIZE)
    for columns, said in (
        (
            ("place",),
            r"--groups place: the images have no such column; nearest: class; all: class; add others in metadata",
        ),
        (("class", "class"), "'class' is given twice"),
    ):
        with pytest.raises(InputError, match=said):
            group_pictures(images, columns, "--groups")
    table(photos / "train", ALL, header="file_name,place")
    images = open_data(str(photos), "train", size=SIZE)
    with pytest.raises(InputError, match=r"1 of 6 images have no value of it, the first is 'train/dog/5.png'; add"):
        group_pictures(images, ("place",), "--groups")
    table(photos / "train", dict.fromkeys([*ALL, "dog/5.png"], "here"))
    images = open_data(str(photos), "train", size=SIZE)
    with pytest.raises(InputError, match=r"all 6 images are of one group \(place=here\).*columns: class, place"):
        group_pictures(images, ("place",), "--groups")
    with pytest.raises(InputError, match=r"no such column; nearest: place; all: class, place$"):
        group_pictures(images, ("plce",), "--groups")
    table(photos / "train", {name: str(number) for number, name in enumerate([*ALL, "dog/5.png"])})
    images = open_data(str(photos), "train", size=SIZE)
    with pytest.raises(InputError, match="each of the 6 images would be a group of its own"):
        group_pictures(images, ("place",), "--groups")


@pytest.mark.parametrize(("layout", "targets"), [("folder", "labels"), ("coco", "boxes"), ("masks", "semantic")])
def test_written_shapes_bring_their_marks(tmp_path, layout, targets):
    out = shapes(out=tmp_path / "toy", format=layout, count=20, size=32, shortcut="stripe=0.5,test=absent")
    for split, count in (("train", 20), ("val", 10)):
        drawn = open_data("shapes:stripe=0.5,test=absent", split, size=SIZE, count=count)
        there = open_data(str(out), split, size=SIZE, targets=targets)
        assert there.attribute_names == drawn.attribute_names == ("mark", "agrees")
        order = sorted(range(count), key=lambda i: Path(there.name(i)).name)  # the number of the sample
        assert [dict(there.attributes(i)) for i in order] == [dict(drawn.attributes(i)) for i in range(count)]
        assert all(there.picture(i).tobytes() == drawn.picture(n).tobytes() for n, i in enumerate(order))
