"""Small files that ask for a lot: what they ask for is bounded by the picture and by stated limits, before the work."""

import io
import json
import os
import pickle
import struct
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tests.support.mutations import bounded, look_through
from tests.support.tiny_data import CATEGORIES, annotation, coco, mask, picture, voc_page, write_shard, yolo
from vitreous.data.annotations import objects_of
from vitreous.data.coco_masks import decode_mask
from vitreous.data.data_checks import Examiner
from vitreous.data.joint import DetectView, Window
from vitreous.data.layouts.arrays import memory_bytes
from vitreous.data.layouts.cifar import EDITIONS
from vitreous.data.layouts.masks import read_mask
from vitreous.data.source import open_data, open_raw, read_quarantine
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.files.storage import read_stored_json
from vitreous.metrics.coco import CocoMetric
from vitreous.training.recipe import load_recipe

FAR = [-99999.0, -99999.0, 99999.0, 99999.0, 99999.0, -99999.0]
SPARSE = 40 << 30  # bytes


def opened(root: Path, targets: str = "boxes", split: str = "train"):
    return open_data(str(root), split, size=(8, 8), targets=targets)


def sparse(file: Path, start: bytes = b"{") -> Path:
    file.write_bytes(start)
    os.truncate(file, SPARSE)
    return file


# ---- outlines --------------------------------------------------------------------------------------------------


def test_corners_far_away_cost_no_more_than_the_picture(tmp_path):
    coco(tmp_path, [annotation(1, segmentation=[FAR * 3_001])])
    coco(tmp_path, [annotation(1)], split="val")
    with bounded(seconds=60, megabytes=200):
        look_through(tmp_path, "boxes")
        target = opened(tmp_path).target(0)["objects"]
        assert target.decoded_masks(30, 40).shape == (1, 30, 40)


def test_a_metric_of_others_sees_the_same_pixels_without_the_walk(tmp_path):
    coco(tmp_path, [annotation(1, segmentation=[FAR * 1_001]), annotation(2, segmentation=[[1, 1, 9, 1, 9, 9]])])
    images = opened(tmp_path)
    view = DetectView(Preprocess(size=(30, 40)), short=(30,), longest=40, train=False)
    _, target = view(*images[0])
    far, near = target["objects"].masks
    assert isinstance(far, dict), "its outline is longer than the picture has pixels"
    assert near == [[1, 1, 9, 1, 9, 9]]
    assert np.array_equal(decode_mask(far, 30, 40), decode_mask([FAR * 1_001], 30, 40))
    with bounded(seconds=60):
        metric = CocoMetric("segm", images.classes, images.category_ids)
        metric.update(
            [{"labels": target["labels"], "scores": target["labels"] * 0.0 + 1, "masks": target["masks"]}],
            {"image_ids": [target["image_id"]], "original_sizes": [(30, 40)], "objects": [target["objects"]]},
        )
        assert metric.compute()["AP"] == pytest.approx(1.0)


def test_fifty_thousand_triangles_in_one_annotation(tmp_path):
    corners = np.random.default_rng(0).uniform(0, 30, (50_000, 6)).round(1).tolist()
    coco(tmp_path, [annotation(1, segmentation=corners)])
    view = DetectView(Preprocess(size=(30, 40)), short=(30,), longest=40)
    with bounded(seconds=90):
        images = opened(tmp_path)
        assert not Examiner(images, "train")[0].notes
        assert view(*images[0])[1]["masks"].any()
    with bounded(seconds=30), pytest.raises(ValueError, match=r"cross 199,\d{3},\d{3} columns of pixels; at most"):
        decode_mask((np.random.default_rng(0).uniform(0, 4_000, (50_000, 6))).tolist(), 4_000, 4_000)


def test_a_few_masks_do_not_fill_the_memory_of_a_large_picture():
    rows = [annotation(number, segmentation=[[0, 0, 9, 0, 9, 9]]) for number in range(20_000)]
    objects = objects_of(rows, [0] * len(rows), masks=True)
    with bounded(seconds=60, megabytes=500):
        with pytest.raises(InputError, match="20,000 masks of 1000 x 800 pixels are too many"):
            objects.decoded_masks(800, 1_000)
        with pytest.raises(InputError, match="too many for one picture"):
            Window((0, 0, 1_000, 800), (800, 1_000)).masks(objects, 800, 1_000)
        objects[:1_000].require_drawable(5_000, 5_000)


