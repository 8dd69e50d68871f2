"""How alike the rows of attention are: those of different queries, and those of different heads.

Where all queries look at the same keys, one query would do: this is what PartialFormer's single query for the
background rests on (dissertation, Fig. 5.2b). Where all heads look alike, one head would do; its head mixing is there
to make them differ, so it is shown before and after.

Queries are compared with those that have the same keys: in windows (EMSNet's local attention), within each window.

Shapes: B images, h heads, Q queries, K keys; H' W' windows.
"""

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.attention import record_attention
from vitreous.attribution.method import find_trunk
from vitreous.errors import InputError
from vitreous.investigations.base import Inquiry, Investigated, Investigation, coloured, rows_or_reasons
from vitreous.layers.pooled import WINDOW_SIDE, cell_count
from vitreous.layers.tap import record, tap_names
from vitreous.reports.chart import Chart, Series
from vitreous.reports.investigation import Findings

HEADED = ("attention.map", "attention.channel_attention", "attention.unmixed", "attention.mixed",
           "attention.mix_attn", "attention.fusion_attn", "global_attention.map")  # fmt: skip
UNMIXED = ".unmixed"  # scores, before the softmax
LINES = {  # layers of different kinds have curves of their own
    **{end: end for end in ("unmixed", "mixed", "mix_attn", "fusion_attn")},
    "local_attention.map": "local",
    "global_attention.map": "global",
}
IN_WINDOWS = "local_attention.map"


def between_queries(attention: Tensor) -> Tensor:
    """Mean cosine similarity of two different rows of (B, h, Q, K) or (B, h, H', W', Q, K): (B,). Of equal rows one."""
    return _between(attention).flatten(1).nanmean(1)


def between_heads(attention: Tensor) -> Tensor:
    """The same of the whole attention of two different heads: (B,)."""
    return _between(attention.flatten(2))


def _between(rows: Tensor) -> Tensor:
    """Over all pairs of rows that are not zero, by the length of the sum of all directions; NaN without a pair."""
    directions = F.normalize(rows.double(), dim=-1)
    lengths = directions.square().sum(-1)  # 1, or 0 of rows that do not exist
    count = lengths.round().sum(-1)
    alike = directions.sum(-2).square().sum(-1) - lengths.sum(-1)
    return torch.where(count < 2, torch.nan, alike / (count * (count - 1))).float()


@torch.no_grad()
def attention_rows(model: nn.Module, images: Tensor) -> dict[str, Tensor]:
    """Of all layers that have heads, by tap or by the path of the layer: (B, h, Q, K), or (B, h, H', W', Q, K)."""
    trunk: Any = find_trunk(model)
    if trunk is None:
        with record_attention(model) as seen:
            model(images)
        whole = {path: weights for path, weights in seen.items() if len(weights) == len(images)}
        if not whole:
            raise InputError(f"{type(model).__name__} has no attention over whole images that can be recorded")
        return whole
    names = [name for name in tap_names(trunk) if name.endswith(HEADED) and "readout" not in name]
    if not names:
        raise InputError(f"{type(trunk).__name__} has no attention with heads")
    in_windows = {name: name.removesuffix("map") + "output" for name in names if name.endswith(IN_WINDOWS)}
    with record(trunk, *names, *in_windows.values()) as taps:
        model(images)
    rows = {name: as_query_rows(name, taps[name]) for name in names}
    for name, output in in_windows.items():
        period = trunk.get_submodule(name.rpartition(".")[0]).period
        rows[name] = rows[name] * real_queries(taps[output].shape[-2:], period).to(rows[name])
    return rows


def real_queries(size: Sequence[int], period: int) -> Tensor:
    """Of windows of 3x3 cells, (H', W', 9, 1): 1 for queries in the map, 0 for those beyond its border."""
    height, width = (cell_count(side, period) for side in size)
    windows = dict(kernel_size=WINDOW_SIDE, padding=WINDOW_SIDE // 2, stride=2)
    real = F.unfold(torch.ones(1, 1, height, width), **windows)[0]  # (9, H' W')
    return real.T.unflatten(0, (cell_count(height, 2), -1))[..., None]


def as_query_rows(name: str, attention: Tensor) -> Tensor:
    """Keys last: maps (B, h, K, H, W) have their queries last, the class token's (B, h, H, W) is a single one."""
    if name.endswith(IN_WINDOWS):
        return attention.permute(0, 1, 4, 5, 2, 3)  # (B, h, H', W', Q, K)
    if attention.ndim == 5:
        return attention.flatten(3).transpose(2, 3)
    if name.startswith("class_blocks"):
        return attention.flatten(2)[:, :, None]
    return attention.softmax(-1) if name.endswith(UNMIXED) else attention


class Similarity(Investigation):
    name = "similarity"
    order = 30
    any_task, answers = True, False
    asks = "how alike the attention of different queries and of different heads is"
    reading = (
        "1 between queries: all positions read the same, and a single query would do as well; low: every position "
        "looks elsewhere. 1 between heads: all heads do the same. Queries are positions; with channel attention (XCiT) "
        "they are channels, in EMSNet's windows those of the same window, and of PartialFormer they are the foreground "
        "and the abstract token, before the heads are mixed (unmixed) and after (mixed). Layers with a single query or "
        "head have no value."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        rows, undefined = rows_or_reasons(inquiry, alike_rows)
        lines = list(dict.fromkeys((row["model"], row["line"]) for row in rows))
        named = {line: " ".join(filter(None, line)) for line in lines}
        colours, legend = coloured(list(named.values()))
        charts = tuple(
            Chart(title, "layer", tuple(
                Series(name, points(rows, line, key), colours[name], name) for line, name in named.items()
            ))
            for title, key in (("between queries", "queries"), ("between heads", "heads"))
        )  # fmt: skip
        return Findings(
            tuple(rows), charts, legend, undefined=undefined, columns=("model", "layer", "queries", "heads")
        )


def points(rows: list[dict], line: tuple[str, str], key: str) -> tuple[tuple[float, float], ...]:
    own = [row for row in rows if (row["model"], row["line"]) == line]
    return tuple((place, torch.nan if row[key] is None else row[key]) for place, row in enumerate(own))


def alike_rows(subject: Investigated, inquiry: Inquiry) -> list[dict]:
    sums: dict[str, Tensor] = {}
    count = 0
    for batch in inquiry.batches(subject.trained, f"attention of {subject.label}"):
        for name, weights in attention_rows(subject.trained.model, batch.inputs).items():
            here = torch.stack([between_queries(weights).sum(), between_heads(weights).sum()]).cpu()
            sums[name] = sums[name] + here if name in sums else here
        count += len(batch.inputs)
    return [
        {
            "model": subject.label,
            "layer": name,
            "line": next((line for end, line in LINES.items() if name.endswith(end)), ""),
            "queries": _rounded(total[0] / count),
            "heads": _rounded(total[1] / count),
        }
        for name, total in sums.items()
    ]


def _rounded(value: Tensor) -> float | None:
    return None if value.isnan() else round(value.item(), 4)


INVESTIGATION = Similarity()
