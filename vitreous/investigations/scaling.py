"""What models take on this machine as images grow: time, memory and multiply-adds, measured as `bench` does it."""

import math
from typing import Any

import torch

from vitreous.investigations.base import Inquiry, Investigation, coloured
from vitreous.measurements.benchmark import measure_all
from vitreous.measurements.contender import Setting, open_source
from vitreous.measurements.runners import load_runners
from vitreous.reports.chart import Chart, Series
from vitreous.reports.investigation import Findings

SIZES = (128, 256, 384, 512)


class Scaling(Investigation):
    name = "scaling"
    order = 60
    asks = "how time, memory and multiply-adds grow with the image"
    needs_data = needs_weights = False
    reading = (
        "One image at a time. Curves are straight lines through zero for a model whose cost is linear in the number of "
        "pixels; attention between all positions bends them upwards. Times are medians on this machine, and worth "
        "comparing only within one run; memory is counted without running anything. vitreous bench measures the same "
        "with spreads, batches, training and fitted exponents."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        device = torch.device(inquiry.device)
        sources = [open_source(each.given, "classify", None, {}, device, "off") for each in inquiry.subjects]
        settings = [Setting("infer", (size, size), 1) for size in inquiry.sizes or SIZES]
        found = measure_all(sources, settings, [load_runners()["eager"]], rounds=inquiry.rounds)
        rows: list[dict[str, Any]] = [
            {
                "model": one.model,
                "size": one.setting.size[0],
                "milliseconds": round(1000 * one.p50, 2),
                "megabytes": None if one.activation_bytes is None else round(one.activation_bytes / 1e6, 1),
                "gmacs": None if one.macs is None else round(one.macs / 1e9, 3),
            }
            for one in found
        ]
        colours, legend = coloured([row["model"] for row in rows])
        charts = tuple(
            Chart(title, "thousand pixels", tuple(growth(rows, name, key, colours[name]) for name in colours))
            for title, key in (("milliseconds",) * 2, ("megabytes",) * 2, ("G multiply-adds", "gmacs"))
        )
        return Findings(tuple(rows), charts, legend, columns=("model", "size", "milliseconds", "megabytes", "gmacs"))


def growth(rows: list[dict[str, Any]], model: str, key: str, colour: str) -> Series:
    own = [row for row in rows if row["model"] == model]
    return Series(model, tuple((row["size"] ** 2 / 1000, row[key] or math.nan) for row in own), colour, model)


INVESTIGATION = Scaling()