@pytest.mark.parametrize(
    ("coded", "message"),
    [
        ({"counts": [10**30]}, "not numbers of pixels"),
        ({"counts": [-1, 1201]}, "not numbers of pixels"),
        ({"counts": ["x"]}, "not numbers of pixels"),
        ({"counts": [1 << 62] * 4 + [1200]}, "cover 18446744073709552816 pixels"),
        ({"counts": "o" * 1_000_000}, "a number that no picture has pixels for"),
        ({"counts": "\ud800"}, "which the code does not know"),
        ({"counts": [1200], "size": 7}, "has a mask of 7"),
        ({"counts": [1200], "size": [30, 40, 1]}, "has a mask of"),
    ],
)
def test_run_lengths_beyond_the_picture(tmp_path, coded, message):
    coco(tmp_path, [annotation(1, segmentation={"size": [30, 40], **coded})])
    coco(tmp_path, [annotation(1)], split="val")
    with bounded(seconds=20, megabytes=100), pytest.raises(InputError, match=message):
        look_through(tmp_path, "boxes")


# ---- numbers that stand for many -------------------------------------------------------------------------------


def test_twenty_thousand_categories_take_no_squared_time(tmp_path):
    categories = [{"id": number, "name": f"kind {number}"} for number in range(20_000)]
    for split in ("train", "val"):
        coco(tmp_path, [annotation(1, category=19_999)], split, categories)
    with bounded(seconds=20):
        images = opened(tmp_path, split="val")
    assert images.target(0)["objects"].labels.tolist() == [19_999]
    coco(tmp_path, [annotation(1)], "train", [{"id": number, "name": str(number)} for number in range(100_001)])
    with pytest.raises(InputError, match="100,001 categories; at most 100,000 are read"):
        opened(tmp_path)


def test_twenty_thousand_names_of_labels_in_shards(tmp_path):
    pixels = io.BytesIO()
    Image.new("RGB", (2, 2)).save(pixels, "PNG")
    (tmp_path / "classes.txt").write_text("\n".join(f"kind {number}" for number in range(20_000)))
    write_shard(
        tmp_path / "train-0.tar",
        {
            f"{n}.{kind}": value
            for n in range(5_000)
            for kind, value in (("png", b"x"), ("cls", b"kind %d" % (19_999 - n)))
        },
    )
    with bounded(seconds=30):
        images = opened(tmp_path, "labels")
    assert images.target(2) == {"labels": 19_997}


@pytest.mark.parametrize("label", [10**12, 100_000, 2**64 - 1])
def test_a_label_does_not_make_classes_of_all_numbers_below(tmp_path, label):
    kind = np.uint64 if label > 2**63 else np.int64
    np.savez(tmp_path / "a.npz", x_train=np.zeros((2, 4, 4), np.uint8), y_train=np.array([0, label], kind))
    with bounded(megabytes=20), pytest.raises(InputError, match=rf"y_train in .*a\.npz' holds the label {label}"):
        opened(tmp_path / "a.npz", "labels")


@pytest.mark.parametrize("label", [b"1000000000000", b"9" * 900, b"100000"])
def test_the_same_in_a_shard(tmp_path, label):
    write_shard(tmp_path / "train-0.tar", {"0.png": b"x", "0.cls": b"0", "1.png": b"x", "1.cls": label})
    with bounded(megabytes=50), pytest.raises(InputError, match=rf"label {label.decode()[:100]}.* at most 100,000"):
        opened(tmp_path, "labels")


@pytest.mark.parametrize("label", [b"9" * 5_000, b"\xff\xfe", b"a" * 1_000_000])
def test_labels_that_are_none(tmp_path, label):
    samples = {f"{n}.{kind}": value for n in range(200) for kind, value in (("png", b"x"), ("cls", b"0"))}
    write_shard(tmp_path / "train-0.tar", {**samples, "x.png": b"x", "x.cls": label})
    with bounded(megabytes=50), pytest.raises(InputError, match=r"the label of 'x' in shard '.*train-0\.tar' is b'"):
        opened(tmp_path, "labels")


def test_references_in_yaml_are_refused(tmp_path):
    yolo(tmp_path)
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    (tmp_path / "data.yaml").write_text("\n".join([*lines, "names: *a11"]))
    with (
        bounded(megabytes=50),
        pytest.raises(InputError, match=r"data\.yaml cannot be read: line 2 has a reference \(\*…\)"),
    ):
        opened(tmp_path)


