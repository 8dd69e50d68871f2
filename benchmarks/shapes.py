"""Speed of drawing the embedded data set on one core, and accuracy of a linear classifier on its pixels.

python benchmarks/shapes.py
"""

import time
from typing import get_args

import torch
import tyro

from vitreous.data.shapes.samples import Difficulty, Shapes


def rate(difficulty: Difficulty, size: int, count: int) -> float:
    scenes = Shapes("train", count=count, size=size, difficulty=difficulty)
    start = time.process_time()
    for i in range(count):
        scenes[i]
    return count / (time.process_time() - start)


def pixels(split: str, count: int, difficulty: Difficulty) -> tuple[torch.Tensor, torch.Tensor]:
    scenes = [Shapes(split, count=count, difficulty=difficulty)[i] for i in range(count)]
    images = torch.stack([torch.from_numpy(scene.image) for scene in scenes]).flatten(1).float() / 255 - 0.3
    return images, torch.tensor([scene.label for scene in scenes])


def linear_accuracy(difficulty: Difficulty, count: int, epochs: int = 30) -> float:
    """Softmax regression by AdamW on raw pixels, tested on held-out images."""
    torch.manual_seed(0)
    images, labels = pixels("train", count, difficulty)
    model = torch.nn.Linear(images.shape[1], 10)
    optimizer = torch.optim.AdamW(model.parameters(), 1e-3, weight_decay=0.1)
    for _ in range(epochs):
        for batch in torch.randperm(count).split(128):
            optimizer.zero_grad()
            torch.nn.functional.cross_entropy(model(images[batch]), labels[batch]).backward()
            optimizer.step()
    images, labels = pixels("test", 2000, difficulty)
    return (model(images).argmax(1) == labels).float().mean().item()


def main(count: int = 1000, size: int = 64, linear: int = 10_000) -> None:
    for difficulty in get_args(Difficulty):
        print(f"{difficulty:7} {rate(difficulty, size, count):6.0f} images/s at {size}x{size}", flush=True)
    print(f"linear classifier on {linear} easy images: {linear_accuracy('easy', linear):.1%}")


if __name__ == "__main__":
    tyro.cli(main)
