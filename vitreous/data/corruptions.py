"""Pictures made worse in known ways: noise, blur, weather of the lens, and what cameras and files do.

After Hendrycks and Dietterich, "Benchmarking Neural Network Robustness to Common Corruptions and Perturbations", arXiv
1903.12261 (ImageNet-C): kinds that need no pictures of their own, with their five severities on pictures scaled to
224 pixels; lengths grow with the picture. The pixels are not theirs bit by bit; box blur stands for their defocus.
"""

import io
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter

Pixels = NDArray[np.float64]  # (H, W, 3), from 0 to 1
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
        motion_blur,
        zoom_blur,
        brighter,
        contrast,
        fog,
        pixelate,
        jpeg,
    )
}
