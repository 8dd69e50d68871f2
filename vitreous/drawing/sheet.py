"""A sheet of panels, as pixels and as a vector graphic whose texts stay texts: what papers print."""

import base64
import io
from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

import numpy as np
from PIL import Image

from vitreous.drawing.panels import (
    BAR_WIDTH,
    CORNER,
    INK,
    LINE,
    MARGIN,
    PAPER,
    QUIET,
    TEXT_PIXELS,
    TITLE_PIXELS,
    Panel,
    SheetLayout,
    colourise,
    contact_sheet,
    fit_sheet_texts,
    fit_text,
    lay_out,
    text_width,
)
from vitreous.errors import printable


@dataclass(frozen=True)
class Sheet:
    """Heat maps or spectra with a colour bar."""

    panels: Sequence[Panel]
    heading: str
    subheading: str
    footnote: str = ""

    def picture(self) -> Image.Image:
        return contact_sheet(self.panels, heading=self.heading, subheading=self.subheading, footnote=self.footnote)

    def vector(self) -> str:
        """SVG; the panels themselves are pictures, and are embedded."""
        heading, subheading, footnote = fit_sheet_texts(self.heading, self.subheading, self.footnote)
        layout = lay_out(self.panels, heading, subheading, footnote)
        width, height = layout.size
        parts = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
            'font-family="sans-serif">',
            f'<rect width="{width}" height="{height}" fill="{PAPER}"/>',
            f'<clipPath id="round" clipPathUnits="objectBoundingBox"><rect width="1" height="1" '
            f'rx="{CORNER / self.panels[0].image.width:.4f}"/></clipPath>',
            written(heading, (MARGIN, MARGIN - 6), TITLE_PIXELS + 6, INK),
            written(subheading, (MARGIN, MARGIN + TITLE_PIXELS + 12), TEXT_PIXELS, QUIET),
        ]
        for panel, corner in zip(self.panels, layout.corners, strict=True):
            parts += panel_parts(panel, corner)
        return "\n".join([*parts, *footer_parts(footnote, layout), "</svg>\n"])


def panel_parts(panel: Panel, corner: tuple[int, int]) -> list[str]:
    (left, top), (width, height) = corner, panel.image.size
    line = top + height + 12
    parts = [embedded(panel.image, corner), written(fit_text(panel.title, TITLE_PIXELS, width), (left + 2, line),
                                                    TITLE_PIXELS, INK)]  # fmt: skip
    for number, detail in enumerate(panel.details):
        place = left + 2, line + TITLE_PIXELS + 8 + number * (TEXT_PIXELS + 8)
        parts.append(written(fit_text(detail, TEXT_PIXELS, width), place, TEXT_PIXELS, QUIET))
    return parts


def footer_parts(footnote: str, layout: SheetLayout) -> list[str]:
    right, line = layout.size[0] - MARGIN, layout.bottom + 14
    colours = Image.fromarray(np.repeat(colourise(np.linspace(0, 1, BAR_WIDTH))[None], TEXT_PIXELS - 3, axis=0))
    left = right - 50 - BAR_WIDTH
    return [
        f'<path d="M{MARGIN} {layout.bottom}H{right}" stroke="{LINE}" stroke-width="2"/>',
        written(footnote, (MARGIN, line), TEXT_PIXELS, QUIET),
        written("low", (left - 10, line), TEXT_PIXELS, QUIET, "end"),
        embedded(colours, (left, line + 4)),
        written("high", (right, line), TEXT_PIXELS, QUIET, "end"),
    ]


def written(text: str, corner: tuple[int, int], size: int, colour: str, anchor: str = "start") -> str:
    """A line of text by its upper left corner, or its upper right one; as wide as in the picture in any font."""
    (x, y), shown = corner, printable(text)
    width = f' textLength="{text_width(shown, size)}" lengthAdjust="spacingAndGlyphs"' if shown else ""
    place = f'x="{x}" y="{y + size}" font-size="{size}" fill="{colour}" text-anchor="{anchor}"'
    return f"<text {place}{width}>{escape(shown)}</text>"


def embedded(picture: Image.Image, corner: tuple[int, int]) -> str:
    buffer = io.BytesIO()
    picture.convert("RGB").save(buffer, "PNG")
    (x, y), (width, height) = corner, picture.size
    content = base64.b64encode(buffer.getvalue()).decode()
    return (
        f'<image x="{x}" y="{y}" width="{width}" height="{height}" clip-path="url(#round)" '
        f'href="data:image/png;base64,{content}"/>'
    )