@pytest.mark.parametrize(
    "described", ["kpt_shape: [1000000000, 3]", "kpt_shape: [0, 3]", "kpt_shape: [2, 3]\nflip_idx: 3"]
)
def test_numbers_of_keypoints(tmp_path, described):
    yolo(tmp_path, keypoints=True)
    (tmp_path / "data.yaml").write_text(f"names: [a, b]\n{described}\n")
    with bounded(megabytes=50), pytest.raises(InputError, match=r"(kpt_shape|flip_idx) of '"):
        opened(tmp_path, "keypoints")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"keypoints": ["x"] * 501}, "keypoints that are not a list of at most 500 names"),
        ({"keypoints": [["x"]]}, "keypoints that are not a list"),
        ({"keypoints": [1, 2]}, "keypoints that are not a list"),
        ({"keypoints": "nose"}, "keypoints that are not a list"),
        ({"keypoints": ["a", "b"], "skeleton": 7}, "has the skeleton 7"),
        ({"keypoints": ["a", "b"], "skeleton": {"a": 1}}, "has the skeleton"),
        ({"name": ["x"]}, "a category of"),
        ({"name": "\ud800"}, "a category of"),
        ({"id": 10**400}, "a category of"),
    ],
)
def test_categories_of_the_wrong_kind(tmp_path, changes, message):
    coco(tmp_path, [annotation(1)], categories=[{**one, **changes} for one in CATEGORIES[:1]])
    with pytest.raises(InputError, match=rf"{message}"):
        opened(tmp_path, "keypoints")


@pytest.mark.parametrize("lines", [[[1]], [1], ["ab"], [[1, "b"]], [[1.5, 2]], [[[], 1]], [[1, 99]], [None]])
def test_lines_of_a_skeleton_that_join_nothing_are_left_out(tmp_path, lines):
    category = {**CATEGORIES[0], "keypoints": ["a", "b"], "skeleton": [*lines, [1, 2]]}
    coco(tmp_path, [annotation(1, keypoints=[1, 1, 2, 3, 3, 2])], categories=[category])
    assert opened(tmp_path, "keypoints").skeleton == ((0, 1),)


# ---- long and deep files ---------------------------------------------------------------------------------------


def test_sparse_files_are_refused_by_their_length(tmp_path):
    coco(tmp_path / "coco", [annotation(1)])
    yolo(tmp_path / "yolo")
    for name in ("a", "b"):
        picture(tmp_path / "voc" / "train" / f"{name}.png")
        voc_page(tmp_path / "voc" / "train" / f"{name}.xml", [("cat", (1, 1, 9, 9), False)])
    reads = {
        sparse(tmp_path / "coco" / "annotations" / "instances_train2017.json"): lambda file: opened(tmp_path / "coco"),
        sparse(tmp_path / "yolo" / "data.yaml"): lambda file: opened(tmp_path / "yolo"),
        sparse(tmp_path / "voc" / "train" / "a.xml", b"<a>"): lambda file: opened(tmp_path / "voc"),
        sparse(tmp_path / "quarantine.txt"): read_quarantine,
        sparse(tmp_path / "config.json"): read_stored_json,
        sparse(tmp_path / "own.yaml"): lambda file: load_recipe(str(file)),
        sparse(tmp_path / "a.png", b"\x89PNG"): read_mask,
    }
    for file, read in reads.items():
        with bounded(seconds=20, megabytes=50), pytest.raises(InputError, match="42,949,672,960 bytes; at most"):
            read(file)
    sparse(tmp_path / "yolo" / "labels" / "train" / "a.txt")
    (tmp_path / "yolo" / "data.yaml").write_text("names: [a, b]")
    with bounded(seconds=20, megabytes=50), pytest.raises(InputError, match="at most"):
        opened(tmp_path / "yolo").target(0)


def test_a_file_of_nothing_below_the_limit_is_not_read_to_its_end(tmp_path):
    file = coco(tmp_path, [annotation(1)])
    os.truncate(sparse(file, b""), 7 << 30)
    with bounded(seconds=10, megabytes=20), pytest.raises(InputError, match="does not begin as JSON does"):
        opened(tmp_path)


