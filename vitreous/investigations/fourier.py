"""Which frequencies the maps of a network hold, block by block.

The log of the amplitude of a map's Fourier transform, averaged over channels and pictures, as a function of frequency,
relative to the lowest (Park and Kim, arXiv 2202.06709). Self-attention averages and so loses high frequencies;
convolutions keep or raise them. EMSNet's branches are shown beside its blocks.

Shapes: B images, C channels, H W grid.
"""

from itertools import chain, groupby

import numpy as np
import torch
from numpy.typing import NDArray
from PIL import Image
from torch import Tensor

from vitreous.drawing.panels import Panel, colourise
from vitreous.drawing.sheet import Sheet
from vitreous.errors import InputError
from vitreous.investigations.base import Inquiry, Investigated, Investigation, rows_or_reasons, whole_places
from vitreous.investigations.blocks import block_maps, block_places
from vitreous.reports.chart import COLOURS, Chart, LegendEntry, Series
from vitreous.reports.investigation import Findings

BRANCH_MAPS = r".*\.mixer\.(static\.(branch\d+\.)?output|dynamic\.(local|global)_attention\.output)"
FREQUENCIES = 10  # of frequencies, from 0 to the highest that a grid can hold
SMALLEST_GRID = 4  # of a grid that has frequencies worth the name
SPECTRUM_SIDE = 240  # pixels


def log_amplitude(maps: Tensor) -> Tensor:
    """(B, C, H, W) -> (H, W): the mean log amplitude of each frequency, the lowest in the middle."""
    amplitude = torch.fft.fft2(maps.float(), norm="ortho").abs().clamp_min(1e-12).log()
    return torch.fft.fftshift(amplitude.mean((0, 1)))


def profile(spectrum: Tensor, bins: int = FREQUENCIES) -> tuple[list[float], list[float]]:
    """Frequencies, as shares of the highest along an axis, and the log amplitude of each relative to the lowest."""
    H, W = spectrum.shape
    rows, columns = (torch.fft.fftshift(torch.fft.fftfreq(side)).abs() * 2 for side in (H, W))  # 0 to 1
    distance = (rows[:, None] ** 2 + columns[None] ** 2).sqrt()
    number = (distance * bins).round().long()
    count = torch.zeros(bins + 1).index_add_(0, number[number <= bins], torch.ones(int((number <= bins).sum())))
    total = torch.zeros(bins + 1).index_add_(0, number[number <= bins], spectrum[number <= bins].cpu())
    here = count > 0
    values = total[here] / count[here]
    return (torch.arange(bins + 1)[here] / bins).tolist(), (values - values[0]).tolist()


