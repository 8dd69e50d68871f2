"""Plans of memory: what is asked for is read, what fits is chosen, what does not is refused with what would."""

import json
import subprocess
import sys

import pytest
import timm

from vitreous.errors import InputError
from vitreous.measurements import plan as plan_module
from vitreous.measurements.plan import plan_memory, read_amount
from vitreous.models.paca import PaCa
from vitreous.runs.model_folder import data_of
from vitreous.runs.trained_model import at_size


@pytest.fixture(scope="module")
def model() -> PaCa:
    return timm.create_model("paca_b0", depths=(1, 1, 1, 1)).eval()


@pytest.mark.parametrize(
    ("given", "count"), [("3GB", 3 * 10**9), ("800 mb", 800 * 10**6), ("2.5GiB", 5 * 2**29), (7, 7), ("64B", 64)]
)
def test_amounts_are_read_as_people_write_them(given: str | int, count: int) -> None:
    assert read_amount(given) == count


@pytest.mark.parametrize("given", ["3", "GB", "-1GB", "0GB", "3 parsec", "", 0, -5])
def test_other_amounts_are_refused(given: str | int) -> None:
    with pytest.raises(InputError, match="such as 3GB"):
        read_amount(given)


def test_more_pixels_need_more_and_batches_as_often(model: PaCa) -> None:
    small, large = (plan_memory(model, size=size).needed for size in ((1024, 1024), (2048, 2048)))
    assert 2 < large.whole / small.whole < 5  # tiles take the same
    three = plan_memory(model, size=(1024, 1024), batch_size=3)
    assert three.batch == 3
    assert three.needed.whole == 3 * small.whole


def test_the_batch_is_what_fits(model: PaCa) -> None:
    one = plan_memory(model, size=(256, 320)).needed.whole
    plan = plan_memory(model, size=(256, 320), batch_size=8, max_memory=int(one * 3.5))
    assert plan.batch == 3
    assert "256x320 pixels, 3 at a time" in str(plan)
    assert "in tiles" in str(plan)


def test_too_little_says_what_would_do(model: PaCa) -> None:
    allowed = plan_memory(model, size=(800, 1216)).needed.whole * 3 // 4
    with pytest.raises(InputError, match="one image of 800x1216 pixels needs") as refusal:
        plan_memory(model, size=(800, 1216), max_memory=allowed)
    assert len(str(refusal.value).splitlines()) == 1
    size = str(refusal.value).split("--size ")[1].split()[0]
    height, width = map(int, size.split("x"))
    assert plan_memory(model, size=(height, width), max_memory=allowed).needed.whole <= allowed
    amount = str(refusal.value).split("; --max-memory ")[1].split()[0]
    assert plan_memory(model, size=(800, 1216), max_memory=amount).batch == 1


def test_what_is_not_free_cannot_be_planned(model: PaCa, monkeypatch: pytest.MonkeyPatch) -> None:
    free = plan_memory(model, size=(800, 1216)).needed.whole * 3 // 4
    monkeypatch.setattr(plan_module, "free_on", lambda device: free)
    with pytest.raises(InputError, match=r"\d GB are free; --size \d+x\d+ would do"):
        plan_memory(model, size=(800, 1216), max_memory="3GB")


def test_the_model_stays_as_it_is(model: PaCa) -> None:
    model.train()
    plan_memory(model, size=(64, 64))
    assert model.training
    model.eval()


def test_sizes_are_one_side_or_two() -> None:
    trained = data_of(timm.create_model("paca_b0_cifar").eval(), "paca_b0_cifar")
    assert at_size(trained, 48).preprocess.size == (48, 48)
    assert at_size(trained, "64x96").preprocess.size == (64, 96)
    with pytest.raises(InputError, match="--size 64x cannot be read"):
        at_size(trained, "64x")
    with pytest.raises(InputError, match=r"2x64 pixels \(the smallest"):
        at_size(trained, "2x64")


MEASURED = """
import json, sys, timm, torch, vitreous
from vitreous.measurements.memory import reset_peak, status_bytes
model = timm.create_model("paca_b0", features_only=True).eval()
planned = vitreous.plan_memory(model, size=(1536, 1536)).needed
with torch.inference_mode():
    model(torch.rand(1, 3, 64, 64))
    before = status_bytes("VmRSS")
    reset_peak()
    model(torch.rand(1, 3, 1536, 1536))
print(json.dumps([planned.whole, status_bytes("VmHWM") - before]))
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="reads the peak of the resident memory from /proc")
def test_the_process_takes_what_was_planned() -> None:
    answer = subprocess.run([sys.executable, "-c", MEASURED], capture_output=True, text=True, check=True).stdout
    planned, measured = json.loads(answer)
    assert 0.6 * planned < measured < 1.05 * planned
