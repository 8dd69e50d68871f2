"""An evaluation as one HTML file that needs nothing else: what is right, what is taken for what, and where it is wrong.

Equal evaluations give equal bytes. Places are computed here, markup is in templates/evaluation.html; the script only
sorts and filters tables.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from PIL import Image

from vitreous.drawing.panels import colourise, enlarge
from vitreous.metrics.accuracy import Accuracy, DetailedMetrics, ReliabilityBin, unique_names
from vitreous.metrics.figures import figure_text
from vitreous.reports.evaluation import Evaluation, Grid, evaluation_tables
from vitreous.reports.figure import matrix_rows, shorten_label
from vitreous.reports.page import jpeg_uri, png_uri, render_page

MOST_NAMED = 60  # classes of a matrix with names; more are a heat map
CELL, LETTER, LONGEST_NAME = 26, 7, 24  # pixels of a cell, and of a letter; letters of a name
MISTAKE_PIXELS = 200  # width of a picture that was answered wrong
DIAGRAM = 300  # pixels of the reliability diagram
FEW_ROWS = 12  # of a table that needs no search
HEADINGS = {  # of figures, in words
    "top1": "right",
    "top5": "right among the first five",
    "ece": "calibration error",
    "loss": "loss",
}
OWN_SECTIONS = {"classes", "most frequent mistakes", "wrong with the largest confidence"}  # not as plain tables


class MatrixCell(NamedTuple):
    x: int
    y: int
    share: float  # of its row
    images: int
    right: bool
    title: str


def render_evaluation(evaluation: Evaluation) -> str:
    """The page as a string."""
    details = evaluation.details
    figures, *tables = evaluation_tables(evaluation)
    return render_page(
        "evaluation",
        styles=["page.css", "report.css", "evaluation.css"],
        scripts=["tables.js"],
        title=title_of(evaluation),
        facts=evaluation.facts(),
        figures=[(HEADINGS.get(name, name), value) for name, value in sorted(figures.rows, key=_after_shares)],
        matrix=None if details is None else _matrix(details.accuracy),
        confused=[] if details is None else details.accuracy.confused(3),
        classes=None if details is None else class_grid(details),
        reliability=None if details is None else _reliability(details),
        mistakes=[{"mistake": one, "picture": _thumbnail(one.picture)} for one in evaluation.mistakes],
        tables=[grid for grid in tables if details is None or not grid.title.startswith(tuple(OWN_SECTIONS))],
        few_rows=FEW_ROWS,
    )


def _after_shares(row: tuple[str, ...]) -> int:
    """Shares come first, then losses, then how fast it was and with what."""
    return 2 if row[0] in ("images/s", "with") else int("loss" in row[0])


def title_of(evaluation: Evaluation) -> str:
    """The answer: how often the model is right, or else its first figure that is no loss."""
    if "top1" in evaluation.values:
        return f"{evaluation.model}: {evaluation.values['top1']:.1%} of {evaluation.images:,} images right"
    name = next((name for name in evaluation.values if "loss" not in name), next(iter(evaluation.values)))
    shown = figure_text(name, evaluation.values[name])
    return f"{evaluation.model}: {name} {shown} on {evaluation.images:,} images"


def class_grid(details: DetailedMetrics) -> Grid:
    """Every class with what it is most often taken for; the lowest recall first."""
    accuracy, names = details.accuracy, unique_names(details.accuracy.classes)
    taken: dict[str, tuple[int, str]] = {}
    for (true, answer), n in sorted(accuracy.pairs.items()):
        if true != answer and n > taken.get(names[true], (0, ""))[0]:
            taken[names[true]] = n, names[answer]
    rows = []
    for name, one in sorted(accuracy.per_class().items(), key=lambda row: (row[1].recall is None, row[1].recall or 0)):
        n, other = taken.get(name, (0, ""))
        figures = str(one.images), figure_text("", one.recall), figure_text("", one.precision)
        rows.append((name, *figures, f"{n} × {other}" if n else "–"))
    return Grid("classes", ("class", "images", "recall", "precision", "most often taken for"), rows)


def _matrix(accuracy: Accuracy) -> dict[str, Any]:
    """Cells with their places, or a heat map where there are too many classes to name."""
    count = len(accuracy.classes)
    if count > MOST_NAMED:
        counts = accuracy.confusion(matrix_rows(count))
        shares = counts / np.maximum(counts.sum(1, keepdims=True), 1)
        return {"heat": png_uri(Image.fromarray(colourise(shares**0.5))), "side": len(counts)}
    names = [shorten_label(name, LONGEST_NAME) for name in unique_names(accuracy.classes)]
    counts, margin = accuracy.confusion(), 16 + LETTER * max(map(len, names))
    totals = counts.sum(1)
    cells = [
        MatrixCell(
            margin + CELL * answer,
            margin + CELL * true,
            counts[true, answer] / totals[true],
            int(counts[true, answer]),
            bool(true == answer),
            f"{accuracy.classes[true]} answered {accuracy.classes[answer]}: {counts[true, answer]} of {totals[true]}",
        )
        for true, answer in np.argwhere(counts)
    ]
    return {"cells": cells, "names": names, "margin": margin, "cell": CELL, "side": margin + CELL * count + 4}


def _reliability(details: DetailedMetrics) -> dict[str, Any]:
    """Bars of how often answers of a confidence were right; the sentence says which way the model errs."""
    bins = details.calibration.bins()
    images = sum(row.images for row in bins)
    sure = sum(row.images * (row.confidence or 0.0) for row in bins) / images
    right = sum(row.images * (row.accuracy or 0.0) for row in bins) / images
    return {
        "sure": sure,
        "right": right,
        "side": DIAGRAM,
        "bars": [_bar(row, max(row.images for row in bins)) for row in bins if row.images],
        "table": Grid(
            "calibration",
            ("confidence", "images", "mean confidence", "right"),
            _reliability_rows(bins),
        ),
    }


def _bar(row: ReliabilityBin, most: int) -> dict[str, Any]:
    assert row.accuracy is not None
    assert row.confidence is not None
    return {
        "x": DIAGRAM * row.low + 1,
        "width": DIAGRAM * (row.high - row.low) - 2,
        "height": DIAGRAM * row.accuracy,
        "gap": DIAGRAM * (row.confidence - row.accuracy),
        "images": 40 * row.images / most,
        "title": f"{row.images} images, sure to {row.confidence:.0%} on average: {row.accuracy:.0%} right",
    }


def _reliability_rows(bins: Sequence[ReliabilityBin]) -> list[tuple[str, ...]]:
    return [
        (f"{row.low:.0%} to {row.high:.0%}", str(row.images), *(figure_text("", v) for v in row[3:]))
        for row in bins
        if row.images
    ]


def _thumbnail(picture: Image.Image) -> str:
    return jpeg_uri(enlarge(picture, MISTAKE_PIXELS), quality=80)
