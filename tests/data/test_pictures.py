"""Names of pictures on a command line: files, folders, patterns and embedded samples."""

import numpy as np
import pytest
import torch
from PIL import Image

from vitreous.data.image import load_image
from vitreous.data.pictures import as_picture, find_pictures
from vitreous.data.shapes.samples import CATEGORIES, Shapes
from vitreous.errors import InputError

SIZE = (32, 32)


@pytest.fixture
def photos(tmp_path):
    for name in ("cat/b.png", "cat/a.JPG", "dog/c.webp"):
        path = tmp_path / "photos" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        Image.new("RGB", (8, 8), "red").save(path)
    (tmp_path / "photos" / "notes.txt").write_text("not an image")
    return tmp_path / "photos"


def test_folder_gives_its_images_sorted_with_the_class_folder_as_label(photos):
    found = find_pictures([str(photos)], size=SIZE)
    assert [picture.name.removeprefix(f"{photos.as_posix()}/") for picture in found] == [
        "cat/a.JPG",
        "cat/b.png",
        "dog/c.webp",
    ]
    assert [picture.label for picture in found] == ["cat", "cat", "dog"]
    assert found[0].load().size == (8, 8)


def test_pattern_and_file_and_no_doubles(photos):
    found = find_pictures([str(photos / "*" / "*.png"), str(photos / "cat" / "b.png")], size=SIZE)
    assert [picture.name for picture in found] == [(photos / "cat" / "b.png").as_posix()]


def test_name_with_brackets_is_a_file_first(tmp_path):
    odd = tmp_path / "a[1].png"
    Image.new("RGB", (4, 4)).save(odd)
    assert len(find_pictures([str(odd)], size=SIZE)) == 1


def test_embedded_samples_are_those_of_the_data_set():
    found = find_pictures(["shapes:val:2-4", "shapes:hard:train:7"], size=SIZE)
    assert [picture.name for picture in found] == [
        "shapes:val:2",
        "shapes:val:3",
        "shapes:val:4",
        "shapes:hard:train:7",
    ]
    scene = Shapes("val", size=SIZE)[3]
    assert (np.asarray(found[1].load()) == scene.image).all()
    assert found[1].label == CATEGORIES[scene.label]


@pytest.mark.parametrize(
    ("names", "message"),
    [
        ([], "no images given"),
        (["nowhere.png"], "no image at 'nowhere.png'"),
        (["shapes:val"], "shapes:val:0-7"),
        (["shapes:val:5-2"], "smaller index first"),
        (["shapes:vel:0-2"], "val"),
        (["shapes:tough:val:0"], "hard"),
    ],
)
def test_bad_names_say_what_is_accepted(names, message):
    with pytest.raises(InputError, match=message):
        find_pictures(names, size=SIZE)


def test_folder_without_images(tmp_path):
    with pytest.raises(InputError, match="holds no image"):
        find_pictures([str(tmp_path)], size=SIZE)


# ---- pictures in memory ------------------------------------------------------------------------------------------

PIXELS = np.random.default_rng(0).integers(0, 255, (5, 7, 3), dtype=np.uint8)
TENSOR = torch.from_numpy(PIXELS).permute(2, 0, 1)
FORMS = {
    "PIL": Image.fromarray(PIXELS),
    "array": PIXELS,
    "batch of one": PIXELS[None],
    "array, colours first": PIXELS.transpose(2, 0, 1),
    "array of floats": PIXELS / 255,
    "array that is a view": np.ascontiguousarray(PIXELS[:, ::-1])[:, ::-1],
    "tensor": TENSOR,
    "tensor, colours last": torch.from_numpy(PIXELS),
    "tensor, batch of one": TENSOR[None],
    "single precision": TENSOR.float() / 255,
    "double precision": TENSOR.double() / 255,
    "with a gradient": (TENSOR.float() / 255).requires_grad_(),
    "a little beyond": TENSOR.float() / 255 * 1.0005 - 0.0001,
    "opaque": np.dstack([PIXELS, np.full((5, 7), 255, np.uint8)]),
}


@pytest.mark.parametrize("form", FORMS)
def test_a_picture_in_memory_is_the_same_in_every_form(form):
    assert np.array_equal(np.asarray(as_picture(FORMS[form])), PIXELS)
    (found,) = find_pictures([FORMS[form]], size=SIZE)
    assert (found.name, found.label) == ("image 1", None)
    assert np.array_equal(np.asarray(found.load()), PIXELS)


def test_which_axis_has_the_colours_where_both_could():
    both = np.zeros((3, 9, 3), np.uint8)
    assert as_picture(both).size == (9, 3)
    assert as_picture(torch.from_numpy(both)).size == (3, 9)


def test_grey_and_transparent_arrays():
    grey = PIXELS[..., 0]
    for given in (grey, grey[..., None], torch.from_numpy(grey), torch.from_numpy(grey)[None]):
        assert np.array_equal(np.asarray(as_picture(given)), np.dstack([grey] * 3))
    clear = np.dstack([PIXELS, np.zeros((5, 7), np.uint8)])
    assert (np.asarray(as_picture(clear)) == 255).all()  # over white, as in files


def test_files_that_pil_has_opened_are_read_as_by_their_path(tmp_path):
    picture = Image.fromarray(PIXELS)
    exif = picture.getexif()
    exif[274] = 6
    picture.save(tmp_path / "turned.png", exif=exif)
    deep = Image.fromarray((np.arange(35).reshape(5, 7) * 1000).astype(np.uint16))
    deep.save(tmp_path / "deep.png")
    for name in ("turned.png", "deep.png"):
        opened = Image.open(tmp_path / name)
        assert as_picture(opened).tobytes() == load_image(tmp_path / name).tobytes()
        assert as_picture(opened).tobytes() == as_picture(tmp_path / name).tobytes()  # decoded by now


def test_names_and_pictures_in_one_list(photos):
    found = find_pictures([photos / "cat" / "b.png", PIXELS, str(photos / "cat" / "a.JPG"), TENSOR], size=SIZE)
    assert [picture.name.rpartition("/")[2] for picture in found] == ["b.png", "image 2", "a.JPG", "image 4"]