def test_pipes_are_not_waited_for(tmp_path):
    file = coco(tmp_path, [annotation(1)])
    file.unlink()
    os.mkfifo(file)
    os.mkfifo(tmp_path / "mask.png")
    with bounded(seconds=10), pytest.raises(InputError, match="is not a regular file"):
        opened(tmp_path)
    with bounded(seconds=10), pytest.raises(InputError, match="is not a regular file"):
        read_mask(tmp_path / "mask.png")


@pytest.mark.parametrize("text", ["[" * 100_000, '{"a":' * 100_000, "[" * 5_000 + "]" * 5_000])
def test_deep_nesting(tmp_path, text):
    file = coco(tmp_path, [annotation(1)])
    file.write_text(text)
    with bounded(), pytest.raises(InputError, match=r"instances_train2017\.json (cannot be read|have no)"):
        opened(tmp_path)
    yolo(tmp_path / "yolo")
    (tmp_path / "yolo" / "data.yaml").write_text(f"names: {text}")
    with bounded(), pytest.raises(InputError, match=r"data\.yaml cannot be read"):
        opened(tmp_path / "yolo")


def test_long_lines_take_no_squared_time(tmp_path):
    gap = "a" + " " * 400_000 + "b"
    for split in ("train", "val"):
        picture(tmp_path / "images" / split / "0.png")
        mask(tmp_path / "masks" / split / "0.png", np.zeros((30, 40)))
    for name in ("classes.txt", "class_dict.csv", "label_colors.txt"):
        (tmp_path / name).write_text(gap)
        with bounded(seconds=20), pytest.raises(InputError, match=r"line 1 has 400,002 characters"):
            opened(tmp_path, "semantic")
        (tmp_path / name).unlink()
    voc_page(tmp_path / "voc" / "Annotations" / "0.xml", [("cat", (1, 1, 9, 9), False)])
    (tmp_path / "voc" / "ImageSets" / "Main").mkdir(parents=True)
    (tmp_path / "voc" / "ImageSets" / "Main" / "train.txt").write_text(gap)
    with bounded(seconds=20), pytest.raises(InputError, match=r"train\.txt names .* is longer than"):
        opened(tmp_path / "voc")


# ---- arrays, pickles, masks ------------------------------------------------------------------------------------


def test_a_compressed_bomb_is_known_by_what_it_unpacks_to(tmp_path, monkeypatch):
    file = tmp_path / "a.npz"
    np.savez_compressed(file, x_train=np.zeros((1_000, 100, 100, 3), np.uint8), y_train=np.zeros(1_000, np.int64))
    monkeypatch.setattr("vitreous.data.layouts.arrays.memory_bytes", lambda: 1_000_000)
    assert file.stat().st_size < 100_000
    with bounded(megabytes=20), pytest.raises(InputError, match="30,000,000 bytes, this machine's memory 1,000,000"):
        opened(file, "labels")
    assert memory_bytes() > 1 << 28


@pytest.mark.parametrize("attack", [b"\x80\x04Nr\xff\xff\xff\x3f.", b"\x80\x04\x8e" + b"\xff" * 7 + b"\x3f."])
def test_a_pickle_cannot_ask_for_memory(tmp_path, attack):
    folder = tmp_path / EDITIONS[0].folder
    folder.mkdir()
    for name in ("batches.meta", "test_batch"):
        (folder / name).write_bytes(attack)
    with bounded(seconds=20, megabytes=100), pytest.raises(InputError, match=r"batches\.meta' is damaged"):
        opened(tmp_path, "labels", "test")


def test_lists_within_lists_of_a_pickle_are_not_unfolded(tmp_path):
    nested: list = [0]
    for _ in range(40):
        nested = [nested] * 10
    folder = tmp_path / EDITIONS[0].folder
    folder.mkdir()
    for names, labels in ((nested, [0]), ([b"a"], nested)):
        (folder / "batches.meta").write_bytes(pickle.dumps({b"label_names": names}))
        (folder / "test_batch").write_bytes(pickle.dumps({b"labels": labels, b"data": 0}))
        with bounded(seconds=20, megabytes=100), pytest.raises(InputError, match="is damaged or no CIFAR file"):
            opened(tmp_path, "labels", "test")


