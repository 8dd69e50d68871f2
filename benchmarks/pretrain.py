"""Knowledge of photographs for a model without weights: it learns to answer as an ImageNet classifier does.

    python benchmarks/pretrain.py paca_b0 pets --teacher tf_efficientnet_lite0.safetensors --out taught.safetensors
    vitreous train paca_b0 pets --recipe finetune --no-pretrained --weights taught.safetensors

Of every picture some crops are made, the teacher gives its 1000 logits for each once, and the pupil learns them, on
smaller copies and mirrored at random. Labels are never read. It is for measuring: what a model that learned from
nothing but a few thousand pictures says is hardly worth an explanation. Afterwards the classifier is a new one, so that
models with different classifiers start alike. `--start` goes on from a file that an earlier call wrote.

Shapes: N pictures, V crops of each, B batch.
"""

import math
import time
from pathlib import Path

import timm
import torch
import torch.nn.functional as F
import tyro
from safetensors.torch import save_file
from torch import Tensor, nn

from vitreous.data.source import open_data
from vitreous.data.transforms import Preprocess, to_bytes
from vitreous.models.weights import read_state
from vitreous.runtime.device import keep_freed_memory

ARCHITECTURE, TEACHER_VIEW = (
    "tf_efficientnet_lite0",
    Preprocess((224, 224), mean=(127 / 255,) * 3, std=(128 / 255,) * 3),
)
PUPIL_VIEW = Preprocess((224, 224))
TEMPERATURE, WEIGHT_DECAY, WARM_UP_STEPS = 2.0, 0.02, 200
SMALLEST_CROP, MOST_STRETCHED = 0.25, 4 / 3  # shares of the area, and the ratio of the sides


def main(
    model: str,
    data: str,
    /,
    teacher: Path,
    out: Path,
    start: Path | None = None,
    epochs: int = 50,
    crops: int = 10,
    seen: int = 96,
    size: int = 64,
    batch: int = 64,
    lr: float = 1e-3,
    threads: int = 1,
    seed: int = 0,
) -> None:
    torch.set_num_threads(threads)
    torch.manual_seed(seed)
    keep_freed_memory(torch.device("cpu"))
    images = open_data(data, "train", size=(2 * seen, 2 * seen))
    pictures = torch.stack([to_bytes(images.picture(i).resize((2 * seen, 2 * seen))) for i in range(len(images))])
    wise = timm.create_model(ARCHITECTURE).eval().to(memory_format=torch.channels_last)
    wise.load_state_dict(read_state(teacher))
    begun = time.perf_counter()
    views, logits = taught_views(wise, pictures, crops, seen)
    print(f"{crops} crops of {len(pictures)} pictures: {time.perf_counter() - begun:.0f} s", flush=True)
    pupil = timm.create_model(model, num_classes=logits.shape[2], drop_path_rate=0.0).train()
    if start:
        pupil.load_state_dict(read_state(start))
    steps = epochs * (len(pictures) // batch)
    optimiser = torch.optim.AdamW(pupil.parameters(), lr=lr, weight_decay=WEIGHT_DECAY)
    schedule = torch.optim.lr_scheduler.LambdaLR(
        optimiser, lambda step: min(1, (step + 1) / WARM_UP_STEPS) * 0.5 * (1 + math.cos(math.pi * step / steps))
    )
    for epoch in range(epochs):
        losses, same = [], []
        which = torch.randint(crops, (len(pictures),))
        for rows in torch.randperm(len(pictures))[: len(pictures) // batch * batch].split(batch):
            told = logits[which[rows], rows].float()  # (B, 1000)
            said = pupil(small_view(views[which[rows], rows], size))
            loss = divergence(said, told)
            optimiser.zero_grad()
            loss.backward()
            nn.utils.clip_grad_norm_(pupil.parameters(), 1.0)
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
            same.append((said.argmax(1) == told.argmax(1)).float().mean().item())
        mean = [sum(values) / len(values) for values in (losses, same)]
        print(
            f"epoch {epoch + 1}/{epochs}: loss {mean[0]:.2f}, same answer {mean[1]:.1%}, "
            f"{time.perf_counter() - begun:.0f} s",
            flush=True,
        )
        save_file(pupil.state_dict(), out)


@torch.no_grad()
def taught_views(wise: nn.Module, pictures: Tensor, crops: int, size: int) -> tuple[Tensor, Tensor]:
    """Random crops as bytes (V, N, 3, size, size), and what the teacher says about them (V, N, 1000)."""
    views = torch.empty(crops, len(pictures), 3, size, size, dtype=torch.uint8)
    logits = torch.empty(crops, len(pictures), 1000, dtype=torch.float16)
    for v in range(crops):
        for rows in torch.arange(len(pictures)).split(64):
            views[v, rows] = cropped(pictures[rows], size)
            inputs = TEACHER_VIEW.normalise_bytes(views[v, rows])
            logits[v, rows] = wise(inputs.contiguous(memory_format=torch.channels_last)).half()
    return views, logits


def cropped(pictures: Tensor, size: int) -> Tensor:
    """A random part of each picture (B, 3, height, width), scaled to a square."""
    B = len(pictures)
    area, stretch = torch.empty(B).uniform_(SMALLEST_CROP, 1), math.log(MOST_STRETCHED)
    ratio = torch.empty(B).uniform_(-stretch, stretch).exp()
    sides = torch.stack([(area * ratio).sqrt(), (area / ratio).sqrt()], 1).clamp_max(1)  # width, height
    theta = torch.cat([torch.diag_embed(sides), ((2 * torch.rand(B, 2) - 1) * (1 - sides))[..., None]], 2)  # (B, 2, 3)
    grid = F.affine_grid(theta, [B, 3, size, size], align_corners=False)
    found = F.grid_sample(pictures.float(), grid, mode="bilinear", padding_mode="reflection", align_corners=False)
    return found.round().clamp(0, 255).byte()


def small_view(views: Tensor, size: int) -> Tensor:
    """Inputs of the pupil: mirrored at random, scaled down."""
    mirrored = (torch.rand(len(views)) < 0.5).view(-1, 1, 1, 1)
    pixels = torch.where(mirrored, views.flip(3), views) / 255
    return PUPIL_VIEW.normalise(F.interpolate(pixels, (size, size), mode="bilinear", antialias=True))


def divergence(said: Tensor, told: Tensor) -> Tensor:
    """Hinton et al., arXiv 1503.02531: the square of the temperature keeps the size of the gradient."""
    logs = [(logits / TEMPERATURE).log_softmax(1) for logits in (said, told)]
    return F.kl_div(*logs, reduction="batchmean", log_target=True) * TEMPERATURE**2


if __name__ == "__main__":
    tyro.cli(main)
