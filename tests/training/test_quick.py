"""The recipe `quick`: the smallest model of each family learns the embedded shapes in minutes."""

import pytest

from tests.support.processor_time import processor_seconds
from vitreous.runs.run_folder import read_metrics
from vitreous.train import train

FAMILIES = ["paca_b0", "xcit_nano_12_p16", "emsnet_xxtiny", "mat_1", "partialformer_b0"]
MOST_WORK = 2 * 6 * 60  # seconds of processor time: six minutes of two cores


@pytest.mark.slow
@pytest.mark.parametrize("model", FAMILIES)
def test_the_smallest_model_of_each_family_learns_shapes(tmp_path, model):
    """Work, not time, is limited, for the cores may be shared; 90 % is far from the 10 % of guessing."""
    start = processor_seconds()
    out = train(model, "shapes", recipe="quick", out=tmp_path / "run", device="cpu")
    assert max(line["top1"] for line in read_metrics(out) if line["split"] == "val") >= 0.9
    assert processor_seconds() - start <= MOST_WORK
