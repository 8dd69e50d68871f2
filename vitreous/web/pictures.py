"""The pictures of the page, each under an id: examples for as long as the server runs, and the latest uploads."""

import hashlib
import io
from collections import OrderedDict
from collections.abc import Iterable
from dataclasses import dataclass, field

from PIL import Image

from vitreous.data.regions import Box

LONGEST_SHARP_SIDE = 1024  # pixels


class UnknownPicture(LookupError):
    """There is no picture under this id, or no longer one."""


@dataclass(frozen=True, eq=False)
class ServedPicture:
    """A picture as the model sees it."""

    id: str
    name: str
    label: str | None  # the true class, where it is known
    picture: Image.Image
    png: bytes = field(repr=False)
    window: Box | None = None  # the part of the original that the model sees; None: not a part of it as it is
    sharp: bytes | None = field(default=None, repr=False)  # JPEG of the original, where the browser does not have it

    @property
    def footprint(self) -> int:
        """Bytes it takes in memory."""
        return len(self.png) + len(self.sharp or b"") + self.picture.width * self.picture.height * 3


def served_picture(
    name: str, picture: Image.Image, *, label: str | None = None, window: Box | None = None
) -> ServedPicture:
    """Equal pictures of the same name have the same id, so that nothing is computed twice."""
    identity = hashlib.sha256(f"{name}\0{label}\0{picture.size}\0".encode() + picture.tobytes())
    return ServedPicture(identity.hexdigest()[:32], name, label, picture, as_png(picture), window)


def as_sharp_jpeg(image: Image.Image) -> bytes:
    """As many pixels as a page shows of it."""
    smaller, buffer = image.convert("RGB"), io.BytesIO()
    smaller.thumbnail((LONGEST_SHARP_SIDE, LONGEST_SHARP_SIDE))
    smaller.save(buffer, "JPEG", quality=88)
    return buffer.getvalue()


def as_png(picture: Image.Image) -> bytes:
    buffer = io.BytesIO()
    picture.save(buffer, "PNG", compress_level=1)
    return buffer.getvalue()


class Pictures:
    def __init__(self, examples: Iterable[ServedPicture], kept_bytes: int) -> None:
        self.examples = {item.id: item for item in examples}
        self.uploads: OrderedDict[str, ServedPicture] = OrderedDict()
        self.kept_bytes, self.size = kept_bytes, 0

    def add(self, item: ServedPicture) -> None:
        """Keep an upload; the ones unused for longest make room."""
        if item.id in self.examples or item.id in self.uploads:
            return
        self.uploads[item.id] = item
        self.size += item.footprint
        while self.size > self.kept_bytes and len(self.uploads) > 1:
            self.size -= self.uploads.popitem(last=False)[1].footprint

    def __getitem__(self, id: str) -> ServedPicture:
        if id in self.examples:
            return self.examples[id]
        if id not in self.uploads:
            raise UnknownPicture(id)
        self.uploads.move_to_end(id)
        return self.uploads[id]
