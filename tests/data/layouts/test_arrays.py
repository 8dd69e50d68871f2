import numpy as np
import pytest

from vitreous.data.source import describe, open_data, open_raw
from vitreous.errors import InputError


def pictures(count: int, *shape: int) -> np.ndarray:
    return np.random.default_rng(count).integers(0, 256, (count, *(shape or (6, 5, 3))), np.uint8)


def save(path, **arrays):
    usual = {
        "x_train": pictures(4),
        "y_train": np.array([0, 1, 2, 1]),
        "x_test": pictures(2),
        "y_test": np.array([1, 0]),
    }
    np.savez(path, **usual | arrays)
    return str(path)


def opened(data, split="train"):
    return open_data(data, split, size=(8, 8))


def test_pictures_labels_and_names(tmp_path):
    data = save(tmp_path / "toy.npz", classes=np.array(["a", "b", "c"]))
    images, held_out = opened(data), opened(data, "val")
    assert (len(images), len(held_out), images.classes) == (4, 2, ("a", "b", "c"))
    picture, target = images[2]
    assert np.array_equal(np.asarray(picture), pictures(4)[2])
    assert (target, images.name(2)) == ({"labels": 2}, "toy.npz/train/2")
    assert describe(data, train=images).startswith(f"data: {data} (arrays): 4 train images, 3 classes")
    assert images.fingerprint == opened(data).fingerprint != held_out.fingerprint


def test_classes_without_names_are_numbers_that_all_splits_share(tmp_path):
    data = save(tmp_path / "toy.npz", y_test=np.array([7, 0]), x_val=pictures(3), y_val=np.array([0, 0, 0]))
    assert opened(data).classes == opened(data, "val").classes == tuple("01234567")
    assert len(opened(data, "val")) == 3
    assert len(opened(data, "test")) == 2


@pytest.mark.parametrize("shape", [(6, 5), (6, 5, 1)])
def test_grey_pictures(tmp_path, shape):
    images = opened(save(tmp_path / "toy.npz", x_train=pictures(4, *shape)))
    colour = np.asarray(images[1][0])
    assert colour.shape == (6, 5, 3)
    assert (colour == pictures(4, *shape)[1].reshape(6, 5, 1)).all()


def test_names_of_medmnist(tmp_path):
    arrays = {f"{split}_images": pictures(2) for split in ("train", "val", "test")}
    arrays |= {f"{split}_labels": np.array([[0], [1]]) for split in ("train", "val", "test")}
    np.savez(tmp_path / "med.npz", **arrays)
    assert [opened(str(tmp_path / "med.npz"), split)[1][1]["labels"] for split in ("train", "val", "test")] == [1, 1, 1]


@pytest.mark.parametrize(
    ("arrays", "message"),
    [
        ({"x_train": pictures(4).astype(np.float32)}, r"x_train in .* is float32 of shape \(4, 6, 5, 3\)"),
        ({"x_train": pictures(4, 3, 6, 5)}, r"shape \(4, 3, 6, 5\); pictures are uint8"),
        ({"x_train": pictures(5)}, "5 pictures in x_train but 4 labels"),
        ({"y_train": np.array([0.5, 1, 2, 1])}, "labels are whole numbers"),
        ({"y_train": np.array([-1, 1, 2, 1])}, "labels are whole numbers"),
        ({"classes": np.array(["a", "b"])}, "names 2 classes, but there is a label 2"),
        ({"classes": np.array(["a", {}], dtype=object)}, "cannot be read: .*allow_pickle"),
    ],
)
def test_other_arrays_are_refused(tmp_path, arrays, message):
    with pytest.raises(InputError, match=message):
        opened(save(tmp_path / "toy.npz", **arrays))


def test_other_files_are_refused(tmp_path):
    (tmp_path / "toy.npz").write_bytes(b"PK\3\4 no zip")
    with pytest.raises(InputError, match="cannot be read"):
        opened(str(tmp_path / "toy.npz"))
    np.savez(tmp_path / "toy.npz", a=np.zeros(3))
    with pytest.raises(InputError, match="no split 'train'"):
        opened(str(tmp_path / "toy.npz"))
    np.savez(tmp_path / "toy.npz", x_train=pictures(3))
    with pytest.raises(InputError, match="has no y_train; arrays there: x_train"):
        opened(str(tmp_path / "toy.npz"))


def test_no_split_at_all(tmp_path):
    np.savez(tmp_path / "toy.npz", classes=np.array(["a"]))
    with pytest.raises(InputError, match=r"toy\.npz' has no split 'train'; looked for train"):
        open_raw(str(tmp_path / "toy.npz"))
