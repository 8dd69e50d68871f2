"""The image zoo: every odd file gives the documented pixels or an ImageError that names it."""

import contextlib
import io
import os
import struct
import threading
import warnings
import zlib
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageFile

from vitreous.data.image import ImageError, load_image, stored_as
from vitreous.errors import InputError

RED, GREEN, BLUE, WHITE, BLACK = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (0, 0, 0)


@pytest.fixture(autouse=True)
def _no_leak():
    """No warning leaves load_image and Pillow's process-wide settings stay as they were."""
    before = (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        yield
    assert before == (Image.MAX_IMAGE_PIXELS, ImageFile.LOAD_TRUNCATED_IMAGES)


def pixels(path, **options) -> np.ndarray:
    image = load_image(path, **options)
    assert image.mode == "RGB"
    assert not image.info, "metadata must stay behind"
    return np.asarray(image)


def chequered(width=7, height=5) -> np.ndarray:
    return np.random.default_rng(3).integers(0, 256, (height, width, 3), dtype=np.uint8)


def png(path: Path, width: int, height: int, depth: int, colour: int, rows: bytes, *extra: tuple[bytes, bytes]) -> Path:
    """A PNG written chunk by chunk, for kinds that Pillow cannot write."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour, 0, 0, 0)
    chunks = [(b"IHDR", header), *extra, (b"IDAT", zlib.compress(rows)), (b"IEND", b"")]
    with path.open("wb") as file:
        file.write(b"\x89PNG\r\n\x1a\n")
        for kind, body in chunks:
            file.write(struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body)))
    return path


def tiff(path: Path, width: int, height: int, tags: dict[int, int | tuple[int, ...]], data: bytes) -> Path:
    """An uncompressed little-endian TIFF with one strip."""
    tags = {256: width, 257: height, 259: 1, 273: 8, 278: height, 279: len(data), **tags}
    start = 8 + len(data) + len(data) % 2
    entries, tail = b"", b""
    for tag, value in sorted(tags.items()):
        values = value if isinstance(value, tuple) else (value,)
        if len(values) <= 2:
            body = struct.pack(f"<{len(values)}H", *values).ljust(4, b"\0")
        else:
            body = struct.pack("<I", start + 2 + 12 * len(tags) + 4 + len(tail))
            tail += struct.pack(f"<{len(values)}H", *values)
        entries += struct.pack("<HHI", tag, 3, len(values)) + body
    directory = struct.pack("<H", len(tags)) + entries + struct.pack("<I", 0) + tail
    path.write_bytes(b"II*\0" + struct.pack("<I", start) + data.ljust(start - 8, b"\0") + directory)
    return path


# ---- pictures that are read ------------------------------------------------------------------------------------


@pytest.mark.parametrize("extension", ["png", "bmp", "tiff", "webp"])
def test_lossless_formats_give_their_exact_pixels(tmp_path, extension):
    picture = chequered()
    path = tmp_path / f"a.{extension}"
    Image.fromarray(picture).save(path, **({"lossless": True} if extension == "webp" else {}))
    assert np.array_equal(pixels(path), picture)
    assert np.array_equal(pixels(str(path)), picture)


def test_the_content_decides_not_the_name(tmp_path):
    Image.fromarray(chequered()).save(tmp_path / "really.png")
    (tmp_path / "really.png").rename(tmp_path / "called.jpg")
    assert np.array_equal(pixels(tmp_path / "called.jpg"), chequered())


def test_jpeg_gives_what_pillow_decodes(tmp_path):
    Image.fromarray(chequered(40, 30)).save(tmp_path / "a.jpg", quality=95)
    with Image.open(tmp_path / "a.jpg") as plain:
        assert np.array_equal(pixels(tmp_path / "a.jpg"), np.asarray(plain))


@pytest.mark.parametrize("extension", ["png", "webp", "tiff", "jpg"])
@pytest.mark.parametrize("orientation", range(1, 9))
def test_exif_orientation_is_applied(tmp_path, extension, orientation):
    upright = np.repeat(np.repeat(chequered(3, 2) // 128 * 255, 16, 0), 16, 1)  # (32, 48, 3), flat 16 x 16 blocks
    stored = {  # how a camera in this orientation would have stored the upright picture
        1: upright,
        2: upright[:, ::-1],
        3: upright[::-1, ::-1],
        4: upright[::-1],
        5: upright.transpose(1, 0, 2),
        6: np.rot90(upright),
        7: upright[::-1, ::-1].transpose(1, 0, 2),
        8: np.rot90(upright, -1),
    }[orientation]
    exif = Image.Exif()
    exif[274] = orientation
    options = {"lossless": True} if extension == "webp" else {"quality": 100, "subsampling": 0}
    path = tmp_path / f"a.{extension}"
    Image.fromarray(np.ascontiguousarray(stored)).save(path, exif=exif, **(options if extension in "webpjpg" else {}))
    got = pixels(path)
    assert got.shape == upright.shape
    assert np.abs(got.astype(int) - upright).max() <= (3 if extension == "jpg" else 0)


def test_transparency_is_laid_over_white(tmp_path):
    rgba = Image.new("RGBA", (3, 1))
    rgba.putdata([(*RED, 255), (*RED, 0), (0, 100, 200, 51)])  # 51 / 255 = 0.2
    expected = [[RED, WHITE, (204, 224, 244)]]
    for name in ("a.png", "a.tiff"):
        rgba.save(tmp_path / name)
        assert pixels(tmp_path / name).tolist() == [[list(p) for p in expected[0]]]
    rgba.save(tmp_path / "a.webp", lossless=True, exact=True)
    assert pixels(tmp_path / "a.webp").tolist() == [[list(p) for p in expected[0]]]


def test_grey_with_alpha(tmp_path):
    grey = Image.new("LA", (2, 1))
    grey.putdata([(0, 51), (10, 255)])
    grey.save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").tolist() == [[[204] * 3, [10] * 3]]


@pytest.mark.parametrize("transparency", [1, b"\xff\x00\x33"])
def test_palette_with_transparency(tmp_path, transparency):
    palette = Image.new("P", (3, 1))
    palette.putpalette([*RED, *GREEN, *BLUE])
    palette.putdata([0, 1, 2])
    palette.save(tmp_path / "a.png", transparency=transparency)
    last = list(BLUE) if transparency == 1 else [204, 204, 255]
    assert pixels(tmp_path / "a.png").tolist() == [[list(RED), list(WHITE), last]]


@pytest.mark.parametrize(
    ("depth", "rows", "key", "expected"),
    [
        (1, bytes([0, 0b10000000]), 0, [255, 255]),  # white, transparent black
        (2, bytes([0, 0b01100000]), 1, [255, 170]),
        (4, bytes([0, 0x2A]), 2, [255, 170]),
        (8, bytes([0, 7, 8]), 7, [255, 8]),
        (16, struct.pack(">BHH", 0, 5000, 5001), 5000, [255, 19]),
    ],
)
def test_one_transparent_grey_at_every_depth(tmp_path, depth, rows, key, expected):
    path = png(tmp_path / "a.png", 2, 1, depth, 0, rows, (b"tRNS", struct.pack(">H", key)))
    assert pixels(path)[0, :, 0].tolist() == expected


@pytest.mark.parametrize("depth", [8, 16])
def test_one_transparent_colour_at_every_depth(tmp_path, depth):
    unit, code = (1, "B") if depth == 8 else (257, "H")
    values = [10 * unit, 20 * unit, 30 * unit, 10 * unit, 20 * unit, 31 * unit]
    key = struct.pack(">3H", *values[:3])
    path = png(tmp_path / "a.png", 2, 1, depth, 2, b"\0" + struct.pack(f">6{code}", *values), (b"tRNS", key))
    assert pixels(path).tolist() == [[[255] * 3, [10, 20, 31]]]


@pytest.mark.parametrize("extension", ["png", "tiff"])
def test_16_bit_grey_is_scaled_not_clipped(tmp_path, extension):
    values = np.array([[0, 128, 129, 32768, 65535]], np.uint16)
    Image.fromarray(values).save(tmp_path / f"a.{extension}")
    assert pixels(tmp_path / f"a.{extension}")[0, :, 0].tolist() == [0, 0, 1, 128, 255]


def test_16_bit_colour_keeps_the_high_byte(tmp_path):
    values = np.array([0x0000, 0x12FF, 0x8000, 0xFF00, 0xFFFF, 0x7F80], np.uint16)
    path = png(tmp_path / "a.png", 2, 1, 16, 2, b"\0" + values.astype(">u2").tobytes())
    assert pixels(path).ravel().tolist() == [0, 0x12, 0x80, 0xFF, 0xFF, 0x7F]
    tags = {258: (16, 16, 16), 262: 2, 277: 3}
    path = tiff(tmp_path / "a.tiff", 2, 1, tags, values.astype("<u2").tobytes())
    assert pixels(path).ravel().tolist() == [0, 0x12, 0x80, 0xFF, 0xFF, 0x7F]


def test_16_bit_grey_where_white_is_zero(tmp_path):
    path = tiff(tmp_path / "a.tiff", 2, 1, {258: 16, 262: 0, 277: 1}, struct.pack("<2H", 0, 65535))
    assert pixels(path)[0, :, 0].tolist() == [255, 0]


def test_12_bit_grey(tmp_path):
    path = tiff(tmp_path / "a.tiff", 2, 1, {258: 12, 262: 1, 277: 1}, bytes([0xFF, 0xF8, 0x00]))  # 4095, 2048
    assert pixels(path)[0, :, 0].tolist() == [255, 128]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ([0.0, 0.5, 1.0], [0, 128, 255]),
        ([0.0, 100.0, 255.0], [0, 100, 255]),
        ([0.0, 32768.0, 65535.0], [0, 128, 255]),
        ([-1.0, 0.0, 1.0], [0, 128, 255]),
        ([0.0, 1e30, 2e30], [0, 128, 255]),
        ([-3e38, 0.0, 3e38], [0, 128, 255]),
        ([-5.0, -5.0, -5.0], [0, 0, 0]),
    ],
)
def test_float_tiff_is_scaled_by_the_documented_rule(tmp_path, values, expected):
    Image.fromarray(np.array([values], np.float32)).save(tmp_path / "a.tiff")
    assert pixels(tmp_path / "a.tiff")[0, :, 0].tolist() == expected


@pytest.mark.parametrize(
    ("values", "expected"), [([0, 32768, 65535], [0, 128, 255]), ([0, 500_000, 1_000_000], [0, 128, 255])]
)
def test_32_bit_integers_are_scaled_by_the_documented_rule(tmp_path, values, expected):
    Image.fromarray(np.array([values], np.int32)).save(tmp_path / "a.tiff")
    assert pixels(tmp_path / "a.tiff")[0, :, 0].tolist() == expected


def test_cmyk_tiff_and_jpeg(tmp_path):
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.tiff")
    Image.new("CMYK", (16, 16), (0, 255, 255, 0)).save(tmp_path / "a.jpg", quality=100)
    assert (pixels(tmp_path / "a.tiff") == RED).all()
    assert np.abs(pixels(tmp_path / "a.jpg").astype(int) - RED).max() <= 3


def test_ycck_jpeg(tmp_path):
    """A CMYK JPEG becomes YCCK by naming that transform in its Adobe marker; the same bytes then mean other colours."""
    buffer = io.BytesIO()
    Image.new("CMYK", (16, 16), (128, 128, 128, 255)).save(buffer, "JPEG", quality=100)
    data = buffer.getvalue()
    marker = data.index(b"Adobe")
    plain, ycck = bytearray(data), bytearray(data)
    plain[marker + 11], ycck[marker + 11] = 0, 2
    (tmp_path / "cmyk.jpg").write_bytes(plain)
    (tmp_path / "ycck.jpg").write_bytes(ycck)
    with Image.open(tmp_path / "ycck.jpg") as image:
        assert image.mode == "CMYK"
        expected = np.asarray(image.convert("RGB"))
    assert np.array_equal(pixels(tmp_path / "ycck.jpg"), expected)


def test_one_bit_grey_and_one_pixel(tmp_path):
    Image.fromarray(np.array([[True, False, True]])).save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png").tolist() == [[list(WHITE), list(BLACK), list(WHITE)]]
    Image.new("L", (1, 1), 77).save(tmp_path / "dot.png")
    assert pixels(tmp_path / "dot.png").tolist() == [[[77] * 3]]
    Image.new("RGB", (1, 20000), GREEN).save(tmp_path / "tall.png")
    assert pixels(tmp_path / "tall.png").shape == (20000, 1, 3)


@pytest.mark.parametrize("extension", ["png", "webp", "tiff"])
def test_first_picture_of_several(tmp_path, extension):
    frames = [Image.new("RGB", (8, 8), colour) for colour in (RED, GREEN, BLUE)]
    options = {"lossless": True} if extension == "webp" else {}
    frames[0].save(tmp_path / f"a.{extension}", save_all=True, append_images=frames[1:], **options)
    assert (pixels(tmp_path / f"a.{extension}") == RED).all()


def test_mpo_is_a_jpeg_with_more_pictures(tmp_path):
    frames = [Image.new("RGB", (16, 16), colour) for colour in (RED, BLUE)]
    frames[0].save(tmp_path / "a.mpo", save_all=True, append_images=frames[1:], quality=100)
    assert np.abs(pixels(tmp_path / "a.mpo").astype(int) - RED).max() <= 3


def test_colour_profile_is_ignored(tmp_path):
    Image.fromarray(chequered()).save(tmp_path / "a.png", icc_profile=b"not even a profile")
    assert np.array_equal(pixels(tmp_path / "a.png"), chequered())


def test_damaged_metadata_around_good_pixels(tmp_path):
    Image.new("RGB", (16, 16), RED).save(tmp_path / "a.jpg", quality=100, exif=b"Exif\0\0II*\0\x08\0\0\0\x09\0rubbish")
    assert np.abs(pixels(tmp_path / "a.jpg").astype(int) - RED).max() <= 3


def test_threads_may_read_at_once(tmp_path):
    Image.fromarray(chequered(64, 64)).save(tmp_path / "a.png")
    Image.fromarray(chequered(64, 64)).save(tmp_path / "a.tiff")
    filters, results = list(warnings.filters), []

    def read(name):
        results.extend(np.array_equal(pixels(tmp_path / name), chequered(64, 64)) for _ in range(20))

    threads = [threading.Thread(target=read, args=(name,)) for name in ("a.png", "a.tiff") * 2]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert results == [True] * 80
    assert warnings.filters == filters


def test_bytes_are_read_as_files_are(tmp_path):
    Image.fromarray(chequered()).save(tmp_path / "a.png")
    assert np.array_equal(pixels((tmp_path / "a.png").read_bytes()), chequered())
    with pytest.raises(ImageError, match=r"image 'shard\.tar/7\.jpg' is empty"):
        load_image(b"", name="shard.tar/7.jpg")
    with pytest.raises(ImageError, match=r"image 'shard\.tar/7\.jpg' holds HTML"):
        load_image(b"<html>", name="shard.tar/7.jpg")


@pytest.mark.parametrize(
    ("size", "at_least", "expected"),
    [
        ((400, 300), None, (400, 300)),
        ((400, 300), 300, (400, 300)),
        ((400, 300), 151, (400, 300)),
        ((400, 300), 150, (200, 150)),
        ((401, 301), 70, (101, 76)),
        ((400, 300), 1, (50, 38)),
    ],
)
def test_a_jpeg_may_come_reduced(tmp_path, size, at_least, expected):
    x, y = np.meshgrid(np.linspace(0, 3, size[0]), np.linspace(0, 3, size[1]))
    smooth = Image.fromarray((127 + 120 * np.sin(np.stack([x, y, x + y], -1))).astype(np.uint8))
    smooth.save(tmp_path / "a.jpg", quality=95)
    smooth.save(tmp_path / "a.png")
    reduced = load_image(tmp_path / "a.jpg", at_least=at_least)
    assert reduced.size == expected
    assert load_image(tmp_path / "a.png", at_least=at_least).size == size, "other formats come whole"
    shrunk = np.asarray(smooth.resize(expected, Image.Resampling.BOX)).astype(int)
    assert np.abs(np.asarray(reduced) - shrunk).mean() < 2, "a smooth picture keeps its colours"


def test_a_reduced_jpeg_is_upright_and_its_damage_is_seen(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    Image.fromarray(chequered(400, 200)).save(tmp_path / "a.jpg", exif=exif)
    assert load_image(tmp_path / "a.jpg", at_least=50).size == (50, 100)
    data = (tmp_path / "a.jpg").read_bytes()
    (tmp_path / "b.jpg").write_bytes(data[: len(data) // 2])
    refused(tmp_path / "b.jpg", "decoded", at_least=50)


def test_how_a_picture_is_stored(tmp_path):
    exif = Image.Exif()
    exif[274] = 6
    Image.new("CMYK", (16, 8)).save(tmp_path / "a.jpg", exif=exif)
    assert stored_as(tmp_path / "a.jpg") == ("JPEG", "CMYK", (16, 8), 6)
    Image.new("P", (3, 2)).save(tmp_path / "a.png")
    assert stored_as((tmp_path / "a.png").read_bytes()) == ("PNG", "P", (3, 2), 1)
    deep = png(tmp_path / "deep.png", 2, 1, 16, 2, b"\0" + bytes(12))
    assert stored_as(deep).mode == "RGB;16"
    with pytest.raises(ImageError, match=r"gone\.png' does not exist"):
        stored_as(tmp_path / "gone.png")


# ---- files that are refused ------------------------------------------------------------------------------------


def refused(path, reason: str, **options) -> None:
    with pytest.raises(ImageError, match=reason) as caught:
        load_image(path, **options)
    assert repr(str(path)) in str(caught.value)
    assert isinstance(caught.value, InputError)


def test_things_that_are_not_image_files(tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "page.jpg").write_text("\n<!DOCTYPE html><html>404 not found</html>")
    (tmp_path / "noise.png").write_bytes(bytes(range(256)) * 8)
    Image.new("RGB", (4, 4)).save(tmp_path / "a.gif")
    Image.new("L", (4, 4)).save(tmp_path / "moving.gif", save_all=True, append_images=[Image.new("L", (4, 4), 9)])
    refused(tmp_path / "empty.jpg", "empty")
    refused(tmp_path / "page.jpg", "HTML")
    refused(tmp_path / "noise.png", "damaged or not an image; JPEG, PNG")
    refused(tmp_path / "a.gif", "GIF.*save it as PNG")
    refused(tmp_path / "moving.gif", "GIF.*save it as PNG")
    refused(tmp_path, "folder")
    refused(tmp_path / "absent.png", "does not exist")
    refused(str(tmp_path) + "/nul\0.png", "cannot be opened")


def test_a_pipe_does_not_hang(tmp_path):
    if not hasattr(os, "mkfifo"):
        pytest.skip("this system has no named pipes")
    os.mkfifo(tmp_path / "pipe.png")
    refused(tmp_path / "pipe.png", "not a regular file")


def test_a_file_without_permission(tmp_path):
    Image.fromarray(chequered()).save(tmp_path / "a.png")
    (tmp_path / "a.png").chmod(0)
    if os.access(tmp_path / "a.png", os.R_OK):
        pytest.skip("this user may read every file")
    refused(tmp_path / "a.png", "Permission denied")


@pytest.mark.parametrize("extension", ["jpg", "png", "bmp", "tiff", "webp"])
def test_truncated_at_every_length_is_an_error_or_the_picture(tmp_path, extension):
    whole = tmp_path / f"whole.{extension}"
    Image.fromarray(chequered(24, 24)).save(whole)
    data, expected = whole.read_bytes(), pixels(whole)
    cut = tmp_path / f"cut.{extension}"
    cut.write_bytes(data[: len(data) // 2])
    refused(cut, "decoded|damaged")
    for length in range(1, len(data), 37):
        cut.write_bytes(data[:length])
        with contextlib.suppress(ImageError):
            assert np.array_equal(pixels(cut), expected), f"half a picture after {length} of {len(data)} bytes"


@pytest.mark.parametrize("extension", ["jpg", "png", "bmp", "tiff", "webp"])
def test_flipped_bytes_never_escape_as_another_exception(tmp_path, extension):
    Image.fromarray(chequered(24, 24)).save(tmp_path / f"a.{extension}")
    data = (tmp_path / f"a.{extension}").read_bytes()
    random = np.random.default_rng(0)
    for _ in range(150):
        damaged = bytearray(data)
        for place in random.integers(0, len(data), 3):
            damaged[place] = random.integers(0, 256)
        (tmp_path / "b").write_bytes(damaged)
        with contextlib.suppress(ImageError):
            assert pixels(tmp_path / "b", max_pixels=10_000).ndim == 3


def test_the_cap_is_checked_before_decoding(tmp_path, monkeypatch):
    Image.new("RGB", (100, 50)).save(tmp_path / "a.png")
    assert pixels(tmp_path / "a.png", max_pixels=5000).shape == (50, 100, 3)
    monkeypatch.setattr(ImageFile.ImageFile, "load", lambda self: pytest.fail("decoded"))
    refused(tmp_path / "a.png", "100 x 50.*4,999.*max_pixels", max_pixels=4999)


@pytest.mark.parametrize("side", [8_000, 10_000, 60_000])  # over ours, over Pillow's warning, over Pillow's error
def test_a_bomb_is_refused(tmp_path, side):
    refused(png(tmp_path / "bomb.png", side, side, 8, 2, b"\0" * 100), "pixels")


def test_nan_is_refused(tmp_path):
    Image.fromarray(np.array([[0.0, np.nan]], np.float32)).save(tmp_path / "a.tiff")
    refused(tmp_path / "a.tiff", "NaN")
