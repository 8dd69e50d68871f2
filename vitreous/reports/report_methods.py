"""The part of the report that compares methods on one image."""

from collections.abc import Sequence
from html import escape

from vitreous.faithfulness.scoring import NO_BETTER
from vitreous.reports.explanation import Explanation, MethodMap
from vitreous.reports.report_pieces import Cell, number, tile


def methods_html(item: Explanation, cells: Sequence[Cell]) -> str:
    """The most faithful first, as measured on this very image; what hides is a blur and the mean colour."""
    if not item.methods:
        return ""
    ordered = sorted(zip(item.methods, cells, strict=False), key=lambda pair: -pair[0].difference)
    tiles = "".join(
        tile(
            item.shown,
            cell,
            method.heat,
            alt=f"Heat map of {method.name} over the picture",
            caption=_caption(method, method.name == item.default),
            kind="control" if method.control else "",
            first=method.name == item.default,
        )
        for method, cell in ordered
    )
    heading = f"Maps for “{escape(item.watched)}”, the most faithful on this image first"
    return f'<h3>{heading}</h3><div class="tiles">{tiles}</div>'


def _caption(method: MethodMap, default: bool) -> str:
    labels = [
        ("mark", "default", default),
        ("plain", "control", method.control),
        ("warn", NO_BETTER, method.beats_controls is False and not method.control),
    ]
    shown = "".join(f'<span class="label {kind}">{text}</span>' for kind, text, given in labels if given)
    blur = method.scores["insertion_blur"], method.scores["deletion_blur"]
    return (
        f'<b class="name">{escape(method.name)}</b>{shown}<br><span class="score">{number(method.difference)}</span> '
        f"insertion − deletion{curve(method)}"
        f'<span class="quiet">insertion {blur[0]:.2f}, deletion {blur[1]:.2f} (blur)</span>'
    )


def curve(method: MethodMap) -> str:
    """Both curves: the area between them is the score."""
    lines = "".join(
        f'<polyline class="{kind}" points="{_points(values)}"/>'
        for kind, values in (("insertion", method.insertion), ("deletion", method.deletion))
    )
    return (
        f'<svg class="curve" viewBox="0 0 100 40" preserveAspectRatio="none" role="img" '
        f'aria-label="Probability as the image is shown, and as it is hidden">{lines}</svg>'
    )


def _points(values: Sequence[float]) -> str:
    step = 100 / (len(values) - 1)
    return " ".join(f"{place * step:.1f},{38 - 36 * value:.1f}" for place, value in enumerate(values))
