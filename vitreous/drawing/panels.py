"""Heat maps on pictures, captions, and the contact sheet that shows one explanation at a glance.

Everything is drawn with numpy and Pillow. Heat is an (H, W) array with values in [0, 1].
"""

from collections.abc import Sequence
from functools import cache
from typing import NamedTuple

import numpy as np
from PIL import Image, ImageDraw, ImageFont

# Equal steps of lightness from indigo to pale yellow, as vivid as the screen allows, so that "brighter" reads as
# "more" also in grey or for colour-blind eyes.
HEAT_COLOURS = ("#0e024b", "#2b0a75", "#561196", "#901999", "#cc217c", "#f74758", "#f98b58", "#fbbd6c", "#fde988")

PAPER, INK, QUIET, LINE = "#ffffff", "#1d1b26", "#6b6878", "#e4e2ea"
MARGIN, PANEL_GAP, CORNER = 32, 18, 12
MOST_COLUMNS, BAR_WIDTH, WIDEST_TEXT = 7, 200, 1600
TITLE_PIXELS, TEXT_PIXELS = 24, 19  # font sizes in pixels; readable when a README shows the sheet at half its width


class Panel(NamedTuple):
    image: Image.Image
    title: str
    details: tuple[str, ...] = ()


@cache
def colour_table() -> np.ndarray:
    """256 RGB colours between the stops: (256, 3) uint8."""
    stops = np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in HEAT_COLOURS])
    positions = np.linspace(0, 1, len(stops))
    channels = [np.interp(np.linspace(0, 1, 256), positions, stops[:, c]) for c in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def colourise(heat: np.ndarray) -> np.ndarray:
    """(H, W) in [0, 1] -> (H, W, 3) uint8."""
    return colour_table()[(heat.clip(0, 1) * 255).round().astype(np.uint8)]


def enlarge(picture: Image.Image, width: int) -> Image.Image:
    """The picture at exactly this width, proportions kept."""
    height = max(1, round(picture.height * width / picture.width))
    return picture.convert("RGB").resize((width, height), Image.Resampling.LANCZOS)


def enlarge_heat(heat: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    """Smooth heat at (width, height); bicubic, because bilinear shows the corners of a coarse grid."""
    image = Image.fromarray(heat.astype(np.float32))
    return np.asarray(image.resize(size, Image.Resampling.BICUBIC)).clip(0, 1)


def overlay(picture: Image.Image, heat: np.ndarray, *, width: int = 256) -> Image.Image:
    """The picture under its heat: cold areas are dimmed, hot areas glow, and the object stays visible below."""
    base = enlarge(picture, width)
    warmth = enlarge_heat(heat, base.size)
    # Mostly grey below, so that a red object is not mistaken for heat.
    below = 0.7 * np.asarray(base.convert("L"), dtype=np.float32)[..., None] + 0.3 * np.asarray(base)
    opacity = (0.45 + 0.25 * warmth)[..., None]
    return blended(below, colourise(warmth), opacity)


def blended(below: np.ndarray, above: np.ndarray, opacity: np.ndarray) -> Image.Image:
    """Colours (H, W, 3) over others, each pixel as opaque as given (H, W, 1)."""
    return Image.fromarray((below * (1 - opacity) + above * opacity).round().astype(np.uint8))


class SheetLayout(NamedTuple):
    """Where everything is on a sheet, in pixels."""

    size: tuple[int, int]  # width, height
    corners: tuple[tuple[int, int], ...]  # upper left ones of the panels
    bottom: int  # of the panels, where the footer begins


def contact_sheet(
    panels: Sequence[Panel], *, heading: str, subheading: str, footnote: str, bar: bool = True
) -> Image.Image:
    """Panels of equal size in rows under a heading, with footnote and, for heat maps, the colour bar below."""
    heading, subheading, footnote = fit_sheet_texts(heading, subheading, footnote)
    layout = lay_out(panels, heading, subheading, footnote)
    sheet = Image.new("RGB", layout.size, PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN - 6), heading, INK, font(TITLE_PIXELS + 6))
    draw.text((MARGIN, MARGIN + TITLE_PIXELS + 12), subheading, QUIET, font(TEXT_PIXELS))
    for panel, corner in zip(panels, layout.corners, strict=True):
        draw_panel(sheet, panel, corner)
    draw_footer(sheet, footnote, layout.bottom, bar)
    return sheet


def fit_sheet_texts(heading: str, subheading: str, footnote: str) -> tuple[str, str, str]:
    heading = fit_text(heading, TITLE_PIXELS + 6, WIDEST_TEXT)
    return heading, fit_text(subheading, TEXT_PIXELS, WIDEST_TEXT), fit_text(footnote, TEXT_PIXELS, WIDEST_TEXT)


def lay_out(panels: Sequence[Panel], heading: str, subheading: str, footnote: str) -> SheetLayout:
    width, height = panels[0].image.size
    columns = min(len(panels), MOST_COLUMNS)
    rows = -(-len(panels) // columns)
    caption = 34 + TITLE_PIXELS + max(len(panel.details) for panel in panels) * (TEXT_PIXELS + 8)
    top = MARGIN + TITLE_PIXELS + TEXT_PIXELS + 34
    # Few panels are narrower than the texts: the sheet is as wide as its widest part.
    texts = (
        text_width(heading, TITLE_PIXELS + 6),
        text_width(subheading, TEXT_PIXELS),
        text_width(footnote, TEXT_PIXELS) + BAR_WIDTH + 140,
    )
    inner = max(columns * (width + PANEL_GAP) - PANEL_GAP, *texts)
    bottom = top + rows * (height + caption)
    places = (divmod(index, columns) for index in range(len(panels)))
    corners = tuple((MARGIN + column * (width + PANEL_GAP), top + row * (height + caption)) for row, column in places)
    return SheetLayout((inner + 2 * MARGIN, bottom + TEXT_PIXELS + MARGIN + 20), corners, bottom)


def draw_panel(sheet: Image.Image, panel: Panel, corner: tuple[int, int]) -> None:
    left, top = corner
    width, height = panel.image.size
    sheet.paste(panel.image, corner, rounded_mask(width, height))
    draw = ImageDraw.Draw(sheet)
    line = top + height + 12
    draw.text((left + 2, line), fit_text(panel.title, TITLE_PIXELS, width), INK, font(TITLE_PIXELS))
    line += TITLE_PIXELS + 8
    for detail in panel.details:
        draw.text((left + 2, line), fit_text(detail, TEXT_PIXELS, width), QUIET, font(TEXT_PIXELS))
        line += TEXT_PIXELS + 8


def draw_footer(sheet: Image.Image, footnote: str, top: int, bar: bool) -> None:
    """A thin rule, the footnote, and at the right the colour bar from low to high."""
    draw = ImageDraw.Draw(sheet)
    right, line = sheet.width - MARGIN, top + 14
    draw.line((MARGIN, top, right, top), LINE, 2)
    draw.text((MARGIN, line), footnote, QUIET, font(TEXT_PIXELS))
    if not bar:
        return
    colours = Image.fromarray(np.repeat(colourise(np.linspace(0, 1, BAR_WIDTH))[None], TEXT_PIXELS - 3, axis=0))
    left = right - text_width("high", TEXT_PIXELS) - 10 - colours.width
    draw.text((left + colours.width + 10, line), "high", QUIET, font(TEXT_PIXELS))
    draw.text((left - 10 - text_width("low", TEXT_PIXELS), line), "low", QUIET, font(TEXT_PIXELS))
    sheet.paste(colours, (left, line + 4), rounded_mask(*colours.size, 4))


def labelled(picture: Image.Image, label: str, *, width: int = 320) -> Image.Image:
    """The picture with one line of text below it."""
    base = enlarge(picture, max(width, picture.width))
    sheet = Image.new("RGB", (base.width, base.height + TITLE_PIXELS + 22), PAPER)
    sheet.paste(base, (0, 0))
    ImageDraw.Draw(sheet).text(
        (10, base.height + 8), fit_text(label, TITLE_PIXELS, base.width - 20), INK, font(TITLE_PIXELS)
    )
    return sheet


def rounded_mask(width: int, height: int, corner: int = CORNER) -> Image.Image:
    """Drawn four times too large and reduced: Pillow's own corners are jagged."""
    large = Image.new("L", (width * 4, height * 4), 0)
    ImageDraw.Draw(large).rounded_rectangle((0, 0, width * 4 - 1, height * 4 - 1), corner * 4, fill=255)
    return large.resize((width, height), Image.Resampling.BOX)


def text_width(text: str, size: int) -> int:
    return round(font(size).getlength(text))


def fit_text(text: str, size: int, width: int) -> str:
    """The text, shortened with an ellipsis until it fits the width."""
    if text_width(text, size) <= width:
        return text
    while text and text_width(text + "…", size) > width:
        text = text[:-1]
    return text.rstrip() + "…"


@cache
def font(size: int) -> ImageFont.FreeTypeFont | ImageFont.ImageFont:
    return ImageFont.load_default(size)