def test_masks_have_the_limit_of_pictures(tmp_path):
    def part(kind: bytes, content: bytes) -> bytes:
        return struct.pack(">I", len(content)) + kind + content + struct.pack(">I", zlib.crc32(kind + content))

    head = struct.pack(">IIBBBBB", 12_000, 12_000, 8, 0, 0, 0, 0)
    (tmp_path / "a.png").write_bytes(
        b"\x89PNG\r\n\x1a\n" + part(b"IHDR", head) + part(b"IDAT", b"") + part(b"IEND", b"")
    )
    with bounded(megabytes=50), pytest.raises(InputError, match="12000 x 12000 pixels; at most 50,000,000"):
        read_mask(tmp_path / "a.png")


def test_values_no_mask_holds(tmp_path):
    for split in ("train", "val"):
        picture(tmp_path / "images" / split / "0.png")
        mask(tmp_path / "masks" / split / "0.png", np.zeros((30, 40)))
    (tmp_path / "objectInfo150.txt").write_text("Idx\tName\n70000\twall\n")
    with pytest.raises(InputError, match="masks cannot hold the value 70000"):
        opened(tmp_path, "semantic")
    (tmp_path / "objectInfo150.txt").unlink()
    (tmp_path / "classes.txt").write_text("sky\n")
    Image.fromarray(np.full((30, 40), -1, np.int32)).save(tmp_path / "masks" / "train" / "0.tif")
    (tmp_path / "masks" / "train" / "0.png").unlink()
    with pytest.raises(InputError, match="holds -1, which none of the 1 classes has"):
        opened(tmp_path, "semantic").target(0)


# ---- names -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("../../secret.png", "leads out of the data's folder; if that is meant, add --follow"),
        ("..\\secret.png", "leads out of the data's folder"),
        ("/etc/passwd", "leads out of the data's folder"),
        ("a" * 10_000 + ".png", "is longer than the 255 bytes"),
        ("a/" * 3_000 + "0.png", "is longer than"),
        ("\ud800.png", "is no text that a file can be named by"),
        ("a\0.png", "is no text that a file can be named by"),
        ("", "is no text that a file can be named by"),
    ],
)
def test_names_of_pictures_in_coco(tmp_path, name, message):
    images = [{"id": 10, "file_name": "0.png"}, {"id": 11, "file_name": name}]
    coco(tmp_path, [annotation(1)], images=images)
    with pytest.raises(InputError, match=rf"of image 11 in .*instances_train2017\.json {message}"):
        opened(tmp_path)
    with pytest.raises(InputError, match=message):
        open_raw(str(tmp_path), "boxes")


def test_follow_opens_pictures_elsewhere(tmp_path):
    picture(tmp_path / "elsewhere.png")
    names = ["../../../elsewhere.png", str(tmp_path / "elsewhere.png"), "0.png"]
    listed = [{"id": 10 + place, "file_name": name} for place, name in enumerate(names)]
    coco(tmp_path / "data", [annotation(1)], images=listed)
    with pytest.raises(InputError, match="add --follow"):
        opened(tmp_path / "data")
    images = open_data(str(tmp_path / "data"), "train", size=(8, 8), targets="boxes", follow=True)
    assert [images.picture(place).size for place in range(3)] == [(40, 30)] * 3


def test_a_symbolic_link_in_the_folder_is_followed(tmp_path):
    coco(tmp_path / "data", [annotation(1)])
    picture(tmp_path / "elsewhere.png", seed=5)
    place = tmp_path / "data" / "images" / "train" / "0.png"
    place.unlink()
    place.symlink_to(tmp_path / "elsewhere.png")
    assert opened(tmp_path / "data").picture(0).size == (40, 30)


def test_lists_of_voc_stay_in_their_folder(tmp_path):
    for file in (tmp_path / "secret.xml", tmp_path / "voc" / "Annotations" / "0.xml"):
        voc_page(file, [("cat", (1, 1, 9, 9), False)], "0.png")
    picture(tmp_path / "voc" / "JPEGImages" / "0.png")
    picture(tmp_path / "secret.png")
    listed = tmp_path / "voc" / "ImageSets" / "Main" / "train.txt"
    listed.parent.mkdir(parents=True)
    for name in ("../../secret", str(tmp_path / "secret")):
        listed.write_text(f"0\n{name}\n")
        with pytest.raises(InputError, match=r"train\.txt names 'secret', which leads out"):
            opened(tmp_path / "voc")
        found = open_data(str(tmp_path / "voc"), "train", size=(8, 8), targets="boxes", follow=True)
        assert len(found) == 2
    listed.write_text("0\n")
    assert len(opened(tmp_path / "voc")) == 1


