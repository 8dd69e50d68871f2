"""Pictures made worse in known ways: noise, blur, weather of the lens, warping, and what cameras and files do.

After Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", arXiv
1903.12261 (ImageNet-C): kinds that need no pictures of their own, with their five severities on pictures scaled to
224 pixels; lengths grow with the picture. The pixels are not theirs bit by bit; box blur stands for their defocus.

Shapes: H W the sides of a picture, i j a pixel's row and column.
"""

import io
import math
from collections.abc import Callable

import numpy as np
import torch
import torch.nn.functional as F
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Pixels = NDArray[np.float64]  # (H, W, 3), from 0 to 1
Field = NDArray[np.float64]  # (H, W), a length for each pixel
SEVERITIES = (1, 2, 3, 4, 5)
USUAL_SIDE = 224


def corrupted(picture: Image.Image, kind: str, severity: int, seed: int = 0) -> Image.Image:
    """The picture at a severity from 1 to 5; the same seed gives the same pixels."""
    found = CORRUPTIONS[kind](picture.convert("RGB"), severity - 1, np.random.default_rng(seed))
    if isinstance(found, Image.Image):
        return found
    return Image.fromarray((found.clip(0, 1) * 255).round().astype(np.uint8))


def pixels_of(picture: Image.Image) -> Pixels:
    return np.asarray(picture, np.float64) / 255


def lengths(picture: Image.Image, pixels: float) -> float:
    """A length given for pictures of the usual side."""
    return pixels * min(picture.size) / USUAL_SIDE


def gaussian_noise(picture: Image.Image, level: int, random: np.random.Generator) -> Pixels:
    pixels = pixels_of(picture)
    return pixels + random.normal(size=pixels.shape, scale=(0.08, 0.12, 0.18, 0.26, 0.38)[level])


def shot_noise(picture: Image.Image, level: int, random: np.random.Generator) -> Pixels:
    photons = (60, 25, 12, 5, 3)[level]
    return random.poisson(pixels_of(picture) * photons) / photons


def impulse_noise(picture: Image.Image, level: int, random: np.random.Generator) -> Pixels:
    pixels, amount = pixels_of(picture), (0.03, 0.06, 0.09, 0.17, 0.27)[level]
    hit = random.random(pixels.shape) < amount
    return np.where(hit, random.random(pixels.shape) < 0.5, pixels)


def gaussian_blur(picture: Image.Image, level: int, _random: np.random.Generator) -> Image.Image:
    return picture.filter(ImageFilter.GaussianBlur(lengths(picture, (1, 2, 3, 4, 6)[level])))


def box_blur(picture: Image.Image, level: int, _random: np.random.Generator) -> Image.Image:
    """Out of focus: every point becomes a patch."""
    return picture.filter(ImageFilter.BoxBlur(lengths(picture, (2, 3, 4, 6, 8)[level])))


def glass_blur(picture: Image.Image, level: int, random: np.random.Generator) -> Image.Image:
    """Through rough glass: pixels change places with others nearby, between two blurs."""
    sigma, reach, rounds = ((0.7, 1, 2), (0.9, 2, 1), (1.0, 2, 3), (1.1, 3, 2), (1.5, 4, 2))[level]
    blur = ImageFilter.GaussianBlur(lengths(picture, sigma))
    places = exchanged_places(picture.height, picture.width, lengths(picture, reach), rounds, random)
    pixels = np.asarray(picture.filter(blur)).reshape(-1, 3)[places]  # (H, W, 3)
    return Image.fromarray(pixels).filter(blur)


