"""Samples that show whether random numbers depend on anything but the seed."""

import random

import numpy as np
import torch

from vitreous.data.loader import BatchSampler, Loader, stack


class Noise:
    """Samples drawn from all three global generators: they differ unless the seeds agree."""

    def __len__(self) -> int:
        return 23

    def __getitem__(self, index: int):
        noise = torch.tensor([random.random(), np.random.rand(), torch.rand(()).item(), float(index)])
        return noise.view(1, 2, 2), {"labels": index}


def batches(*, workers: int = 0, epoch: int = 3, start: int = 0, samples=None, **options):
    sampler = BatchSampler(23, 4, seed=1, shuffle=True, **options)
    loader = Loader(samples or Noise(), sampler, stack, workers=workers)
    loader.set_position(epoch, start)
    found = list(loader)
    loader.close()
    return found


def flat(found) -> torch.Tensor:
    return torch.cat([batch.images.flatten(1) for batch in found])
