"""One explanation as a picture: the image, the default map and the most important clusters in one row."""

import math

import numpy as np
from PIL import Image
from torch import Tensor

from vitreous.clusters.layer import stretch
from vitreous.drawing.panels import Panel, contact_sheet, enlarge, overlay
from vitreous.reports.explanation import Explanation

PANEL_PIXELS = 256  # width of one panel


def shown_heat(heat: Tensor) -> np.ndarray:
    """A map from 0 to 1 as it is drawn. Where a map has both signs, what speaks against the answer is dark."""
    positive = heat.float().clamp_min(0)
    high = positive.max()
    scaled = positive / high if heat.min() < 0 and high > 0 else stretch(heat.float())
    return np.asarray(scaled)


def draw_sheet(item: Explanation, top_k: int) -> Image.Image:
    others = tuple(f"{name} {probability:.1%}" for name, probability in item.probabilities[1:3])
    first = f"{item.predicted} {item.probabilities[0][1]:.1%}" if item.probabilities else item.name
    panels = [Panel(enlarge(item.shown, PANEL_PIXELS), first, others)]
    for method in sorted(item.methods, key=lambda method: method.name != item.default):
        if method.name == item.default or item.clusters is None:
            details = ("insertion minus deletion", f"{method.difference:+.2f}")
            panels.append(Panel(overlay(item.shown, shown_heat(method.heat), width=PANEL_PIXELS), method.name, details))
    footnote = f"insertion minus deletion: the more, the better the model agrees with the map of “{item.watched}”"
    if item.clusters is not None:
        clusters = item.clusters
        for m in clusters.order[:top_k]:
            score, spread = clusters.importance[clusters.ranking][m].item(), clusters.entropy[m].item()
            heat = overlay(item.shown, shown_heat(clusters.maps[m]), width=PANEL_PIXELS)
            panels.append(Panel(heat, f"cluster {m}", (f"score {score:+.3f}", f"entropy {spread:.2f} nats")))
        flat = math.log(clusters.maps[0].numel())
        footnote = f"score for “{item.watched}”: {clusters.unit}; entropy of a flat map: {flat:.2f} nats"
    verdict = "" if item.true is None else ", right" if item.true == item.predicted else f", but it is {item.true}"
    heading = f"Predicted {item.predicted}{verdict}" if item.answer is None else item.answer.nothing or item.watched
    about = " · ".join(item.facts[key] for key in ("model", "layer", "maps") if key in item.facts)
    return contact_sheet(
        panels,
        heading=heading,
        subheading=f"{item.name} · {about}" if about else item.name,
        footnote=footnote,
    )