def test_annotations_anywhere_and_lists_of_pets_stay_below_their_folder(tmp_path):
    picture(tmp_path / "secret_1.jpg")
    picture(tmp_path / "data" / "images" / "cat_1.jpg", seed=1)
    picture(tmp_path / "data" / "images" / "dog_1.jpg", seed=2)
    file = tmp_path / "labels.json"
    listed = [{"id": 10, "file_name": "cat_1.jpg"}, {"id": 11, "file_name": str(tmp_path / "secret_1.jpg")}]
    file.write_text(json.dumps({"images": listed, "annotations": [annotation(1)], "categories": CATEGORIES}))
    data = f"{tmp_path / 'data'}+{file}"
    with pytest.raises(InputError, match=r"of image 11 in .*labels\.json leads out"):
        open_raw(data, "boxes")
    found = open_data(data, "val", size=(8, 8), targets="boxes", val_fraction=1, follow=True)
    assert [found.picture(place).size for place in range(2)] == [(40, 30)] * 2
    (tmp_path / "data" / "annotations" / "trimaps").mkdir(parents=True)
    (tmp_path / "data" / "annotations" / "trainval.txt").write_text("cat_1 1\n../../secret_1 1\n")
    with pytest.raises(InputError, match=r"trainval\.txt names '\.\./\.\./secret_1', which leads out"):
        opened(tmp_path / "data", "labels")
    found = open_data(str(tmp_path / "data"), "train", size=(8, 8), follow=True)
    assert [found.picture(place).size for place in range(2)] == [(40, 30)] * 2


def test_many_numbered_objects_take_one_look_at_the_mask(tmp_path):
    numbers = np.repeat(np.repeat(np.arange(10_000, dtype=np.uint16).reshape(100, 100), 15, 0), 15, 1)
    picture(tmp_path / "images" / "0.png", size=(1_500, 1_500))
    (tmp_path / "instances").mkdir()
    Image.fromarray(numbers).save(tmp_path / "instances" / "0.png")
    with bounded(seconds=40):
        found = open_data(str(tmp_path), "val", size=(8, 8), targets="boxes", val_fraction=1).target(0)["objects"]
    assert len(found) == 9_999
    assert (found.area == 225).all()
    assert np.array_equal(decode_mask(found.masks[122], 1_500, 1_500), numbers == 123)
    assert found.boxes[122].tolist() == [345, 15, 360, 30]
    (tmp_path / "classes.txt").write_bytes(b"a\xff")
    with pytest.raises(InputError, match=r"classes\.txt cannot be read: .*save it as UTF-8"):
        open_data(str(tmp_path), "val", size=(8, 8), targets="boxes", val_fraction=1)


@pytest.mark.parametrize("name", ["classes.json", "classes.yaml"])
def test_lists_of_classes_as_trees(tmp_path, name):
    for split in ("train", "val"):
        picture(tmp_path / "images" / split / "0.png")
        mask(tmp_path / "masks" / split / "0.png", np.zeros((30, 40)))
    for text in (
        "[" * 100_000,
        '{"a": ' * 3_000,
        '{"99999": "a"}',
        '[["a"]]',
        "&a [*a, *a]",
        "9" * 5_000,
        "",
    ):
        (tmp_path / name).write_text(text)
        with (
            bounded(),
            pytest.raises(InputError, match=rf"the classes in .*{name} cannot be read"),
        ):
            opened(tmp_path, "semantic")


def test_numbers_beyond_all_bounds_are_named(tmp_path):
    for value in ("1" + "0" * 400, "1e999", "1e300", "NaN"):
        file = coco(tmp_path, [annotation(1, box=(4, 5, 10, 12345))])
        file.write_text(file.read_text().replace("12345", value))
        with pytest.raises(InputError, match=r"annotation 1 of .*instances_train2017\.json has the box"):
            opened(tmp_path)
        assert "has the box" in open_raw(str(tmp_path), "boxes")["train"].faults[0]
    content = json.loads(coco(tmp_path, [annotation(1)]).read_text())
    content["annotations"][0]["id"] = 10**4_000
    (tmp_path / "annotations" / "instances_train2017.json").write_text(json.dumps(content))
    with pytest.raises(InputError, match=r"of .*instances_train2017\.json has the id 1000"):
        opened(tmp_path)
