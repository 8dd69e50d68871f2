"""A detector learns real pictures from scratch with the shipped recipe, within a stated amount of work."""

from pathlib import Path

import pytest

from tests.training.test_quick import processor_seconds
from vitreous.train import Training, train
from vitreous.training.run import read_metrics

CELLS = Path(__file__).parents[1].parent / "shared" / "data" / "bccd"
needs_cells = pytest.mark.skipif(not CELLS.is_dir(), reason="the blood cells, ../shared/data/bccd, are not here")
SMALL = ("dims=(16,48,96,128)", "depths=(1,2,2,1)", "heads=(1,2,3,4)", "clusters=(49,49,0,0)")
# Measured after two of the ten epochs: AP50 0.488 for 103 s of processor time. Other machines may need twice that.
LEAST, MOST_WORK = 0.4, 200


@pytest.mark.slow
@needs_cells
def test_blood_cells_are_found_after_two_of_ten_epochs(tmp_path, monkeypatch):
    """The command in benchmarks/README.md, up to where it has been measured."""
    original = Training.finish_epoch

    def stop_after_two(self, epoch, scores, seconds):
        original(self, epoch, scores, seconds)
        if epoch == 1:
            raise KeyboardInterrupt

    monkeypatch.setattr(Training, "finish_epoch", stop_after_two)
    start = processor_seconds()
    with pytest.raises(KeyboardInterrupt):
        train(
            "paca_b0", str(CELLS), recipe="finetune_detect", model_args=SMALL, batch_size=4, epochs=10,
            head_args=("channels=64", "norm=gn", "convs=2"), color_jitter=0.0, workers=1, device="cpu",
            out=tmp_path / "run",
        )  # fmt: skip
    assert [line["AP50"] for line in read_metrics(tmp_path / "run") if line["split"] == "val"][-1] >= LEAST
    assert processor_seconds() - start <= MOST_WORK