class Fourier(Investigation):
    name = "fourier"
    order = 10
    any_task, answers = True, False
    asks = "which frequencies the maps of each block hold"
    reading = (
        "Frequency 0 is a map's mean, 1 the finest pattern its own grid can hold. A curve tells how much weaker a "
        "frequency is than the lowest, in natural logarithms: -2 means a seventh of the amplitude. Blocks that average "
        "over positions, as attention does, have curves that fall steeply; blocks that sharpen, as convolutions can, "
        "keep them flat. The second chart shows the end of every curve along the depth of the network: where it rises, "
        "details are gained, where it falls, they are smoothed away. Compare blocks of one grid: a coarser grid begins "
        "anew. In the pictures of the spectrum the middle is frequency 0 and the border the highest."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        rows, undefined = rows_or_reasons(inquiry, spectra)
        charts, legend = spectrum_charts(rows)
        pictures = {"spectrum": spectrum_sheet(rows)} if rows else {}
        told = tuple({key: value for key, value in row.items() if key != "spectrum"} for row in rows)
        return Findings(told, charts, legend, pictures, undefined, ("model", "block", "grid", "high"))


def spectra(subject: Investigated, inquiry: Inquiry) -> list[dict]:
    """One row for each block and branch of a model."""
    model, count = subject.trained.model, 0
    sums: dict[str, Tensor] = {}
    places = None
    for batch in inquiry.batches(subject.trained, f"spectra of {subject.label}"):
        places = places or block_places(model, batch.inputs, BRANCH_MAPS)
        for path, maps in block_maps(model, batch.inputs, places).items():
            if min(maps.shape[2:]) >= SMALLEST_GRID:
                here = log_amplitude(maps).cpu() * len(maps)
                sums[path] = sums[path] + here if path in sums else here
        count += len(batch.inputs)
    if not sums:
        raise InputError("no block gives a map of 4x4 positions or more")
    rows = []
    for depth, (path, total) in enumerate(sums.items()):
        frequencies, values = profile(total / count)
        rows.append(
            {
                "model": subject.label,
                "block": path,
                "branch": ".mixer." in path,
                "depth": depth,
                "grid": "x".join(map(str, total.shape)),
                "frequency": [round(value, 4) for value in frequencies],
                "log_amplitude": [round(value, 4) for value in values],
                "high": round(values[-1], 4),
                "spectrum": (total / count).numpy(),
            }
        )
    return rows


def spectrum_charts(rows: list[dict]) -> tuple[tuple[Chart, ...], tuple[LegendEntry, ...]]:
    """Curves of blocks of one model, at seven depths about, or of the last one of each of several; what is left of
    the highest frequency; and the same of branches.
    """
    models = list(dict.fromkeys(row["model"] for row in rows))
    legend, curves, ends = [], [], []
    for number, model in enumerate(models):
        own = [row for row in rows if row["model"] == model and not row["branch"]]
        colour = COLOURS[number % len(COLOURS)]
        ends.append(Series(model, tuple((place, row["high"]) for place, row in enumerate(own)), colour, model))
        if len(models) > 1:
            legend.append(LegendEntry(model, colour))
        for place, row in enumerate(own[:: max(1, len(own) // 6)] if len(models) == 1 else own[-1:]):
            shade = COLOURS[place % len(COLOURS)] if len(models) == 1 else colour
            points = tuple(zip(row["frequency"], row["log_amplitude"], strict=True))
            curves.append(Series(row["block"], points, shade, row["block"]))
            if len(models) == 1:
                legend.append(LegendEntry(f"{row['block']} ({row['grid']})", shade))
    charts = (
        Chart("log amplitude relative to the lowest", "frequency, as a share of the highest", tuple(curves)),
        Chart("the highest frequency, by depth", "block", tuple(ends), marked=whole_places(ends)),
    )
    branches, names = branch_charts([row for row in rows if row["branch"]])
    return charts + branches, (*legend, *names)


def branch_charts(rows: list[dict]) -> tuple[tuple[Chart, ...], tuple[LegendEntry, ...]]:
    """Dashed, the branches of every model that has some: of its first block, and by depth."""
    kinds = list(dict.fromkeys(branch_kind(row["block"]) for row in rows))
    colours = {kind: COLOURS[place % len(COLOURS)] for place, kind in enumerate(kinds)}
    charts: list[Chart] = []
    for model in dict.fromkeys(row["model"] for row in rows):
        own = [row for row in rows if row["model"] == model]
        first = own[0]["block"].partition(".mixer.")[0]
        curves = [
            Series(kind, tuple(zip(row["frequency"], row["log_amplitude"], strict=True)), colours[kind], kind, True)
            for row in own
            if row["block"].startswith(f"{first}.") and (kind := branch_kind(row["block"]))
        ]
        ends = []
        for kind, colour in colours.items():
            high = [row["high"] for row in own if branch_kind(row["block"]) == kind]
            ends.append(Series(kind, tuple(enumerate(high)), colour, kind, True))
        charts += [
            Chart(f"{model}: branches of {first}", "frequency, as a share of the highest", tuple(curves)),
            Chart(f"{model}: branches, the highest frequency", "block", tuple(ends), marked=whole_places(ends)),
        ]
    return tuple(charts), tuple(LegendEntry(kind, colour, True) for kind, colour in colours.items())


def branch_kind(path: str) -> str:
    return path.partition(".mixer.")[2].removesuffix(".output").replace(".", " ").replace("_", " ")


def spectrum_sheet(rows: list[dict], most: int = 12) -> Sheet:
    """Spectra of blocks, each after its branches, spread over the depth, on one scale of colours."""
    blocks = [
        list(found) for _, found in groupby(rows, lambda row: (row["model"], row["block"].partition(".mixer.")[0]))
    ]
    chosen = list(chain(*blocks[:: max(1, -(-len(rows) // most))]))
    lows, highs = zip(*((row["spectrum"].min(), row["spectrum"].max()) for row in chosen), strict=True)
    panels = [
        Panel(
            spectrum_tile(row["spectrum"], min(lows), max(highs)),
            row["block"].partition(".mixer.")[0],
            (branch_kind(row["block"]) or "block", f"{row['model']}, {row['grid']}"),
        )
        for row in chosen
    ]
    return Sheet(
        panels,
        heading="Spectra of the maps",
        subheading="log amplitude of every frequency; the lowest is in the middle",
        footnote="one scale for all",
    )


def spectrum_tile(values: NDArray[np.float32], low: float, high: float) -> Image.Image:
    shares = (values - low) / max(high - low, 1e-9)
    return Image.fromarray(colourise(shares)).resize((SPECTRUM_SIDE, SPECTRUM_SIDE), Image.Resampling.NEAREST)


INVESTIGATION = Fourier()
