"""Reading pixels, here and nowhere else: a file becomes an 8-bit RGB picture, or an `ImageError`.

What the pixels are:
- JPEG (MPO included), PNG, WebP, BMP or TIFF, recognised by content, whatever the file's name says. AVIF where Pillow
  has it (from 11.3 on), HEIC with the package pillow-heif.
- The first picture of a file that holds several (animation, multi-page TIFF, MPO).
- Turned upright by the EXIF orientation.
- Transparency, in whatever form, is laid over white.
- Sixteen bits of grey become eight by scaling: 65535 becomes 255. Colour files with 16 bits a channel keep the
  high byte of each value, which is how Pillow reads them.
- Wider integers and floats: the smallest customary full scale that holds the values (65535 for integers; 1, 255
  or 65535 for floats) becomes 255. Values beyond it, or negative ones, are stretched from minimum to maximum.
- CMYK and YCCK by Pillow's formula. Colour profiles are not applied.
- On request (`at_least`, for training only) a large JPEG comes at 1/2, 1/4 or 1/8 of its size straight from the
  decoder, which then has less to compute. The result is close to, not the same as, shrinking the whole picture.

Pillow's process-wide settings are left as they are.
"""

import os
import stat
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext
from io import BytesIO
from typing import IO, NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError, features

from vitreous.errors import InputError, to_install, to_install_extra
from vitreous.files.limits import MAX_PICTURE_PIXELS
from vitreous.files.reading import MACHINE_REMEDIES

LOSSLESS = (".png", ".webp", ".bmp", ".tif", ".tiff")
# Endings of picture files in folders. Where HEIC or AVIF support is not installed, such files count as unreadable, so
# that neither the size nor the order of a data set depends on what is installed.
SUFFIXES = (".jpg", ".jpeg", ".jfif", *LOSSLESS, ".heic", ".heif", ".avif")
FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP", *(("AVIF",) if features.check("avif") else ()))  # JPEG includes MPO
HEIC_BRANDS = {b"heic", b"heix", b"heim", b"heis", b"hevc", b"hevx", b"hevm", b"hevs", b"mif1", b"msf1"}
AVIF_BRANDS = {b"avif", b"avis"}
READ_FORMATS = "JPEG, PNG, WebP, BMP and TIFF are read"

BITS_TAG, PHOTOMETRIC_TAG, ORIENTATION_TAG = 258, 262, 274
UPRIGHT = {  # EXIF orientation -> what undoes it
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}
SIDEWAYS = (5, 6, 7, 8)  # orientations that swap the sides

# How PNG packs a pixel -> factor from a transparent colour as stored to the same colour among Pillow's pixels.
STORED_TO_PIXEL = {"L;2": 85.0, "L;4": 17.0, "RGB;16B": 1 / 256}

# Python keeps one list of warning filters for all threads, so only one thread at a time may swap it.
_warning_filters = threading.Lock()


ImageSource = str | os.PathLike[str] | bytes  # a path, or what a file holds


class ImageError(InputError):
    """An image file cannot be used; the message names the file and the reason."""


class Stored(NamedTuple):
    """How a picture is stored in its file."""

    format: str  # JPEG, PNG, ...
    mode: str  # Pillow's name for the kind of pixels, or RGB;16
    size: tuple[int, int]  # (W, H) before it is turned upright
    orientation: int  # EXIF; 1 = upright


def load_image(
    source: ImageSource, *, name: str | None = None, max_pixels: int = MAX_PICTURE_PIXELS, at_least: int | None = None
) -> Image.Image:
    """Read an image as 8-bit RGB; the docstring of this module says what becomes of other pixel formats.

    Args:
        source: The path of a file, or the bytes of one.
        name: What messages call it; default: its path.
        max_pixels: Larger pictures are refused before anything is decoded.
        at_least: A JPEG may come reduced to 1/2, 1/4 or 1/8 as long as both sides keep this many pixels.

    Raises:
        ImageError: The file is missing, unreadable, damaged, too large or of another format.
    """
    name = _name(source) if name is None else name
    with _opened(source, name) as file, _reasons_given(name, file):
        image = header(file)
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError(
                f"image {name!r} has {width} x {height} pixels; at most {max_pixels:,} in all are read; "
                "scale it down or raise max_pixels"
            )
        if at_least is not None and image.format != "HEIF":  # which would give its thumbnail
            image.draft(None, (at_least, at_least))  # does something for JPEG only
        return upright_rgb(image)


