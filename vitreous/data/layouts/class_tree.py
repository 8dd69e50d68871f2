"""Classes as a JSON or YAML file lists them.

    ["sky", "road"]                                             names by place: sky is value 0
    {"1": "sky", "7": "road"} or {"sky": 1, "road": 7}          values
    {"sky": [128, 0, 0], "road": [0, 128, 0]}                   colours
    [{"name": "sky", "id": 1, "color": [128, 0, 0]}, ...]       as tools for labelling write them

All of it may be under a key such as "classes" or "names".
"""

import re
from typing import Any

from vitreous.data.image import SUFFIXES

_KEYS = ("classes", "names", "labels", "id2label", "categories")
_ABOUT_PICTURES = "it describes pictures; a file that describes only classes is needed"
LARGEST_VALUE = (1 << 16) - 1  # of a pixel

RGB = tuple[int, int, int]


def values_or_colours(content: Any) -> list[tuple[int, str]] | list[tuple[RGB, str]]:
    """The value of each class and its name, by rising value; or its colour and name. A ValueError if it is neither."""
    if isinstance(content, dict) and "annotations" in content:
        raise ValueError(_ABOUT_PICTURES)
    if isinstance(content, dict) and (key := next((key for key in _KEYS if key in content), None)):
        content = content[key]
    pairs: list[tuple[Any, Any]] = []
    if isinstance(content, dict):
        pairs = [(key, value) if _is_number(key) else (value, key) for key, value in content.items()]
    elif isinstance(content, list):
        pairs = [_entry(place, entry) for place, entry in enumerate(content)]
    if not pairs or not all(isinstance(name, str) and name.strip() for _, name in pairs):
        raise ValueError("a list of names is needed, or a dictionary of values or colours and names")
    if any(name.lower().endswith(SUFFIXES) for _, name in pairs):
        raise ValueError(_ABOUT_PICTURES)
    if all(isinstance(value, list) for value, _ in pairs):
        return [(_colour(value), name.strip()) for value, name in pairs]
    if not all(_is_number(value) and int(value) <= LARGEST_VALUE for value, _ in pairs):
        raise ValueError(f"the value of a class is a whole number from 0 to {LARGEST_VALUE}")
    numbered = sorted((int(value), name.strip()) for value, name in pairs)
    if len({value for value, _ in numbered}) < len(numbered):
        raise ValueError("two classes have the same value")
    return numbered


def _entry(place: int, entry: Any) -> tuple[Any, Any]:
    """Value or colour, and name, of something in a list."""
    if not isinstance(entry, dict):
        return place, entry
    colour = next((entry[key] for key in ("color", "colour", "rgb") if isinstance(entry.get(key), list)), None)
    value = next((entry[key] for key in ("value", "id", "index") if _is_number(entry.get(key))), place)
    return value if colour is None else colour, entry.get("name")


def _is_number(value: Any) -> bool:
    return isinstance(value, int | str) and not isinstance(value, bool) and bool(re.fullmatch("[0-9]{1,9}", str(value)))


def _colour(value: list[Any]) -> RGB:
    if len(value) != 3 or not all(_is_number(part) and int(part) <= 255 for part in value):
        raise ValueError("a colour is three numbers from 0 to 255")
    red, green, blue = map(int, value)
    return red, green, blue
