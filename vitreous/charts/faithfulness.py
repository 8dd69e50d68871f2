"""Faithfulness of methods as a table, as Markdown, and as a picture of means with their intervals."""

from collections.abc import Sequence
from typing import Any

from PIL import Image, ImageDraw

from vitreous.charts.chart import COLOURS, axis
from vitreous.charts.evaluation import Grid, markdown_rows, plain
from vitreous.charts.raster import FINE, dashes
from vitreous.maps.draw import INK, LINE, MARGIN, PAPER, QUIET, TEXT, TITLE, fitted, font
from vitreous.maps.scoring import DECIDES, IGNORANT, Scores

HEADINGS = {  # measure -> column
    DECIDES: "insertion − deletion",
    "insertion_blur": "insertion (blur)",
    "deletion_blur": "deletion (blur)",
    "insertion_mean": "insertion (mean)",
    "deletion_mean": "deletion (mean)",
    "pointing": "pointing",
    "pointing_near": "pointing, 2 px",
    "energy": "energy inside",
    "overlap": "IoU",
    "randomisation": "likeness to random weights",
    "stability": "stability",
}
SHORT = (DECIDES, "pointing_near", "stability")  # what fits a console of 80 columns
ROW, NAMES, PLOT = 40, 420, 620  # pixels: a row's height, the width of the names and of the plot
READING = (
    "Insertion − deletion: the area between the curves of the probability as the image is shown, and hidden, in "
    "the order of the map, where hidden means blurred. In brackets the 95 % bootstrap "
    "interval over images. Pointing, energy and IoU compare with the object's mask where the data have one; "
    "oracle_mask is that mask, measured on those images only. "
    "Likeness to random weights should be near 0, stability under noise near 1."
)


def verdict(scores: Scores, method: str) -> str:
    if method in scores.controls:
        return "control"
    lost = [name.replace("_", " ") for name, beaten in scores.verdict(method).items() if not beaten]
    return f"no: {', '.join(lost)}" if lost else "yes"


def as_grid(scores: Scores, *, title: str, measures: Sequence[str] = SHORT) -> Grid:
    """One row a method, the most faithful first; the deciding measure with its interval."""
    shown = [measure for measure in measures if any(measure in found for found in scores.values.values())]
    rows = []
    for row in scores.rows():
        name = str(row["method"])
        cells = [cell(scores, name, measure) for measure in shown]
        rows.append((name, *cells, verdict(scores, name)))
    return Grid(title, ("method", *(HEADINGS[measure] for measure in shown), "beats controls"), rows)


def cell(scores: Scores, method: str, measure: str) -> str:
    if measure not in scores.values[method]:
        return "–"
    found = scores.interval(method, measure)
    if measure != DECIDES:
        return f"{found.mean:.2f}"
    return f"{found.mean:.2f} ({found.low:.2f} to {found.high:.2f})"


def as_markdown(scores: Scores, about: dict[str, Any], *, chart: str, default: str) -> str:
    grid = as_grid(scores, title="", measures=tuple(HEADINGS))
    lines = [f"# How faithful are the maps of {plain(str(about['model']))}?", ""]
    lines += [f"- {name.replace('_', ' ')}: {plain(str(value))}" for name, value in about.items() if name != "model"]
    lines += ["", f"Default map: {plain(default)}", "", f"![Insertion − deletion of every method]({chart})", ""]
    lines += [*markdown_rows(grid), "", READING, ""]
    described = [f"- {plain(str(row['method']))}: {plain(str(row['summary']))}" for row in scores.rows()]
    return "\n".join([*lines, "What each method shows:", "", *described]) + "\n"


def picture(scores: Scores, *, heading: str, default: str | None = None) -> Image.Image:
    """A row a method: the mean of insertion − deletion and its interval; dashed, what the ignorant controls reach."""
    names = [str(row["method"]) for row in scores.rows()]
    found = {name: scores.interval(name) for name in names}
    across = axis([0.0, *(end for one in found.values() for end in one)], pad=0.03)
    top = MARGIN + TITLE + TEXT + 34
    width, height = 2 * MARGIN + NAMES + PLOT, top + ROW * len(names) + 96
    left, bottom = MARGIN + NAMES, top + ROW * len(names)
    fine = Image.new("RGB", (width * FINE, height * FINE), PAPER)
    draw = ImageDraw.Draw(fine)
    for value, _ in across.ticks:
        x = (left + PLOT * across.share(value)) * FINE
        draw.line((x, top * FINE, x, bottom * FINE), QUIET if value == 0 else LINE, FINE)
    for name in IGNORANT:
        if name in found:
            x = (left + PLOT * across.share(found[name].mean)) * FINE
            for stroke in dashes([(x, top * FINE), (x, bottom * FINE)], 8 * FINE, 6 * FINE):
                draw.line(stroke, QUIET, FINE)
    for row, name in enumerate(names):
        y, colour = (top + ROW * (row + 0.5)) * FINE, colour_of(scores, name)
        low, mean, high = (
            (left + PLOT * across.share(v)) * FINE for v in (found[name].low, found[name].mean, found[name].high)
        )
        draw.line((low, y, high, y), colour, 4 * FINE)
        draw.circle((mean, y), 7 * FINE, colour)
    sheet = fine.reduce(FINE)
    write_labels(ImageDraw.Draw(sheet), scores, names, heading, default, (left, top, bottom))
    for value, label in across.ticks:
        place = (left + PLOT * across.share(value), bottom + 10)
        ImageDraw.Draw(sheet).text(place, label, QUIET, font(TEXT), anchor="ma")
    return sheet


def write_labels(
    draw: ImageDraw.ImageDraw,
    scores: Scores,
    names: Sequence[str],
    heading: str,
    default: str | None,
    frame: tuple[int, int, int],
) -> None:
    """Text is drawn at its own size: reduced, it would be blurred."""
    left, top, bottom = frame
    width = NAMES + PLOT
    draw.text((MARGIN, MARGIN - 6), fitted(heading, TITLE, width), INK, font(TITLE))
    key = "orange: does not beat its controls; grey: control; dashed: random map and centre blob"
    draw.text((MARGIN, MARGIN + TITLE + 6), key, QUIET, font(TEXT))
    for row, name in enumerate(names):
        text = f"{name} (default)" if name == default else name
        colour = QUIET if name in scores.controls else INK
        draw.text((MARGIN, top + ROW * (row + 0.5)), fitted(text, TEXT, NAMES - 20), colour, font(TEXT), anchor="lm")
    draw.text(
        (left + PLOT / 2, bottom + 40),
        "insertion minus deletion, mean and 95 % interval",
        QUIET,
        font(TEXT),
        anchor="ma",
    )


def colour_of(scores: Scores, method: str) -> str:
    if method in scores.controls:
        return QUIET
    return COLOURS[0] if scores.beats_controls(method) else COLOURS[1]