def exchanged_places(
    height: int, width: int, reach: float, rounds: int, random: np.random.Generator
) -> NDArray[np.int64]:
    """(H, W): the pixel, counted row by row, that comes to each place when all change theirs with one within reach.

    Pixels whose surroundings do not overlap change at once.
    """
    places = np.arange(height * width).reshape(height, width)
    step = 2 * math.ceil(reach) + 1
    for start in range(rounds * step**2):
        i, j = np.arange(start // step % step, height, step)[:, None], np.arange(start % step, width, step)
        down, across = np.floor(random.uniform(-reach, reach + 1, (2, i.size, j.size))).astype(int)
        others = (i + down).clip(0, height - 1), (j + across).clip(0, width - 1)
        places[others], places[i, j] = places[i, j], places[others]
    return places


def motion_blur(picture: Image.Image, level: int, random: np.random.Generator) -> Pixels:
    """Mean over copies moved along a random direction."""
    length = lengths(picture, (10, 15, 20, 25, 30)[level])
    angle, steps = random.uniform(0, np.pi), max(2, round(length))
    moves = np.linspace(-length / 2, length / 2, steps)
    copies = [
        pixels_of(picture.transform(
            picture.size, Image.Transform.AFFINE, (1, 0, move * np.cos(angle), 0, 1, move * np.sin(angle)),
            Image.Resampling.BILINEAR, fillcolor=mean_colour(picture),
        ))
        for move in moves
    ]  # fmt: skip
    return np.mean(copies, 0)


def zoom_blur(picture: Image.Image, level: int, _random: np.random.Generator) -> Pixels:
    """Mean over copies that come nearer."""
    width, height = picture.size
    copies = []
    for factor in np.linspace(1, (1.11, 1.16, 1.21, 1.26, 1.31)[level], 8):
        x, y = width / 2 * (1 - 1 / factor), height / 2 * (1 - 1 / factor)
        copies.append(pixels_of(picture.resize(picture.size, Image.Resampling.BILINEAR, (x, y, width - x, height - y))))
    return np.mean(copies, 0)


def mean_colour(picture: Image.Image) -> tuple[int, ...]:
    return tuple(np.asarray(picture).mean((0, 1)).round().astype(int).tolist())


def brighter(picture: Image.Image, level: int, _random: np.random.Generator) -> Pixels:
    return pixels_of(picture) + (0.1, 0.2, 0.3, 0.4, 0.5)[level]


def contrast(picture: Image.Image, level: int, _random: np.random.Generator) -> Pixels:
    pixels = pixels_of(picture)
    mean = pixels.mean((0, 1))
    return (pixels - mean) * (0.4, 0.3, 0.2, 0.1, 0.05)[level] + mean


def fog(picture: Image.Image, level: int, random: np.random.Generator) -> Pixels:
    """White clouds of all sizes over the picture."""
    strength = (1.5, 2.0, 2.5, 2.5, 3.0)[level]
    width, height = picture.size
    clouds = np.zeros((height, width))
    for octave in range(1, 7):
        cells = Image.fromarray(random.random((2**octave, 2**octave)).astype(np.float32))
        clouds += np.asarray(cells.resize((width, height), Image.Resampling.BICUBIC)) / 1.75**octave
    pixels = pixels_of(picture)
    peak = pixels.max()
    return (pixels + strength * clouds[..., None]) * peak / (peak + strength)


def elastic_transform(picture: Image.Image, level: int, random: np.random.Generator) -> Pixels:
    """Drawn on rubber: the whole is pulled at three points, and parts move with their surroundings.

    As published, the strengths are of two kinds: the first two pull the whole, the other three ruffle the parts, so
    that pixels move furthest at the second.
    """
    most, sigma, pull = (
        (488, 171, 24.4),
        (488, 19.5, 48.8),
        (12.2, 2.44, 4.88),
        (17.1, 2.44, 4.88),
        (29.3, 2.44, 4.88),
    )[level]
    scale = lengths(picture, 1)
    size = picture.height, picture.width
    moves = []
    for _ in ("down", "across"):
        parts = (
            gaussian_smoothed(random.uniform(-1, 1, size), sigma * scale) * most * scale**2
        )  # finer noise averages out
        moves.append(pulled(*size, random.uniform(-pull, pull, 3) * scale) + parts)
    return moved(pixels_of(picture), *moves)


def pulled(height: int, width: int, lengths_moved: NDArray[np.float64]) -> Field:
    """How far each pixel moves where three points do by these lengths, and all others in proportion.

    The points are a third of the shorter side from the centre: lower right, upper right and upper left.
    """
    first, corner, last = lengths_moved
    third = min(height, width) / 3
    v, u = ((np.arange(side) - (side - 1) / 2) / third for side in (height, width))
    return corner + (first - corner) * (v[:, None] + 1) / 2 + (last - corner) * (1 - u) / 2


def gaussian_smoothed(field: Field, sigma: float) -> Field:
    """By a Gaussian; at the edges the field is mirrored. Computed as waves, since it may be wider than the picture."""
    for _ in ("rows", "columns"):
        side = field.shape[1]
        waves = np.fft.rfft(np.concatenate([field, field[:, ::-1]], 1))  # (H, W + 1)
        kept = np.exp(-2 * (np.pi * sigma * np.fft.rfftfreq(2 * side)) ** 2)
        field = np.fft.irfft(waves * kept, 2 * side)[:, :side].T
    return field


def moved(pixels: Pixels, down: Field, across: Field) -> Pixels:
    """Each pixel from these lengths further down and to the right; beyond the edges the picture is mirrored."""
    height, width = down.shape
    x = (2 * (np.arange(width) + across) + 1) / width - 1
    y = (2 * (np.arange(height)[:, None] + down) + 1) / height - 1
    grid, image = torch.from_numpy(np.stack([x, y], -1)), torch.from_numpy(pixels).permute(2, 0, 1)  # (3, H, W)
    found = F.grid_sample(image[None], grid[None], padding_mode="reflection", align_corners=False)
    return found[0].permute(1, 2, 0).numpy()  # (H, W, 3)


def pixelate(picture: Image.Image, level: int, _random: np.random.Generator) -> Image.Image:
    share = (0.6, 0.5, 0.4, 0.3, 0.25)[level]
    small = picture.resize((max(1, round(picture.width * share)), max(1, round(picture.height * share))))
    return small.resize(picture.size, Image.Resampling.NEAREST)


def jpeg(picture: Image.Image, level: int, _random: np.random.Generator) -> Image.Image:
    written = io.BytesIO()
    picture.save(written, "JPEG", quality=(25, 18, 15, 10, 7)[level])
    return Image.open(written).convert("RGB")


CORRUPTIONS: dict[str, Callable[[Image.Image, int, np.random.Generator], Pixels | Image.Image]] = {
    made.__name__: made
    for made in (
        gaussian_noise,
        shot_noise,
        impulse_noise,
        gaussian_blur,
        box_blur,
        glass_blur,
        motion_blur,
        zoom_blur,
        brighter,
        contrast,
        fog,
        elastic_transform,
        pixelate,
        jpeg,
    )
}
