"""Tables of pictures: what their columns mean, and what is refused, in one line that names the line."""

from pathlib import Path

import pytest

from tests.support.tiny_data import picture
from vitreous.data.many_pictures import list_pictures
from vitreous.data.pictures import find_pictures
from vitreous.data.source import open_data, recognise
from vitreous.errors import InputError
from vitreous.tasks.base import load_task


def table(root: Path, text: str, name: str = "photos.csv", count: int = 6) -> str:
    """A table beside pictures 0.png, 1.png and so on."""
    for number in range(count):
        picture(root / f"{number}.png", seed=number)
    (root / name).write_text(text)
    return str(root / name)


def opened(data: str, split: str = "train", targets: str = "labels", **options):
    return open_data(data, split, size=(8, 8), targets=targets, **options)


def labels(images) -> dict[str, str]:
    return {images.name(i): images.classes[images.target(i)["labels"]] for i in range(len(images))}


def test_labels_splits_and_attributes(tmp_path):
    text = (
        "split,Label,path,place\ntrain,dog,0.png,garden\ntrain,cat,./1.png,\nvalid,dog,2.png,street\nTEST,cow,3.png,\n"
    )
    data = table(tmp_path, text)
    train, val, test = (opened(data, split) for split in ("train", "val", "test"))
    assert train.classes == val.classes == ("cat", "cow", "dog")
    assert labels(train) == {"0.png": "dog", "1.png": "cat"}
    assert labels(val) == {"2.png": "dog"}
    assert labels(test) == {"3.png": "cow"}
    assert train.attribute_names == ("place",)
    assert [train.attributes(index) for index in range(2)] == [{"place": "garden"}, {}]
    assert train.picture(0).size == (40, 30)
    before = train.fingerprint
    (tmp_path / "photos.csv").write_text(text.replace("train,cat", "train,dog"))
    assert opened(data).fingerprint != before


def test_without_splits_a_share_is_held_out(tmp_path):
    data = table(tmp_path, "image\tclass\n" + "".join(f"{n}.png\t{n % 2}\n" for n in range(6)), "photos.tsv")
    train, val = opened(data), opened(data, "val")
    assert len(train) + len(val) == 6
    assert train.classes == ("0", "1")
    assert not labels(train).keys() & labels(val).keys()


def test_numbers_count_and_a_row_may_be_repeated(tmp_path):
    data = table(tmp_path, "path,label,split\n0.png,10,train\n0.png,10,train\n1.png,9,train\n2.png,9,val\n")
    assert opened(data).classes == ("9", "10")
    assert len(opened(data)) == 2


def test_boxes(tmp_path):
    rows = "0.png,1,2,11,12,cat,train\n0.png,5,5,9,8.5,dog,train\n1.png,,,,,,train\n2.png,0,0,4,4,dog,val\n"
    data = table(tmp_path, f"path,xmin,ymin,xmax,ymax,label,split\n{rows}")
    train = opened(data, targets="boxes")
    assert [train.name(index) for index in range(len(train))] == ["0.png", "1.png"]
    objects = train.target(0)["objects"]
    assert objects.boxes.tolist() == [[1, 2, 11, 12], [5, 5, 9, 8.5]]
    assert [train.classes[label] for label in objects.labels] == ["cat", "dog"]
    assert len(train.target(1)["objects"]) == 0
    assert len(opened(data, "val", "boxes")) == 1


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (
            "path,label\n0.png,cat\n7.png,dog\n8.png,dog\n",
            r"line 3 names '7\.png', and there is no such file in .*\(2 of 3",
        ),
        (
            "path,label\n0.png,cat\n1.png,3\n",
            r"labels of two kinds: numbers \(line 3: '3'\) and names \(line 2: 'cat'\)",
        ),
        ("path,label\n0.png,cat\n1.png,\n", "line 3 has no label; write the class"),
        (
            "path,label\n0.png,cat\n0.png,dog\n",
            r"line 3 says 'dog' about '0\.png', of which line 2 says 'cat'; give one",
        ),
        ("0.png,cat\n1.png,dog\n", "its first line is about a picture; it must name the columns, as path,label,split"),
        ("path;label\n0.png;cat\n", "its columns are separated by semicolons; save it with commas"),
        ("name,label\n0.png,cat\n", r"its first line is 'name,label'; it must name the columns"),
        ("path,label,split\n0.png,cat,practice\n", "line 2 has the split 'practice'; accepted: train, training, val"),
        ("path,label,split\n0.png,cat,val\n", "has no split 'train'; looked for train or training, found val"),
        ("path,label\n../0.png,cat\n", r"line 2 names '\.\./0\.png', which leads out of the data's folder"),
        ("path,label\n,cat\n", "line 2 names no picture"),
        ("path,label\n", "it has no rows"),
        ("path,label\n0.png,cat,1\n", "line 2 has 3 cells, but the first line has 2"),
        ("path,label,label\n0.png,cat,1\n", "has the column 'label' twice"),
    ],
)
def test_faults_of_labels_are_one_line(tmp_path, text, says):
    data = table(tmp_path, text)
    with pytest.raises(InputError, match=says) as told:
        opened(data)
    assert "\n" not in str(told.value)
    assert "photos.csv" in str(told.value)


@pytest.mark.parametrize("box", ["1,2,1,5", "1,2,x,5", "1,2,,5", "9,2,1,5", "nan,2,3,5", "1,2,1e12,5"])
def test_faults_of_boxes_are_one_line_and_collected_by_check(tmp_path, box):
    data = table(tmp_path, f"path,x1,y1,x2,y2,label\n0.png,1,1,5,5,cat\n1.png,{box},cat\n2.png,1,1,2,2,cat\n")
    with pytest.raises(InputError, match=rf"photos\.csv, line 3 has the box '{box}', which is no x1,y1,x2,y2"):
        opened(data, targets="boxes")
    (fault,) = opened(data, targets="boxes", strict=False, val_fraction=1.0, split="val").faults
    assert "line 3" in fault


def test_other_tasks_are_told(tmp_path):
    boxes = table(tmp_path, "path,x1,y1,x2,y2,label\n0.png,1,1,5,5,cat\n", "boxes.csv")
    wording = load_task("classify").wording()
    with pytest.raises(InputError, match="to classify: it looks like table of boxes; use --task detect"):
        recognise(boxes, "labels", wording)
    with pytest.raises(InputError, match="there is no such folder or file"):
        recognise(str(tmp_path / "gone.csv"), "labels", wording)


def test_a_table_names_pictures_to_look_at(tmp_path):
    data = table(tmp_path, "path,label\n1.png,cat\n0.png,dog\n1.png,cat\n")
    expected = [((tmp_path / name).as_posix(), label) for name, label in (("1.png", "cat"), ("0.png", "dog"))]
    for find in (find_pictures, list_pictures):
        found = find([data], size=(8, 8))
        assert [(one.name, one.label) for one in found] == expected
        assert found[0].load().size == (40, 30)
