"""A reliability diagram: how often answers of a given confidence were right."""

from collections.abc import Sequence

from PIL import Image, ImageDraw

from vitreous.charts.chart import COLOURS, axis
from vitreous.charts.raster import FINE, Frame, dashes, faded
from vitreous.maps.draw import INK, LINE, MARGIN, PAPER, QUIET, TEXT, TITLE, fitted, font
from vitreous.metrics.calibration import ReliabilityBin

SIDE, HISTOGRAM, BETWEEN = 520, 130, 56  # pixels: the diagram, the histogram below it, the space between
LEFT = 92
ACCURACY, GAP = COLOURS[0], faded(COLOURS[1], 0.6)


def reliability_picture(bins: Sequence[ReliabilityBin], *, heading: str) -> Image.Image:
    """Above, a bar per bin: the accuracy, and its gap to the mean confidence; below, how many images it holds."""
    top = MARGIN + TITLE + TEXT + 58
    width, height = MARGIN + LEFT + SIDE + MARGIN, top + SIDE + BETWEEN + HISTOGRAM + TEXT * 2 + MARGIN + 20
    sheet = Image.new("RGB", (width, height), PAPER)
    draw = ImageDraw.Draw(sheet)
    draw.text((MARGIN, MARGIN - 6), fitted(heading, TITLE, width - 2 * MARGIN), INK, font(TITLE))
    _draw_legend(draw, (MARGIN, MARGIN + TITLE + 6))
    percent = axis([0, 100], pad=0, unit="%")
    upper = Frame(MARGIN + LEFT, top, SIDE, SIDE, percent, percent)
    largest = max(bin.images for bin in bins)
    counts = axis([0, largest], pad=0)
    lower = Frame(upper.left, top + SIDE + BETWEEN, SIDE, HISTOGRAM, percent, counts)
    fine = sheet.resize((width * FINE, height * FINE), Image.Resampling.NEAREST)
    _draw_bars(ImageDraw.Draw(fine), bins, _enlarged(upper), _enlarged(lower))
    # Text is drawn at its own size: reduced, it would be blurred.
    area = (upper.left - 2, top - 2, upper.left + SIDE + 2, lower.top + HISTOGRAM + 2)
    sheet.paste(fine.crop(tuple(side * FINE for side in area)).reduce(FINE), area[:2])  # type: ignore[arg-type]
    _write_labels(draw, upper, "accuracy")
    _write_labels(draw, lower._replace(y_axis=counts._replace(ticks=counts.ticks[::2])), "images")
    bottom = lower.top + HISTOGRAM
    for value, label in percent.ticks:
        draw.text((lower.at(value, 0)[0], bottom + 10), label, QUIET, font(TEXT), anchor="ma")
    draw.text((lower.left + SIDE / 2, bottom + 36), "confidence", QUIET, font(TEXT), anchor="ma")
    return sheet


def _enlarged(frame: Frame) -> Frame:
    left, top, width, height, *axes = frame
    return Frame(left * FINE, top * FINE, width * FINE, height * FINE, *axes)


def _draw_bars(draw: ImageDraw.ImageDraw, bins: Sequence[ReliabilityBin], upper: Frame, lower: Frame) -> None:
    for frame in (upper, lower):
        for value, _ in frame.y_axis.ticks:
            y = frame.at(0, value)[1]
            draw.line((frame.left, y, frame.left + frame.width, y), LINE, FINE)
    for bin in bins:
        if bin.confidence is None or bin.accuracy is None:
            continue
        left, right = (100 * side for side in (bin.low, bin.high))
        _bar(draw, upper, (left, right), (0, 100 * bin.accuracy), ACCURACY)
        inset = (right - left) / 4  # where the accuracy is above the confidence, the gap lies on its bar
        _bar(draw, upper, (left + inset, right - inset), (100 * bin.accuracy, 100 * bin.confidence), GAP)
        _bar(draw, lower, (left, right), (0, bin.images), QUIET)
    for stroke in dashes([upper.at(0, 0), upper.at(100, 100)], 10 * FINE, 8 * FINE):
        draw.line(stroke, INK, 2 * FINE)
    for frame in (upper, lower):
        bottom = frame.top + frame.height
        draw.line((frame.left, bottom, frame.left + frame.width, bottom), QUIET, FINE)


def _bar(
    draw: ImageDraw.ImageDraw,
    frame: Frame,
    across: tuple[float, float],
    up: tuple[float, float],
    colour: str,
) -> None:
    (x, low), (end, high) = frame.at(across[0], min(up)), frame.at(across[1], max(up))
    if low - high >= 1:
        draw.rectangle((x + FINE, high, end - FINE, low), colour)


def _write_labels(draw: ImageDraw.ImageDraw, frame: Frame, title: str) -> None:
    for value, label in frame.y_axis.ticks:
        draw.text((frame.left - 12, frame.at(0, value)[1]), label, QUIET, font(TEXT), anchor="rm")
    draw.text((frame.left, frame.top - 8), title, QUIET, font(TEXT), anchor="ls")


def _draw_legend(draw: ImageDraw.ImageDraw, place: tuple[int, int]) -> None:
    x, y = place
    for text, colour in (("accuracy", ACCURACY), ("gap to the mean confidence", GAP)):
        draw.rectangle((x, y + 4, x + 18, y + 18), colour)
        draw.text((x + 28, y), text, INK, font(TEXT))
        x += 28 + round(font(TEXT).getlength(text)) + 32
    draw.text((x, y), "dashed: perfect", INK, font(TEXT))
