"""Data sets that the `datasets` package of Hugging Face has saved to the disk with `save_to_disk`."""

from functools import cached_property
from pathlib import Path
from typing import Any

from vitreous.data.image import ImageError
from vitreous.data.image_set import EncodedSet, digest, require_split
from vitreous.data.layouts.base import Layout, expanded
from vitreous.errors import InputError
from vitreous.files.limits import MAX_DESCRIPTION_BYTES
from vitreous.files.reading import excerpt, is_text, read_json, reading

ONE, SEVERAL = "state.json", "dataset_dict.json"  # marks of a folder with one split, or with several
LABELS = ("label", "labels", "fine_label")  # names preferred where several columns hold classes


class HuggingFaceSet(EncodedSet):
    """One split: its first column of images, and its column of class labels."""

    def __init__(self, root: Path, split: str, *, follow: bool = False) -> None:
        """`follow` opens pictures that the rows name by a path, which may lie anywhere."""
        import datasets

        self._follow = follow
        self._name = require_split(split, hugging_face_splits(root) or (), f"'{root}'")
        folder = root if (root / ONE).is_file() else root / self._name
        with reading(f"'{folder}'", remedy="save it again"):
            rows = datasets.load_from_disk(str(folder))
        self._image, self._label = _columns(rows.features, folder)
        self.classes = tuple(rows.features[self._label].names)
        self.folder = folder
        rows = rows.select_columns([self._image, self._label])
        self._labels = rows[self._label][:]
        # The bytes as they are stored: pixels enter through load_image alone.
        self._rows = rows.cast_column(self._image, datasets.Image(decode=False)).select_columns([self._image])
        absent = next((i for i, label in enumerate(self._labels) if label is None or label < 0), None)
        if absent is not None:
            raise InputError(f"row {absent} of '{folder}' has no label in column {self._label!r}; remove such rows")

    def __len__(self) -> int:
        return len(self._labels)

    def name(self, index: int) -> str:
        return f"{self._name}/{index}"

    def target(self, index: int) -> dict[str, Any]:
        return {"labels": self._labels[index]}

    def encoded(self, index: int) -> Path | bytes:
        stored = self._rows[index][self._image] or {}
        if stored.get("bytes") is not None:
            return stored["bytes"]
        if stored.get("path") and not self._follow:
            raise ImageError(
                f"image {self.name(index)!r} is not among the data, but the file {excerpt(stored['path'])}; "
                "if that is meant, add --follow"
            )
        if stored.get("path"):
            return Path(stored["path"])
        raise ImageError(f"image {self.name(index)!r} is empty (the row has none)")

    @cached_property
    def fingerprint(self) -> str:
        """Changes with what `datasets` recorded about the rows, and with the length of its files."""
        files = sorted(path for path in self.folder.iterdir() if path.is_file() and path.suffix == ".arrow")
        sizes = (f"{path.name}\0{path.stat().st_size}" for path in files)
        return digest([(self.folder / ONE).read_text(encoding="utf-8"), *sizes])


def hugging_face_splits(root: Path) -> list[str] | None:
    with reading(f"'{root}'", remedy="save it again with save_to_disk"):
        if (root / SEVERAL).is_file():
            return [name for name in read_json(root / SEVERAL, MAX_DESCRIPTION_BYTES)["splits"] if is_text(name)]
        if (root / ONE).is_file():
            return [str(read_json(root / ONE, MAX_DESCRIPTION_BYTES).get("_split") or "train")]
        return None


def _columns(features: Any, folder: Path) -> tuple[str, str]:
    import datasets

    images = [name for name, kind in features.items() if isinstance(kind, datasets.Image)]
    labels = [name for name, kind in features.items() if isinstance(kind, datasets.ClassLabel)]
    if not images or not labels:
        there = ", ".join(f"{name} ({type(kind).__name__})" for name, kind in features.items())
        raise InputError(
            f"'{folder}' has columns {there}; "
            "one of images (datasets.Image) and one of classes (datasets.ClassLabel) are needed: cast_column makes them"
        )
    return images[0], next((name for name in LABELS if name in labels), labels[0])


LAYOUT = Layout(
    name="Hugging Face data set",
    example="DIR as written by save_to_disk of Hugging Face's datasets",
    splits=lambda data: hugging_face_splits(expanded(data)),
    open_split=lambda request: HuggingFaceSet(request.path, request.split, follow=request.follow),
    order=50,
)
