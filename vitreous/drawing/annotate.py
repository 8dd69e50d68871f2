"""Pictures with answers drawn on them: boxes, masks, keypoints, or a colour for the class of every pixel.

Legend: n objects, K keypoints, H W picture.
"""

import colorsys
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw, ImageFilter, ImageOps

from vitreous.drawing.panels import INK, PAPER, TEXT_PIXELS, blended, fit_text, font, text_width

RgbColour = tuple[int, int, int]
GOLDEN_RATIO_STEP = 0.618034  # around the colour circle: neighbours in a list are far apart on it
OPACITY = 0.45
BACKGROUND_NAME = "background"
MIN_DRAWING_PIXELS = 320  # pixels of the longer side of a drawing
DARK, LIGHT = (20, 20, 20), (255, 255, 255)


def class_colour(number: int) -> RgbColour:
    """One for each class, the same in every picture and for every model."""
    value = (1.0, 0.8, 0.65)[number // 7 % 3]
    red, green, blue = colorsys.hsv_to_rgb(number * GOLDEN_RATIO_STEP % 1, 0.85 if number % 2 else 0.65, value)
    return round(255 * red), round(255 * green), round(255 * blue)


def draw_objects(
    picture: Image.Image,
    boxes: NDArray[np.float64],
    labels: Sequence[int],
    captions: Sequence[str],
    *,
    masks: NDArray[np.bool_] | None = None,
) -> Image.Image:
    """Boxes (n, 4), the surest first, in the colours of their classes; masks (n, H, W) tint what they cover.

    A box with an empty caption has none.
    """
    picture = picture.convert("RGB")
    colours = [class_colour(label) for label in labels]
    if masks is not None and len(masks):
        picture = tinted(picture, masks, colours)
    draw, width = ImageDraw.Draw(picture), line_width(picture)
    drawn = [*zip(boxes.tolist(), colours, captions, strict=True)][::-1]  # the surest, which come first, on top
    for box, colour, _ in drawn:
        draw.rectangle(_within(box, picture), outline=colour, width=width)
    for box, colour, caption in drawn:
        if caption:
            _chip(draw, picture, (box[0], box[1]), caption, colour)
    return picture


def tinted(picture: Image.Image, masks: NDArray[np.bool_], colours: Sequence[RgbColour]) -> Image.Image:
    """What several masks cover has the colour of the first."""
    owner = np.where(masks.any(0), masks.argmax(0), len(masks))  # (H, W)
    table = np.array([*colours, (0, 0, 0)], np.float32)
    opacity = np.where(owner < len(masks), OPACITY, 0.0)[..., None]
    return blended(np.asarray(picture, np.float32), table[owner], opacity)


def draw_keypoints(
    picture: Image.Image,
    keypoints: NDArray[np.float64],
    skeleton: Sequence[tuple[int, int]],
    *,
    min_score: float,
) -> Image.Image:
    """Keypoints (n, K, 3), those with a score from `min_score` on, each in its colour; the skeleton joins them."""
    picture = picture.convert("RGB")
    draw, width = ImageDraw.Draw(picture), line_width(picture)
    radius = width + 2
    for points in keypoints.tolist():
        for start, end in skeleton:
            (x0, y0, first), (x1, y1, second) = points[start], points[end]
            if min(first, second) >= min_score:
                draw.line((x0, y0, x1, y1), LIGHT, width)
        for number, (x, y, score) in enumerate(points):
            if score >= min_score:
                around = (x - radius, y - radius, x + radius, y + radius)
                draw.ellipse(around, fill=class_colour(number), outline=DARK)
    return picture


def draw_outline(picture: Image.Image, region: NDArray[np.bool_], label: int) -> Image.Image:
    """A region (H, W), of any size, outlined from within, in the colour of its class."""
    picture = picture.convert("RGB")
    width = line_width(picture)
    inside = Image.fromarray(region).convert("L").resize(picture.size, Image.Resampling.NEAREST)
    framed = ImageOps.expand(inside, width).filter(ImageFilter.MinFilter(2 * width + 1))  # black around the picture
    eroded = np.asarray(framed)[width:-width, width:-width] > 0
    ring = (np.asarray(inside) > 0) & ~eroded
    picture.paste(class_colour(label), mask=Image.fromarray(ring))
    return picture


def draw_place(picture: Image.Image, place: tuple[float, float], number: int) -> Image.Image:
    """A ring around a point (x, y), in the colour of its keypoint."""
    picture = picture.convert("RGB")
    width = line_width(picture)
    (x, y), radius = place, 6 * width
    around = (x - radius, y - radius, x + radius, y + radius)
    ImageDraw.Draw(picture).ellipse(around, outline=class_colour(number), width=2 * width)
    return picture


def draw_classes(picture: Image.Image, semantic: NDArray[np.integer], names: Sequence[str]) -> Image.Image:
    """The picture tinted by the class (H, W) of each pixel; what is called background stays as it is."""
    table = np.array([class_colour(number) for number in range(len(names))], np.float32)
    tinted_classes = [0.0 if name == BACKGROUND_NAME else OPACITY for name in names]
    opacity = np.array(tinted_classes, np.float32)[semantic][:, :, None]
    return blended(np.asarray(picture.convert("RGB"), np.float32), table[semantic], opacity)


def with_legend(picture: Image.Image, semantic: NDArray[np.integer], names: Sequence[str]) -> Image.Image:
    """Below the picture, what the colours of the classes mean and how much of it they cover."""
    seen, counts = np.unique(semantic, return_counts=True)
    shares = sorted(zip(counts.tolist(), seen.tolist(), strict=True), reverse=True)
    entries = [
        (
            PAPER if names[number] == BACKGROUND_NAME else class_colour(number),
            f"{names[number]} {count / semantic.size:.0%}",
        )
        for count, number in shares
    ]
    return _listed_below(picture, entries)


def enlarge_small(picture: Image.Image) -> tuple[Image.Image, int]:
    """A small picture several times as large, so that a caption finds room, and how many times."""
    times = max(1, -(-MIN_DRAWING_PIXELS // max(picture.size)))
    return picture.resize((picture.width * times, picture.height * times), Image.Resampling.BICUBIC), times


def _listed_below(picture: Image.Image, entries: Sequence[tuple[RgbColour | str, str]]) -> Image.Image:
    square, gap, line = TEXT_PIXELS, 10, TEXT_PIXELS + 10
    places, x, y = [], gap, gap // 2
    width = max(picture.width, 160)
    for colour, text in entries:
        text = fit_text(text, TEXT_PIXELS, width - square - 3 * gap)
        wide = square + gap // 2 + text_width(text, TEXT_PIXELS) + gap
        if x > gap and x + wide > width:
            x, y = gap, y + line
        places.append((x, y, colour, text))
        x += wide
    sheet = Image.new("RGB", (width, picture.height + y + line), PAPER)
    sheet.paste(picture, (0, 0))
    draw = ImageDraw.Draw(sheet)
    for x, y, colour, text in places:
        top = picture.height + y
        draw.rectangle((x, top + 3, x + square, top + 3 + square), fill=colour)
        draw.text((x + square + gap // 2, top), text, INK, font(TEXT_PIXELS))
    return sheet


def line_width(picture: Image.Image) -> int:
    return max(1, round(min(picture.size) / 200))


def _within(box: Sequence[float], picture: Image.Image) -> tuple[float, float, float, float]:
    """Pillow refuses rectangles whose corners are in the wrong order."""
    x0, y0 = min(box[0], picture.width - 1), min(box[1], picture.height - 1)
    return x0, y0, max(min(box[2], picture.width) - 1, x0), max(min(box[3], picture.height) - 1, y0)


def _chip(
    draw: ImageDraw.ImageDraw, picture: Image.Image, corner: tuple[float, float], text: str, colour: RgbColour
) -> None:
    """A caption above the corner, or inside the picture where there is no room above."""
    size = min(TEXT_PIXELS, max(9, min(picture.size) // 16))
    text = fit_text(text, size, picture.width - 8)
    width, height = text_width(text, size) + 6, size + 4
    x = max(0, min(corner[0], picture.width - width))
    y = corner[1] - height if corner[1] >= height else corner[1]
    draw.rectangle((x, y, x + width, y + height), fill=colour)
    brightness = 0.299 * colour[0] + 0.587 * colour[1] + 0.114 * colour[2]
    draw.text((x + 3, y + 1), text, DARK if brightness > 140 else LIGHT, font(size))
