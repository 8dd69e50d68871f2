"""Every head learns with the shipped recipes, within a stated amount of work on a CPU.

docs/benchmarks.md has the commands and what was measured; the limits here leave room for other machines.
"""

from pathlib import Path
from typing import Any

import pytest

from tests.support.processor_time import processor_seconds
from vitreous.runs.run_folder import read_metrics
from vitreous.train import train

CELLS = Path(__file__).parents[1].parent / "shared" / "data" / "bccd"
needs_cells = pytest.mark.skipif(not CELLS.is_dir(), reason="the blood cells, ../shared/data/bccd, are not here")
SMALL = ("dims=(16,48,96,128)", "depths=(1,2,2,1)", "heads=(1,2,3,4)", "clusters=(49,49,0,0)")
TWENTY_MINUTES = 2400  # seconds of processor time of two cores
DRAWN: dict[str, Any] = dict(size=128, train_count=4000, val_count=200, epochs=1, batch_size=8)
DETECT, SEGMENT = dict(short=(128,), longest=128), dict(short=(128,), crop=(128, 128))
TWICE, SOON = dict(epochs=2), dict(warmup_epochs=0.2)
HEADS: dict[str, tuple[str, dict[str, Any], dict[str, float]]] = {
    "fcos": ("finetune_detect", DETECT | TWICE, {"AP50": 0.6}),
    "retinanet": ("finetune_detect", DETECT, {"AP50": 0.6}),
    "atss": ("finetune_detect", DETECT, {"AP50": 0.6}),
    "maskrcnn": ("finetune_detect", DETECT, {"AP50": 0.6, "mask_AP50": 0.5}),
    "ssdlite": (
        "finetune_detect",
        DETECT | TWICE | dict(head_args=("size=128", "channels=128", "levels=(8,16,32)")),
        {"AP50": 0.4},
    ),
    "sparsercnn": ("finetune_detect", DETECT | TWICE | SOON, {"AP50": 0.3}),
    "fpn": ("finetune_segment", SEGMENT | TWICE, {"mIoU": 0.6}),
    "upernet": ("finetune_segment", SEGMENT | SOON, {"mIoU": 0.6}),
    "paca": ("finetune_segment", SEGMENT | SOON, {"mIoU": 0.6}),
    "heatmaps": ("finetune_keypoints", dict(epochs=2, batch_size=32), {"PCK@0.1": 0.8}),
}


def learned(*args: Any, **settings: Any) -> dict[str, float]:
    """The last validation."""
    run = train(*args, workers=1, device="cpu", **settings)
    return [line for line in read_metrics(run) if line["split"] == "val"][-1]


@pytest.mark.slow
@needs_cells
def test_blood_cells_are_found(tmp_path):
    start = processor_seconds()
    last = learned("paca_b0", str(CELLS), recipe="finetune_detect", model_args=SMALL, out=tmp_path / "run")
    assert last["AP50"] >= 0.75
    assert processor_seconds() - start <= 960  # eight minutes of two cores


@pytest.fixture(scope="module")
def classifier(tmp_path_factory) -> Path:
    run = tmp_path_factory.mktemp("shapes") / "classifier"
    assert learned("paca_b0", "shapes", recipe="quick", size=128, model_args=SMALL, out=run)["top1"] >= 0.95
    return run


@pytest.mark.slow
@pytest.mark.parametrize("head", HEADS)
def test_shapes_are_learned_by_every_head_from_a_classifier(head, classifier, tmp_path):
    recipe, settings, least = HEADS[head]
    start = processor_seconds()
    last = learned(
        "paca_b0", "shapes", recipe=recipe, head=head, weights=str(classifier), out=tmp_path / "run", **DRAWN | settings
    )
    assert {name: last[name] for name in least if last[name] < least[name]} == {}
    assert processor_seconds() - start <= TWENTY_MINUTES
