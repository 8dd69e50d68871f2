"""A reliability diagram: how often answers of a given confidence were right."""

from collections.abc import Sequence

from PIL import Image

from vitreous.drawing.panels import INK, QUIET
from vitreous.metrics.calibration import ReliabilityBin
from vitreous.reports.chart import COLOURS, axis
from vitreous.reports.figure import TEXT, TITLE, add_legend, as_image, new_figure, set_heading, shortened, style_axes

WIDTH, HEIGHT = 720, 950  # pixels
ACCURACY, GAP = COLOURS[0], "#e8a36c"


def reliability_picture(bins: Sequence[ReliabilityBin], *, heading: str) -> Image.Image:
    """Above, a bar per bin: the accuracy, and its gap to the mean confidence; below, how many images it holds."""
    figure = new_figure(WIDTH, HEIGHT, head=96)
    set_heading(figure, shortened(heading, 56), size=TITLE)
    upper, lower = figure.subplots(2, 1, sharex=True, height_ratios=(4, 1))
    for axes, title in ((upper, "accuracy"), (lower, "images")):
        style_axes(axes)
        axes.set_title(title, loc="left", color=QUIET, fontsize=TEXT)
    for low, high, images, confidence, accuracy in bins:
        if confidence is None or accuracy is None:
            continue
        middle, width = 50 * (low + high), 100 * (high - low)
        upper.bar(middle, 100 * accuracy, 0.95 * width, color=ACCURACY, label="accuracy")
        # Where the accuracy is above the confidence, the gap lies on its bar.
        gap = 100 * (accuracy - confidence)
        upper.bar(middle, gap, width / 2, bottom=100 * confidence, color=GAP, label="gap to the mean confidence")
        lower.bar(middle, images, 0.95 * width, color=QUIET)
    upper.plot([0, 100], [0, 100], color=INK, linestyle=(0, (5, 4)), linewidth=1.2, label="perfect")
    percent = axis([0, 100], pad=0, unit="%").ticks
    upper.set_yticks([value for value, _ in percent], [label for _, label in percent])
    lower.set_xticks([value for value, _ in percent], [label for _, label in percent])
    upper.set_ylim(0, 100)
    lower.set_xlim(0, 100)
    counts = axis([0, max(bin.images for bin in bins)], pad=0).ticks[::2]
    lower.set_yticks([value for value, _ in counts], [label for _, label in counts])
    lower.set_xlabel("confidence", color=QUIET, fontsize=TEXT)
    entries = {label: drawn for drawn, label in zip(*upper.get_legend_handles_labels(), strict=True)}
    add_legend(figure, list(entries.values()), list(entries), across=3)
    return as_image(figure)
