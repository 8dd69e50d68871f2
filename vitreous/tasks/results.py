"""What a model says about one picture, as an object: to look at, to draw, to write down, to hand on.

    found = vitreous.load_model("runs/cells").predict("photo.jpg")
    found.show()
    found.save("photo.png")                # or .jpg; .json writes what `to_dict` gives

Each task has its own class of results in its own file. Everything is in pixels of the picture itself.
"""

import json
from abc import ABC, abstractmethod
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Any, Self

from PIL import Image

from vitreous.drawing.annotate import enlarge_small
from vitreous.drawing.display import show_picture
from vitreous.drawing.panels import labelled
from vitreous.errors import InputError, to_install
from vitreous.files.writing import write_output

MIN_SCORE = 0.3  # of a box or a keypoint that is drawn and counted, unless another is asked for
PICTURE_FORMATS = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}


@dataclass(frozen=True, eq=False)
class PictureResult(ABC):
    """Base of all results; a subclass adds arrays, and says how they are drawn and written."""

    picture: Image.Image = field(repr=False)
    classes: tuple[str, ...] = field(repr=False)

    @abstractmethod
    def to_dict(self) -> dict[str, Any]:
        """Everything, as JSON can hold it and with names of classes."""

    @abstractmethod
    def summary(self) -> str:
        """One line."""

    def draw(self, *, caption: bool = True) -> Image.Image:
        """The picture with the answer drawn on it; `caption`: with a line or a legend below, if there is one."""
        return labelled(self.picture, self.summary()) if caption else enlarge_small(self.picture)[0]

    def kept(self) -> Self:
        """Without what is too uncertain to be shown."""
        return self

    def more_pictures(self) -> dict[str, Image.Image]:
        """Other pictures that belong to the answer, by the word that is added to the drawing's file name."""
        return {}

    def show(self) -> None:
        """The drawing, in a notebook below the cell and elsewhere in the system's viewer."""
        show_picture(self.draw())

    def save(self, path: str | Path) -> Path:
        """Write the drawing (.png, .jpg) or the data (.json)."""
        path = Path(path)
        suffix = path.suffix.lower()
        if suffix == ".json":
            write_output(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        elif suffix in PICTURE_FORMATS:
            content = BytesIO()
            self.draw().save(content, PICTURE_FORMATS[suffix])
            write_output(path, content.getvalue())
        else:
            raise InputError(f"cannot save a result as {path.name!r}; its name must end in .png, .jpg or .json")
        return path

    def _repr_png_(self) -> bytes:
        content = BytesIO()
        self.draw().save(content, "PNG")
        return content.getvalue()


@dataclass(frozen=True, eq=False)
class CocoResult(PictureResult):
    """A result that COCO's format for results can hold."""

    category_ids: tuple[int, ...] = field(repr=False)  # number of each class in files

    @abstractmethod
    def coco_rows(self) -> list[dict[str, Any]]:
        """Entries of a result file, but for the number of the picture."""

    def to_coco(self, image_id: int) -> list[dict[str, Any]]:
        """Entries of a COCO result file."""
        return [{"image_id": image_id, **row} for row in self.coco_rows()]

    def to_dict(self) -> dict[str, Any]:
        names = dict(zip(self.category_ids, self.classes, strict=True))
        predictions = [{"class": names[row["category_id"]], **row} for row in self.coco_rows()]
        return {"width": self.picture.width, "height": self.picture.height, "predictions": predictions}


def import_supervision() -> Any:
    """The package supervision, version 0.29 or newer."""
    try:
        import supervision
    except ImportError as error:
        hint = to_install("supervision")
        raise InputError(f"to_supervision() needs the package supervision: {hint}") from error
    return supervision


def count_names(names: Iterable[str], min_score: float) -> str:
    """How many of each, most frequent first."""
    counts = Counter(names).most_common()
    return ", ".join(f"{count} {name}" for name, count in counts) or f"nothing with a score from {min_score:g}"