def upright_rgb(image: Image.Image) -> Image.Image:
    """A picture that Pillow has opened, decoded or not, as `load_image` returns the same file."""
    _fix_transparent_colour(image)
    # Only the TIFF plugin warns while decoding; the others decode outside the lock, so that threads overlap.
    with _quiet() if image.format == "TIFF" else nullcontext():
        image.load()
    upright = _to_rgb(image)
    turn = UPRIGHT.get(_orientation(image))
    return upright if turn is None else upright.transpose(turn)


def stored_as(source: ImageSource, *, name: str | None = None) -> Stored:
    """How a picture is stored; only the header of the file is read.

    Raises:
        ImageError: As for `load_image`, as far as the header shows it.
    """
    name = _name(source) if name is None else name
    with _opened(source, name) as file, _reasons_given(name, file):
        image = header(file)
        tile = getattr(image, "tile", None)
        deep = image.mode.startswith("RGB") and tile and ";16" in str(tile[0][3])  # Pillow itself calls it 8-bit RGB
        mode = f"{image.mode};16" if deep else image.mode
        return Stored(image.format or "", mode, image.size, _orientation(image))


def upright_size(source: ImageSource) -> tuple[int, int]:
    """(W, H) of the picture that `load_image` gives; only the header of the file is read."""
    stored = stored_as(source)
    return stored.size[::-1] if stored.orientation in SIDEWAYS else stored.size


# ---- the file --------------------------------------------------------------------------------------------------


def _name(source: ImageSource) -> str:
    return "given as bytes" if isinstance(source, bytes) else os.fspath(source)


@contextmanager
def _opened(source: ImageSource, name: str) -> Iterator[IO[bytes]]:
    """Open bytes or a regular file that are not empty. A pipe or a device is refused: reading one may never end."""
    try:
        info = None if isinstance(source, bytes) else os.stat(source)
        if info is not None and stat.S_ISDIR(info.st_mode):
            raise ImageError(f"image {name!r} is a folder; give the path of a file")
        if info is not None and not stat.S_ISREG(info.st_mode):
            raise ImageError(f"image {name!r} is not a regular file (pipe, socket or device); give a file")
        if source == b"" or (info is not None and info.st_size == 0):
            raise ImageError(f"image {name!r} is empty (0 bytes); copy or download it again")
        file = BytesIO(source) if isinstance(source, bytes) else open(source, "rb")  # noqa: SIM115 - closed below
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError(f"image {name!r} does not exist; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        # No fault of the picture, which must not be left out.
        if isinstance(error, OSError) and error.errno in MACHINE_REMEDIES:
            raise InputError(
                f"image {name!r} cannot be opened: {error.strerror}; {MACHINE_REMEDIES[error.errno]}"
            ) from error
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"image {name!r} cannot be opened: {reason}; check path and permissions") from error
    with file:
        yield file


def header(file: IO[bytes]) -> Image.Image:
    """A picture of which only the header has been read; we check ourselves what Pillow would warn about."""
    with _quiet():
        if _brand(file) in HEIC_BRANDS and (heif := _heif_reader()) is not None:
            return heif(file)
        return Image.open(file, formats=FORMATS)


def _heif_reader() -> Callable[[IO[bytes]], Image.Image] | None:
    """Used directly: pillow-heif would register itself with Pillow for the whole process."""
    try:
        from pillow_heif import HeifImageFile
    except ImportError:
        return None
    return HeifImageFile


def _brand(file: IO[bytes]) -> bytes:
    """What the first bytes of HEIC and AVIF call themselves; empty for other formats."""
    file.seek(0)
    start = file.read(64)
    file.seek(0)
    if start[4:8] != b"ftyp":
        return b""
    return b"avif" if b"avif" in start[8:] else start[8:12]  # the first brand may be one that both have


