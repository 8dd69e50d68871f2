"""A step without values takes what a computed one takes, for every task; the batch that is found is the largest."""

from pathlib import Path

import pytest
import torch

from tests.support.tiny_runs import DENSE, DENSE_TASKS, PLAIN
from vitreous.measurements.step_memory import (
    TRIED_COUNTS,
    StepMemory,
    counted_in_a_step,
    counted_without_values,
    most_images,
    step_memory,
)
from vitreous.runs.run_folder import RunFolder
from vitreous.train import Training
from vitreous.training.build import open_splits
from vitreous.training.recipe import with_recipe
from vitreous.training.stop import StopSignals

SHALLOW = ("depths=(1,1,1,1)",)
RUNS = {
    "classify": PLAIN | dict(mixup=0.4, cutmix=0.4, ema=0.9),
    "paca, recomputed": PLAIN | dict(model="paca_b0", model_args=SHALLOW, grad_checkpointing="blocks"),
    "paca, with terms": PLAIN | dict(model="paca_b0", model_args=SHALLOW, cluster_overlap=0.1),
    "segment": DENSE | DENSE_TASKS["segment"],
    "keypoints": DENSE | DENSE_TASKS["keypoints"],
}


def opened(settings: dict, folder: Path) -> Training:
    asked = with_recipe(**settings)
    training = Training(asked, RunFolder(folder), StopSignals(), open_splits(asked))
    training.place_model()
    return training


@pytest.mark.parametrize("name", RUNS)
def test_a_step_without_values_takes_what_a_computed_one_takes(name: str, tmp_path: Path) -> None:
    training = opened(RUNS[name], tmp_path)
    piece = next(iter(training.train_loader))
    before = {key: value.clone() for key, value in training.state.model.state_dict().items()}
    without = counted_without_values(training, piece, 3)
    computed = counted_in_a_step(training, piece, 3)
    assert (without.peak, without.whole) == pytest.approx((computed.peak, computed.whole), rel=0.03)
    after = training.state.model.state_dict()
    assert all(torch.equal(after[key], value) for key, value in before.items()), "nothing was learned or counted"
    assert all(parameter.grad is None for parameter in training.state.model.parameters())


def test_what_depends_on_values_is_computed_and_said_so(tmp_path: Path) -> None:
    training = opened(DENSE | DENSE_TASKS["detect"], tmp_path)
    piece = next(iter(training.train_loader))
    few, more = (step_memory(training, piece, count) for count in TRIED_COUNTS)
    assert not few.estimated
    assert few.whole < more.whole < 2 * few.whole


def test_all_gradients_are_there_where_they_add_up(tmp_path: Path) -> None:
    alone, pieces = (opened(PLAIN | dict(accumulate=count), tmp_path) for count in (1, 2))
    weights = sum(parameter.nbytes for parameter in alone.state.model.parameters())
    found = [step_memory(training, next(iter(training.train_loader)), 2).passing for training in (alone, pieces)]
    assert found[0] < found[1] <= found[0] + 1.2 * weights


def bent(count: int, *, estimated: bool = True) -> StepMemory:
    """As real ones: the peak is when all gradients are there, or, with many images, when all activations are."""
    return StepMemory(count, 100, max(80 + 7 * count, 19 * count), estimated)


@pytest.mark.parametrize("most", [1, 3, 20, 1000])
def test_the_batch_is_the_largest_that_fits(most: int) -> None:
    for limit in range(150, 4000, 37):
        found = most_images(bent, limit, most)
        fits = [count for count in range(1, most + 1) if bent(count).whole <= limit]
        allowed = [count for count in fits if count < 8 or count % 8 == 0]
        assert (0 if found is None else found.images) == max(allowed, default=0), limit


def test_where_each_batch_would_be_computed_few_are_tried() -> None:
    tried: list[int] = []

    def memory(count: int) -> StepMemory:
        tried.append(count)
        return StepMemory(count, 100, 10 * count, False)

    found = most_images(memory, 1000, 1024)
    assert found is not None
    assert (found.images, found.whole) == (88, 980)
    assert tried == list(TRIED_COUNTS)
    assert most_images(memory, 90, 1024) is None
