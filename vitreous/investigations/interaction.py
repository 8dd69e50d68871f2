"""How much pairs of patches matter together, by how much else of the picture is seen: multi-order interaction.

Of two patches i, j and a set S of m others, the interaction is v(S, i, j) - v(S, i) - v(S, j) + v(S), where v is the
log-odds of the class that the model answers and everything outside is hidden; its mean over sets S is I(m), and J(m)
is the mean size |I(m)| over pairs and pictures, relative to the mean over all orders (Deng et al., arXiv 2111.06236).
Networks that decide by details need little around a pair: J is high at low orders; those that need the whole at high
orders.

Shapes: B images, P patches of a picture, K coalitions.
"""

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.investigations.base import Inquiry, Investigated, Investigation, coloured, rows_or_reasons
from vitreous.reports.chart import Chart, Series
from vitreous.reports.investigation import Findings

ORDERS = (0.0, 0.05, 0.1, 0.25, 0.5, 0.75, 0.9, 0.95, 1.0)  # shares of the patches beside the pair
MOST_CELLS = 16  # patches along a side
SMALLEST_PATCH = 4  # pixels
PAIRS, CONTEXTS = 6, 4  # of a picture, and of a pair at each order
DRAWS = 1000  # of the bootstrap over pictures


def patch_grid(size: tuple[int, int]) -> tuple[int, int]:
    """Rows and columns of patches: at most 16, of four pixels or more."""
    rows, columns = (max(2, min(MOST_CELLS, side // SMALLEST_PATCH)) for side in size)
    return rows, columns


def log_odds(logits: Tensor, labels: Tensor) -> Tensor:
    """log p / (1 - p) of each image's class, (B,)."""
    chosen = logits.gather(1, labels[:, None])[:, 0]
    others = logits.scatter(1, labels[:, None], -torch.inf)
    return chosen - others.logsumexp(1)


def coalitions(patches: int, orders: tuple[float, ...], generator: torch.Generator) -> Tensor:
    """Of one random pair at every order and context: with both, with each alone, with neither; (O, X, 4, P)."""
    i, j = torch.randperm(patches, generator=generator)[:2].tolist()
    others = torch.tensor([number for number in range(patches) if number not in (i, j)])
    seen = torch.zeros(len(orders), CONTEXTS, 4, patches, dtype=torch.bool)
    for o, order in enumerate(orders):
        for x in range(CONTEXTS):
            mixed = others[torch.randperm(len(others), generator=generator)]
            seen[o, x, :, mixed[: round(order * len(others))]] = True
    seen[:, :, (0, 1), i] = True
    seen[:, :, (0, 2), j] = True
    return seen


def hidden(image: Tensor, seen: Tensor, grid: tuple[int, int]) -> Tensor:
    """The image (3, H, W) with all but the seen patches (K, P) at the mean colour: (K, 3, H, W)."""
    shown = F.interpolate(seen.float().unflatten(1, grid)[:, None], image.shape[1:], mode="nearest")
    return image * shown.to(image)


@torch.no_grad()
def strengths(
    model: nn.Module, image: Tensor, label: int, orders: tuple[float, ...], generator: torch.Generator, batch: int
) -> Tensor:
    """The mean size of the interaction at each order over random pairs of one picture: (O,)."""
    grid, found = patch_grid((image.shape[1], image.shape[2])), []
    for _ in range(PAIRS):
        seen = coalitions(grid[0] * grid[1], orders, generator)
        rows = seen.flatten(0, 2)
        values = torch.cat(
            [log_odds(model(part := hidden(image, some, grid)).float(), torch.full((len(part),), label).to(part.device))
             for some in rows.split(batch)]
        ).cpu()  # fmt: skip
        both, first, second, neither = values.view(*seen.shape[:3]).unbind(2)  # (O, X)
        found.append((both - first - second + neither).mean(1).abs())
    return torch.stack(found).mean(0)


def relative(sizes: Tensor) -> Tensor:
    """Sizes (N, O) of N pictures -> J (O,), whose mean over orders is one; all zero if nothing interacts."""
    mean = sizes.mean(0)
    return mean / mean.mean().clamp_min(1e-12) if mean.any() else mean


class Interaction(Investigation):
    name = "interaction"
    order = 20
    asks = "how much of a picture has to be seen before two patches matter together"
    reading = (
        "The order is the share of the other patches that are seen beside a pair; the strength is how much the two "
        "together change the log-odds of the answer beyond what each adds alone, relative to the mean over all orders. "
        "Weight at the left: the model decides by small details by themselves; at the right: only in front of nearly "
        "the whole picture. A model whose parts simply add up has no interactions at all. Dashed lines: 95 % interval "
        "over pictures; with few sets for each pair, sizes are too large alike at all orders, so compare shapes."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        rows, undefined = rows_or_reasons(inquiry, lambda subject, inquiry: [interaction_row(subject, inquiry)])
        colours, legend = coloured([row["model"] for row in rows])
        series = [
            Series(row["model"], tuple(zip(row["order"], row[key], strict=True)), colours[row["model"]], dashed=dashed)
            for row in rows
            for key, dashed in (("strength", False), ("low", True), ("high", True))
        ]
        chart = Chart(
            "interaction strength J, relative to its mean", "order: share of the other patches", tuple(series)
        )
        columns = ("model", "pictures", "strength")
        return Findings(tuple(rows), (chart,), legend, undefined=undefined, columns=columns)


def interaction_row(subject: Investigated, inquiry: Inquiry) -> dict:
    generator, found = torch.Generator().manual_seed(inquiry.seed), []
    for batch in inquiry.batches(subject.trained, f"interactions of {subject.label}"):
        with torch.no_grad():
            answers = subject.trained.model(batch.inputs).argmax(1).tolist()
        for image, label in zip(batch.inputs, answers, strict=True):
            found.append(strengths(subject.trained.model, image, label, ORDERS, generator, 4 * inquiry.batch_size))
    sizes = torch.stack(found)
    drawn = torch.randint(len(sizes), (DRAWS, len(sizes)), generator=generator)
    spread = torch.stack([relative(sizes[rows]) for rows in drawn]).quantile(torch.tensor([0.025, 0.975]), 0)
    told = {"strength": relative(sizes), "low": spread[0], "high": spread[1]}
    return {
        "model": subject.label,
        "pictures": len(sizes),
        "order": list(ORDERS),
        **{key: [round(value, 4) for value in values.tolist()] for key, values in told.items()},
    }


INVESTIGATION = Interaction()
