"""Pages about shortcuts for people who have never heard of one: all suspects, and each with its examples."""

from collections.abc import Mapping, Sequence
from typing import Any

from PIL import Image, ImageDraw

from vitreous.drawing.panels import enlarge, overlay
from vitreous.faithfulness.intervals import Interval
from vitreous.reports.page import jpeg_uri, render_page
from vitreous.reports.shortcuts import (
    Shortcuts,
    Suspect,
    SuspectExample,
    control_in_words,
    exchanging,
    hiding,
    share,
    suspect_details,
    suspect_headline,
    with_article,
)

STYLES = ["page.css", "report.css", "shortcuts.css"]
SIDE, THUMB = 240, 96  # pixels of a drawn picture
SEEN_BOX = "#ff2bd6"  # stands out on photographs


def render_shortcuts(found: Shortcuts, pages: Mapping[int, str]) -> str:
    """The page of all suspects; `pages` are those of some of them, by their number from one."""
    return render_page(
        "shortcuts",
        styles=STYLES,
        scripts=[],
        title="Does the model take shortcuts?",
        facts=search_facts(found),
        found=found,
        rows=[suspect_entry(one, pages[number]) for number, one in enumerate(found.suspects, 1) if number in pages],
        harmless=[one for number, one in enumerate(found.suspects, 1) if number not in pages],
        conclusion=conclusion(found),
    )


def render_suspect(found: Shortcuts, one: Suspect, ways: Sequence[tuple[str, str]], index: str) -> str:
    """The page of one suspect; `ways` to mend it are a sentence and a command each."""
    return render_page(
        "suspect",
        styles=STYLES,
        scripts=[],
        title=f"{one.name[:1].upper()}{one.name[1:]}",
        facts=search_facts(found) | {"verdict": one.verdict},
        one=one,
        index=index,
        ways=ways,
        headline=suspect_headline(one),
        details=suspect_details(one),
        tests=tests(one),
        examples=[drawn(example, one) for example in one.examples],
    )


def search_facts(found: Shortcuts) -> dict[str, str]:
    shown = {
        "model": found.model,
        "data": f"{found.data} ({found.split})",
        "pictures": f"{found.pictures}, after {found.proposing} others proposed suspects",
    }
    if found.accuracy is not None:
        shown["right"] = share(found.accuracy)
    shown["objects"] = "known by masks, and left untouched" if found.masks else "not known"
    if found.unmasked:
        shown["objects"] += f"; {found.unmasked} other pictures without a mask were left out"
    shown["maps"] = f"{found.method}, {found.reason}"
    return shown


def conclusion(found: Shortcuts) -> str:
    serious = found.serious()
    if serious:
        names = ", ".join(with_article(one) for one in serious)
        return f"The model takes a shortcut: its answers hang on {names}."
    if any(one.verdict == "look at it" for one in found.suspects):
        return "No shortcut is beyond doubt, but something deserves a look."
    return "No shortcut was found."


def suspect_entry(one: Suspect, page: str) -> dict[str, Any]:
    thumb = jpeg_uri(marked(one.examples[0].picture, one, THUMB)) if one.examples else None
    return {
        "one": one,
        "page": page,
        "thumb": thumb,
        "headline": suspect_headline(one),
        "details": suspect_details(one),
    }


def tests(one: Suspect) -> list[tuple[str, Interval]]:
    """What was done to the pictures, and the share of answers that it changed."""
    known = [
        (f"{hiding(one)}", one.changed),
        (f"For comparison: {control_in_words(one)}", one.control),
        (f"{exchanging(one)} a picture with another answer", one.exchanged),
        ("… and the answer becomes that of the other picture", one.followed),
        (f"{exchanging(one)} another picture with the same answer", one.exchanged_alike),
    ]
    return [(name, interval) for name, interval in known if interval is not None]


def drawn(example: SuspectExample, one: Suspect) -> dict[str, Any]:
    return {
        "example": example,
        "picture": jpeg_uri(marked(example.picture, one, SIDE)),
        "map": jpeg_uri(overlay(example.picture, example.heat, width=SIDE)),
        "hidden": None if example.hidden is None else jpeg_uri(enlarge(example.hidden, SIDE)),
    }


def marked(picture: Image.Image, one: Suspect, width: int) -> Image.Image:
    """The picture at this width, with a frame around the place of a suspect."""
    large = enlarge(picture, width)
    if one.box is not None and one.kind == "place":
        sides = zip(one.box, (large.width - 1, large.height - 1) * 2, strict=True)
        ImageDraw.Draw(large).rectangle([round(value * side) for value, side in sides], outline=SEEN_BOX, width=2)
    return large
