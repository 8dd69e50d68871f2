"""Groups of pictures by what is known about them: the values of attributes, and the class, which always is."""

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, nearest, printable

CLASS_COLUMN = "class"


@dataclass(frozen=True)
class Groups:
    """Pictures that have the same values are one group."""

    columns: tuple[str, ...]
    values: tuple[tuple[str, ...], ...]  # of each group, in the order of the columns
    members: tuple[int, ...]  # the group of each picture

    @property
    def names(self) -> tuple[str, ...]:
        """As people read them: place=water, class=bird."""
        return tuple(
            ", ".join(f"{column}={value}" for column, value in zip(self.columns, values, strict=True))
            for values in self.values
        )

    @property
    def sizes(self) -> tuple[int, ...]:
        counted = Counter(self.members)
        return tuple(counted[number] for number in range(len(self.values)))


def group_pictures(images: ImageSet, columns: Sequence[str], option: str) -> Groups:
    """The groups of a classifier's pictures by some columns; what would make them useless is refused.

    Args:
        images: With a class each.
        columns: Of `images.attribute_names`, or `class`.
        option: By which the columns were given, for messages.
    """
    _require_columns(images, columns, option)
    found: list[tuple[str, ...]] = []
    for index in range(len(images)):
        known = {**images.attributes(index), CLASS_COLUMN: images.classes[images.target(index)["labels"]]}
        found.append(tuple(known.get(column, "") for column in columns))
    _require_values(images, columns, found, option)
    values = sorted(set(found))
    if len(values) == 1:
        same = ", ".join(f"{column}={value}" for column, value in zip(columns, values[0], strict=True))
        raise InputError(
            f"{option} {' '.join(columns)}: all {len(found)} images are of one group ({printable(same)}), so there is "
            f"nothing to compare; columns: {_listed(images)}"
        )
    if len(values) == len(found):
        raise InputError(
            f"{option} {' '.join(columns)}: each of the {len(found)} images would be a group of its own; give columns "
            f"whose values are shared. Columns: {_listed(images)}"
        )
    numbers = {value: number for number, value in enumerate(values)}
    return Groups(tuple(columns), tuple(values), tuple(numbers[value] for value in found))


def _require_columns(images: ImageSet, columns: Sequence[str], option: str) -> None:
    double = next((column for place, column in enumerate(columns) if column in columns[:place]), None)
    if double is not None:
        raise InputError(f"{option} {' '.join(columns)}: {double!r} is given twice; give it once")
    there = [CLASS_COLUMN, *images.attribute_names]
    for column in columns:
        if column not in there:
            remedy = "" if len(there) > 1 else "; add others in metadata.csv in the data's folder: see docs/data.md"
            raise InputError(
                f"{option} {column}: the images have no such column; nearest: {printable(nearest(column, there, 1))}; "
                f"all: {_listed(images)}{remedy}"
            )


def _require_values(images: ImageSet, columns: Sequence[str], found: Sequence[tuple[str, ...]], option: str) -> None:
    for place, column in enumerate(columns):
        lacking = [index for index, values in enumerate(found) if not values[place]]
        if lacking:
            raise InputError(
                f"{option} {column}: {len(lacking)} of {len(found)} images have no value of it, the first is "
                f"{printable(images.name(lacking[0]))!r}; add the values, or leave these images out by quarantine.txt"
            )


def _listed(images: ImageSet) -> str:
    return printable(", ".join([CLASS_COLUMN, *(name for name in images.attribute_names if name != CLASS_COLUMN)]))
