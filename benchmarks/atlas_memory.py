"""Does the memory of `vitreous atlas` grow with the number of images?

    python benchmarks/atlas_memory.py
    python benchmarks/atlas_memory.py --images 5000 --clusters 49

Embedded shapes of 32 x 32 pixels stream through a PaCa with fresh weights; the resident memory is printed on the way,
and the number of bytes the atlas keeps. Stops early when the given processor time is used up.
"""

import pickle
import resource
import time
from pathlib import Path

import timm
import torch
import tyro

import vitreous  # noqa: F401  (registers the models)
from vitreous.clusters.atlas import Atlas, measure_clusters
from vitreous.clusters.gates import cluster_layer
from vitreous.data.layouts.shapes import ShapesImages
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.data.transforms import Preprocess
from vitreous.explanations.dataset import read_batches
from vitreous.runs.trained_model import TrainedModel


def resident() -> float:
    """Megabytes in use now, on Linux."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * resource.getpagesize() / 1e6


def main(images: int = 50_000, clusters: int = 100, size: int = 32, seconds: float = 300, every: int = 5000) -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    arguments = dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 2, 3, 4), stem_stride=2)
    network = timm.create_model("paca_tiny", num_classes=10, clusters=(6, 6, clusters, 0), **arguments).eval()
    trained = TrainedModel(network, "paca", "classify", tuple(CATEGORIES), Preprocess(size=(size, size)))
    data = ShapesImages("train", targets="labels", size=(size, size), count=images)
    layer, atlas, seen = cluster_layer(network), Atlas(clusters, len(CATEGORIES)), 0
    start, told = time.process_time(), 0
    print(f"torch {torch.__version__}, before: {resident():.0f} MB", flush=True)
    for batch in read_batches(trained, data, range(images), 64, label="atlas"):
        atlas.add(measure_clusters(network, batch.inputs, layer), batch.numbers, batch.labels, batch.objects)
        seen, used = seen + len(batch.numbers), time.process_time() - start
        if seen // every > told or seen == images or used > seconds:
            told = seen // every
            kept = len(pickle.dumps(atlas))
            print(f"{seen:6} images, {used:4.0f} s, {resident():6.0f} MB, atlas {kept / 1e6:.2f} MB", flush=True)
        if used > seconds:
            break
    print(
        f"peak: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024 / 1e6:.0f} MB for {seen} images", flush=True
    )


if __name__ == "__main__":
    tyro.cli(main)
