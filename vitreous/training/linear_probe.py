"""A linear classifier on features that stay as they are: how much of a class can be read off them.

Several learning rates are tried at once, each with a classifier of its own that sees the same batches. The one that is
best on a tenth of the training pictures, which it did not learn from, is trained again on all of them. Pictures that
are measured in the end decide nothing. Gradients of a linear layer are written out: a step is two products.

Shapes: N pictures, B batch, C features, K classes, R learning rates.
"""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import InputError
from vitreous.runtime.console import track

LEARNING_RATES = (1e-3, 3e-3, 1e-2, 3e-2, 0.1, 0.3, 1.0)  # for batches of 256; they scale with the batch
MOMENTUM, EPOCHS, BATCH = 0.9, 100, 256
HELD_OUT_SHARE, MOST_CHECKED = 0.1, 5
INITIAL_DEVIATION = 0.01


class LinearScores(NamedTuple):
    values: dict[str, float]
    learning_rate: float


class Standardised(NamedTuple):
    """Features with mean 0 and deviation 1: a linear change, so that one range of learning rates fits all models."""

    mean: Tensor
    deviation: Tensor

    @classmethod
    def of(cls, rows: Tensor) -> "Standardised":
        deviation, mean = torch.std_mean(rows, 0, correction=0)
        return cls(mean, deviation.clamp_min(1e-6))

    def __call__(self, rows: Tensor) -> Tensor:
        return (rows - self.mean) / self.deviation


class LinearProbe:
    """R classifiers side by side; weights (R, C, K), biases (R, 1, K)."""

    def __init__(self, width: int, classes: int, rates: tuple[float, ...], device: torch.device) -> None:
        first = INITIAL_DEVIATION * torch.randn(1, width, classes, generator=torch.Generator().manual_seed(0))
        self.weight = first.to(device).repeat(len(rates), 1, 1)
        self.bias = torch.zeros(len(rates), 1, classes, device=device)
        self.rates = torch.tensor(rates, device=device).view(-1, 1, 1)
        self.speed = torch.zeros_like(self.weight), torch.zeros_like(self.bias)

    def logits(self, rows: Tensor) -> Tensor:
        return rows @ self.weight + self.bias  # (R, B, K)

    def step(self, rows: Tensor, labels: Tensor, factor: float) -> None:
        """SGD with momentum on the cross-entropy of a batch; `factor` is the schedule's."""
        errors = self.logits(rows).softmax(-1) - F.one_hot(labels, self.bias.shape[-1])  # (R, B, K)
        slopes = rows.T @ errors / len(rows), errors.mean(1, keepdim=True)
        for value, speed, slope in zip((self.weight, self.bias), self.speed, slopes, strict=True):
            speed.mul_(MOMENTUM).add_(slope)
            value.sub_(self.rates * factor * speed)

    def fit(self, rows: Tensor, labels: Tensor, see: Standardised, *, epochs: int, batch: int, label: str) -> None:
        """The learning rate falls to 0 along half a cosine; every epoch has an order of its own."""
        batch = min(batch, len(rows))
        steps, taken = epochs * (len(rows) // batch), 0
        cosine = torch.cos(torch.linspace(0, torch.pi, steps + 1)).add(1).div(2).tolist()
        for epoch in track(range(epochs), total=epochs, label=label, unit="epochs"):
            order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(epoch))
            for places in order[: len(rows) // batch * batch].split(batch):
                device = self.bias.device
                self.step(see(rows[places]).to(device), labels[places].to(device), cosine[taken] * batch / BATCH)
                taken += 1

    def accuracy(self, rows: Tensor, labels: Tensor, see: Standardised) -> Tensor:
        """(R, 2): top-1 and top-5."""
        right = torch.zeros(len(self.rates), 2)
        for start in range(0, len(rows), BATCH):
            logits = self.logits(see(rows[start : start + BATCH]).to(self.bias.device)).cpu()
            best = logits.topk(min(MOST_CHECKED, logits.shape[-1]), dim=-1).indices
            hits = best == labels[start : start + BATCH, None]
            right += torch.stack([hits[..., 0].sum(1), hits.any(-1).sum(1)], 1)
        return right / len(rows)


@torch.no_grad()
def linear_scores(
    train: tuple[Tensor, Tensor],
    val: tuple[Tensor, Tensor],
    classes: int,
    *,
    device: torch.device,
    epochs: int = EPOCHS,
    batch: int = BATCH,
    rates: tuple[float, ...] = LEARNING_RATES,
) -> LinearScores:
    """Features and labels to learn from, and those to measure on."""
    rows, labels = train
    if len(rows) < 2 or not len(val[0]):
        raise InputError(f"{len(rows)} pictures to learn from and {len(val[0])} to measure; a classifier needs more")
    see = Standardised.of(rows)
    if len(rates) > 1:
        order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(0))
        held = max(1, round(HELD_OUT_SHARE * len(rows)))
        tried = LinearProbe(rows.shape[1], classes, rates, device)
        learnt, checked = order[held:], order[:held]
        tried.fit(rows[learnt], labels[learnt], see, epochs=epochs, batch=batch, label="learning rates")
        best = int(tried.accuracy(rows[checked], labels[checked], see)[:, 0].argmax())
        rates = rates[best : best + 1]
    probe = LinearProbe(rows.shape[1], classes, rates, device)
    probe.fit(rows, labels, see, epochs=epochs, batch=batch, label="linear classifier")
    top1, top5 = probe.accuracy(*val, see)[0].tolist()
    return LinearScores({"linear": top1} | ({"linear_top5": top5} if classes > MOST_CHECKED else {}), rates[0])
