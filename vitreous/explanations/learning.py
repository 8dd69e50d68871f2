"""Teaching an explainer for a frozen model, from pictures without labels.

At every step the explainer marks areas of some pictures for a class: the answer of the model, or now and then another
of its likeliest, so that it also explains what the model did not choose. What it marks is to keep the class when it
alone is shown, and to lose it when it alone is hidden (`attribution.marking`). Nothing of the model changes.

The loop is here and not in `training`, which trains models from data by recipes and stands above `runs`: explanations
may not import it, and it shares nothing but the word.

Shapes: B images, N pictures, A likeliest classes, H W grid of the explainer.
"""

import math
import zlib
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.attribution.explainer import LearnedExplainer, new_explainer, unreadable
from vitreous.attribution.explainer_folder import save_explainer
from vitreous.attribution.learned import carry_explainer
from vitreous.attribution.marking import marking_loss
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError
from vitreous.explanations.dataset import MOST_PIXELS_WITH_GRADIENTS, selection
from vitreous.runs.trained_model import TrainedModel
from vitreous.runtime.console import track

FEWEST_PICTURES = 64
MOST_BYTES = 300_000_000  # of pictures that are kept in memory
MEASURED_PICTURES = 64  # from which the scale of features is taken
OTHER_CLASSES, AMONG = 0.25, 5  # how often another class is explained, and among how many of the likeliest
WARM_UP = 0.1  # share of the steps in which the learning rate rises
FEWEST_STEPS, MOST_STEPS = 1000, 3000


@dataclass(frozen=True)
class Lessons:
    """How long, and with what, an explainer is taught."""

    steps: int | None = None  # as many as `usual_steps` says
    limit: int = 3000  # most pictures to learn from
    seed: int = 0
    batch_size: int = 8
    rate: float = 1e-3


def learn_explainer(
    trained: TrainedModel, images: ImageSet, place: Path, *, data: str, scored: Collection[int], lessons: Lessons
) -> None:
    """Teach an explainer on pictures that are not scored, store it at `place` and let the model carry what is there.

    `scored`: checksums of the pictures on which it will be judged (`picture_checksum`).
    """
    require_explainable(trained)
    pixels = pictures_to_learn_from(trained, images, scored, lessons.limit, data)
    explainer, losses = teach(trained.model, pixels, lessons, prepare=trained.preprocess.normalise_bytes)
    about = {
        "data": Path(data).name,
        "pictures": len(pixels),
        **asdict(lessons),
        "steps": len(losses),
        "last_loss": losses[-1],
    }
    save_explainer(place, explainer, trained.model, about)
    carry_explainer(trained.model, place)  # as a later command reads it; maps of the one in memory differ in last bits


def require_explainable(trained: TrainedModel) -> None:
    """What cannot be explained shows here, before the work."""
    if trained.build_task().has_findings:
        raise InputError(
            f"--learn given, but model '{trained.name}' is for the task '{trained.task}'; so far only explainers of "
            "classifiers can be learned: leave --learn out"
        )
    reason = unreadable(trained.model)
    if reason is not None:
        raise InputError(f"--learn given, but {reason}; leave --learn out")


def picture_checksum(pixels: Tensor) -> int:
    """Of a picture (3, height, width) as the model sees it, in bytes."""
    return zlib.crc32(pixels.contiguous().numpy().tobytes())


def checksums(trained: TrainedModel, images: ImageSet, limit: int) -> set[int]:
    """Of the pictures that would be scored."""
    return {picture_checksum(pixels) for pixels in readable_pictures(trained, images, limit, label="look")}


def readable_pictures(trained: TrainedModel, images: ImageSet, limit: int, *, label: str) -> Iterator[Tensor]:
    """As the model sees them, (3, height, width) bytes, spread evenly over the data."""
    numbers = selection(len(images), limit)
    for number in track(numbers, total=len(numbers), label=label):
        try:
            pixels = trained.preprocess.pixels(images.picture(number))
        except ImageError:  # scoring names those it meets, and of the others one more or less is nothing
            continue
        yield pixels