@contextmanager
def _reasons_given(name: str, file: IO[bytes]) -> Iterator[None]:
    """Turn whatever a decoder raises on a bad file into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"image {name!r} {_what_it_is(file)}; {READ_FORMATS}") from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"image {name!r} is too large: {error}; scale it down") from None
    except Exception as error:  # decoders meet damage with almost any exception type
        reason = str(error) or type(error).__name__
        raise ImageError(f"image {name!r} cannot be decoded: {reason}; copy or download it again") from error


def _what_it_is(file: IO[bytes]) -> str:
    brand = _brand(file)
    if brand in HEIC_BRANDS and _heif_reader() is None:
        return f"is HEIC, which needs: {to_install_extra('heic')}"
    if brand in AVIF_BRANDS and "AVIF" not in FORMATS:
        return f"is AVIF, which needs a newer Pillow: {to_install('pillow>=11.3')}"
    file.seek(0)
    start = file.read(64).lstrip().lower()
    if start.startswith(b"gif8"):
        return "is a GIF, which is not accepted: save it as PNG"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<svg")):
        return "holds HTML or XML text, not pixels (a failed download?)"
    return "is damaged or not an image"


@contextmanager
def _quiet() -> Iterator[None]:
    """Silence Pillow's warnings about odd metadata: the pixels decide whether a file is good."""
    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield


# ---- the pixels ------------------------------------------------------------------------------------------------


def _fix_transparent_colour(image: Image.Image) -> None:
    """Pillow leaves PNG's transparent colour in the file's bit depth but widens or narrows the pixels to 8 bits."""
    tile = getattr(image, "tile", None)
    colour = image.info.get("transparency")
    if image.format != "PNG" or not tile or tile[0][3] not in STORED_TO_PIXEL or isinstance(colour, bytes | None):
        return
    scale = STORED_TO_PIXEL[tile[0][3]]
    image.info["transparency"] = (
        tuple(int(value * scale) for value in colour) if isinstance(colour, tuple) else int(colour * scale)
    )


def _to_rgb(image: Image.Image) -> Image.Image:
    if image.mode.startswith(("I", "F")):
        image = _deep_grey_to_8_bit(image)
    if image.has_transparency_data:
        coloured = image.convert("RGBA")
        image = Image.new("RGB", image.size, "white")
        image.paste(coloured, mask=coloured.getchannel("A"))
        return image
    rgb = image.convert("RGB")
    # Metadata stays behind: an orientation that travels with upright pixels would be applied a second time.
    rgb.info = {}
    return rgb


def _deep_grey_to_8_bit(image: Image.Image) -> Image.Image:
    """Modes I;16 (unsigned 16 bit), I (signed 32 bit) and F (32-bit float) to L, or LA with a transparent value."""
    # Single precision is exact for 16 bits and saves memory; a wide range would overflow in it further down.
    exact = np.dtype("f4" if image.mode.startswith("I;16") else "f8")
    values: NDArray[np.floating] = np.asarray(image).astype(exact)  # (H, W)
    if not np.isfinite(values).all():
        raise ValueError("it holds NaN or infinite values")
    low, high = _full_scale(image, float(values.min()), float(values.max()))
    grey = np.floor((values - low) * (255 / (high - low)) + 0.5).astype(np.uint8)
    tags = getattr(image, "tag_v2", {})
    if tags.get(PHOTOMETRIC_TAG) == 0:  # "white is zero"; Pillow heeds it up to 8 bits only
        grey = 255 - grey
    transparent = image.info.get("transparency")
    if not isinstance(transparent, int):
        return Image.fromarray(grey)
    alpha = np.where(values == transparent, 0, 255).astype(np.uint8)
    return Image.merge("LA", (Image.fromarray(grey), Image.fromarray(alpha)))


def _full_scale(image: Image.Image, lowest: float, highest: float) -> tuple[float, float]:
    """The values that become 0 and 255; never so narrow that a value would have to be clipped."""
    if image.mode.startswith("I;16"):
        bits = getattr(image, "tag_v2", {}).get(BITS_TAG, (16,))[0]  # 12-bit TIFF also arrives in this mode
        return 0.0, max(float(2**bits - 1), highest)
    for scale in (65535.0,) if image.mode == "I" else (1.0, 255.0, 65535.0):
        if lowest >= 0 and highest <= scale:
            return 0.0, scale
    return lowest, max(highest, lowest + 1e-12)


def _orientation(image: Image.Image) -> int:
    """EXIF orientation after decoding: Pillow applies TIFF's itself while decoding and then removes the tag."""
    try:
        with _quiet():
            return int(image.getexif().get(ORIENTATION_TAG, 1))
    except Exception:  # damaged metadata around good pixels
        return 1
