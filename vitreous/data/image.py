"""The one door through which pixels enter: a file becomes an 8-bit RGB picture, or an `ImageError`.

What the pixels are:
- JPEG (MPO included), PNG, WebP, BMP or TIFF, recognised by content, whatever the file's name says.
- The first picture of a file that holds several (animation, multi-page TIFF, MPO).
- Turned upright by the EXIF orientation.
- Transparency, in whatever form, is laid over white.
- Sixteen bits of grey become eight by scaling: 65535 becomes 255. Colour files with 16 bits a channel keep the
  high byte of each value, which is how Pillow reads them.
- Wider integers and floats: the smallest customary full scale that holds the values (65535 for integers; 1, 255
  or 65535 for floats) becomes 255. Values beyond it, or negative ones, are stretched from minimum to maximum.
- CMYK and YCCK by Pillow's formula. Colour profiles are not applied.

Pillow's process-wide settings are left as they are.
"""

import os
import stat
import threading
import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from typing import IO

import numpy as np
from numpy.typing import NDArray
from PIL import Image, UnidentifiedImageError

from vitreous.errors import InputError

FORMATS = ("JPEG", "PNG", "BMP", "TIFF", "WEBP")  # the JPEG reader takes MPO too
SUFFIXES = (".jpg", ".jpeg", ".png", ".webp", ".bmp", ".tif", ".tiff")  # of the files looked for in folders
ACCEPTED = "JPEG, PNG, WebP, BMP and TIFF are read"

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

# How PNG packs a pixel -> factor from a transparent colour as stored to the same colour among Pillow's pixels.
STORED_TO_PIXEL = {"L;2": 85.0, "L;4": 17.0, "RGB;16B": 1 / 256}

# Python keeps one list of warning filters for all threads, so only one thread at a time may swap it.
_warning_filters = threading.Lock()


class ImageError(InputError):
    """An image file cannot be used; the message names the file and the reason."""


def load_image(path: str | os.PathLike[str], *, max_pixels: int = 50_000_000) -> Image.Image:
    """Read an image file as 8-bit RGB; the head of this module says what becomes of other kinds of pixels.

    Args:
        path: The file.
        max_pixels: Larger pictures are refused before anything is decoded.

    Raises:
        ImageError: The file is missing, unreadable, damaged, too large or of another format.
    """
    with _opened(path) as file, _reasons_given(path, file):
        with _quiet():
            image = Image.open(file, formats=FORMATS)
        width, height = image.size
        if width * height > max_pixels:
            raise ImageError(
                f"image {_name(path)} has {width} x {height} pixels; at most {max_pixels:,} in all are read; "
                "scale it down or raise max_pixels"
            )
        _fix_transparent_colour(image)
        # Only the TIFF plugin warns while decoding; the others decode outside the lock, so that threads overlap.
        with _quiet() if image.format == "TIFF" else nullcontext():
            image.load()
        return _upright(_to_rgb(image), _orientation(image))


# ---- the file --------------------------------------------------------------------------------------------------


def _name(path: str | os.PathLike[str]) -> str:
    return repr(os.fspath(path))


@contextmanager
def _opened(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a regular, non-empty file. A pipe or a device is refused: reading one may never end."""
    try:
        info = os.stat(path)
        if stat.S_ISDIR(info.st_mode):
            raise ImageError(f"image {_name(path)} is a folder; give the path of a file")
        if not stat.S_ISREG(info.st_mode):
            raise ImageError(f"image {_name(path)} is not a regular file (pipe, socket or device); give a file")
        if info.st_size == 0:
            raise ImageError(f"image {_name(path)} is empty (0 bytes); copy or download it again")
        file = open(path, "rb")  # noqa: SIM115 - closed below; only the opening belongs inside this try
    except ImageError:
        raise
    except FileNotFoundError:
        raise ImageError(f"image {_name(path)} does not exist; check the path") from None
    except (OSError, ValueError) as error:  # ValueError: a null byte in the path
        reason = getattr(error, "strerror", None) or str(error)
        raise ImageError(f"image {_name(path)} cannot be opened: {reason}; check path and permissions") from error
    with file:
        yield file


@contextmanager
def _reasons_given(path: str | os.PathLike[str], file: IO[bytes]) -> Iterator[None]:
    """Turn whatever a decoder throws at a bad file into an ImageError."""
    try:
        yield
    except ImageError:
        raise
    except UnidentifiedImageError:
        raise ImageError(f"image {_name(path)} {_what_it_is(file)}; {ACCEPTED}") from None
    except Image.DecompressionBombError as error:
        raise ImageError(f"image {_name(path)} is too large: {error}; scale it down") from None
    except Exception as error:  # decoders meet damage with almost any exception type
        reason = str(error) or type(error).__name__
        raise ImageError(f"image {_name(path)} cannot be decoded: {reason}; copy or download it again") from error


def _what_it_is(file: IO[bytes]) -> str:
    file.seek(0)
    start = file.read(64).lstrip().lower()
    if start.startswith(b"gif8"):
        return "is a GIF, which is not accepted: save it as PNG"
    if start.startswith((b"<!doctype", b"<html", b"<?xml", b"<svg")):
        return "holds HTML or XML text, not pixels (a failed download?)"
    return "is damaged or not an image"


@contextmanager
def _quiet() -> Iterator[None]:
    """Keep Pillow's warnings about odd metadata to ourselves: the pixels decide whether a file is good."""
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


def _upright(image: Image.Image, orientation: int) -> Image.Image:
    return image.transpose(UPRIGHT[orientation]) if orientation in UPRIGHT else image