def pictures_to_learn_from(
    trained: TrainedModel, images: ImageSet, scored: Collection[int], limit: int, data: str
) -> Tensor:
    """(N, 3, height, width) bytes; never one that is scored, whatever split it lies in."""
    height, width = trained.preprocess.size
    most = max(FEWEST_PICTURES, min(limit, MOST_BYTES // (3 * height * width)))
    found = list(readable_pictures(trained, images, most, label="read"))
    fresh = [pixels for pixels in found if picture_checksum(pixels) not in scored]
    if len(fresh) < FEWEST_PICTURES:
        same = f" ({len(found) - len(fresh)} more are among the scored ones)" if len(fresh) < len(found) else ""
        raise InputError(
            f"--learn given, but there are {len(fresh)} pictures to learn from in '{data}'{same}; at least "
            f"{FEWEST_PICTURES} are needed: add pictures, labels do not matter, or leave --learn out"
        )
    return torch.stack(fresh)


def teach(
    model: nn.Module, pixels: Tensor, lessons: Lessons, *, prepare: Callable[[Tensor], Tensor] = lambda images: images
) -> tuple[LearnedExplainer, list[float]]:
    """A new explainer of the model in eval mode, and the loss of every step.

    `pixels` are pictures (N, 3, height, width); `prepare` makes inputs of some of them. The same pictures and the same
    seed give the same explainer.
    """
    random, device = torch.Generator().manual_seed(lessons.seed), next(model.parameters()).device
    twice = 2 * pixels.shape[2] * pixels.shape[3]  # pixels of a picture, shown and hidden
    at_once = max(1, min(lessons.batch_size, MOST_PIXELS_WITH_GRADIENTS // twice))

    def inputs(rows: Tensor) -> Tensor:
        return prepare(pixels[rows].to(device)).contiguous(memory_format=torch.channels_last)  # convolutions like it

    losses, steps = [], lessons.steps or usual_steps(pixels.shape[2] * pixels.shape[3])
    with unchanged(model), torch.random.fork_rng(), torch.enable_grad():
        torch.manual_seed(lessons.seed)
        explainer = new_explainer(model, inputs(torch.randint(len(pixels), (MEASURED_PICTURES,), generator=random)))
        likeliest = likeliest_classes(model, inputs, len(pixels), at_once)
        optimiser = torch.optim.AdamW(explainer.parameters(), lr=lessons.rate, weight_decay=1e-4)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimiser, lambda step: share_of_rate(step / steps))
        for _ in track(range(steps), total=steps, label="learn", unit="steps"):
            rows = torch.randint(len(pixels), (at_once,), generator=random)
            labels = labels_to_explain(likeliest[rows], random).to(device)
            loss = lesson(explainer, model, mirrored_at_random(inputs(rows), random), labels, random)
            if not loss.isfinite():
                raise InputError("learning failed: the loss is no number; weights or pictures hold NaN or huge values")
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            schedule.step()
            losses.append(loss.item())
    return explainer.requires_grad_(False).eval(), losses


def usual_steps(pixels: int) -> int:
    """For pictures of so many pixels: minutes of one core. Of 64 x 64, 1,000 steps are too few, and 3,000 cheap."""
    return round(min(MOST_STEPS, max(FEWEST_STEPS, FEWEST_STEPS * 128 * 128 / pixels)))


def mirrored_at_random(images: Tensor, random: torch.Generator) -> Tensor:
    """Every other image (B, C, H, W), left and right exchanged: twice the pictures for nothing."""
    mirrored = torch.rand(len(images), generator=random).view(-1, 1, 1, 1) < 0.5
    return torch.where(mirrored.to(images.device), images.flip(3), images)


def share_of_rate(done: float) -> float:
    """Of the learning rate, after this share of the steps: it rises, and falls as a cosine to nothing."""
    return min(1.0, (done + 0.01) / WARM_UP) * 0.5 * (1 + math.cos(math.pi * done))


def lesson(
    explainer: LearnedExplainer, model: nn.Module, images: Tensor, labels: Tensor, random: torch.Generator
) -> Tensor:
    """The loss of one step: the class is to be found where only the marked area shows, and nowhere else."""
    return marking_loss(model, images, explainer.explain(model, images, labels), labels, random)


def likeliest_classes(model: nn.Module, inputs: Callable[[Tensor], Tensor], count: int, at_once: int) -> Tensor:
    """The model's first answers about every picture (N, A), asked once: pictures come again and again."""
    parts = track(torch.arange(count).split(at_once), total=-(-count // at_once), label="ask", unit="batches")
    with torch.no_grad():
        return torch.cat([model(inputs(rows)).argsort(1, descending=True)[:, :AMONG].cpu() for rows in parts])


def labels_to_explain(likeliest: Tensor, random: torch.Generator) -> Tensor:
    """Of each image (B,) the model's answer, or sometimes another of its likeliest classes (B, A)."""
    other = torch.rand(len(likeliest), generator=random) < OTHER_CLASSES
    place = torch.randint(1, likeliest.shape[1], (len(likeliest),), generator=random) * other
    return likeliest.gather(1, place[:, None])[:, 0]


@contextmanager
def unchanged(model: nn.Module) -> Iterator[None]:
    """No gradient reaches the weights, and nothing that a pass in training mode would change does."""
    if model.training:
        raise InputError("the model is in training mode; call model.eval() first")
    before = {name: parameter.requires_grad for name, parameter in model.named_parameters()}
    model.requires_grad_(False)
    try:
        yield
    finally:
        for name, parameter in model.named_parameters():
            parameter.requires_grad_(before[name])
