"""What is measured: every task is run and trained on made-up targets, and counted without being run."""

from pathlib import Path

import pytest
import timm
import torch

from tests.support.count_task import CountTask
from tests.support.tiny_model import MODEL_ARGS, TASK_ARGS, save_tiny_dense, save_tiny_model
from vitreous.errors import InputError
from vitreous.figures.counting import count_model
from vitreous.measurements.contender import TRAINING_WORK, Contender, Setting, box_targets, open_source
from vitreous.measurements.runners import load_runners
from vitreous.tasks.base import load_task

CPU = torch.device("cpu")
DENSE = {"classify": {}, **{task: dict(TASK_ARGS[task]) for task in ("detect", "segment", "keypoints")}}


def contender(task: str, step: str, batch: int = 2) -> Contender:
    """Of a PaCa so small that a step takes a moment."""
    kind = load_task(task)
    built = kind(("a", "b", "c"), **DENSE[task])
    classes = {"features_only": True} if kind.on_feature_maps else {"num_classes": 3}
    model = built.model(timm.create_model("paca_tiny", **classes, **MODEL_ARGS))
    return Contender("tiny", model, built, Setting(step, (64, 96), batch), CPU)


@pytest.mark.parametrize("step", ["infer", "train"])
@pytest.mark.parametrize("task", DENSE)
def test_every_task_is_counted_and_run(task: str, step: str) -> None:
    one = contender(task, step)
    before = {name: tensor.clone() for name, tensor in one.model.named_parameters()}
    memory = one.memory()
    assert memory is not None
    assert memory.whole > memory.activations > 0
    assert one.figures.macs > 0
    run = load_runners()["eager"].prepare(one)
    run()
    run()
    assert one.model.training == (step == "train")
    for name, tensor in one.model.named_parameters():
        assert torch.equal(tensor, before[name]), f"a step that is timed changed {name}"
        assert (tensor.grad is not None) == (step == "train") or "mask" in name


def test_multiply_adds_are_those_of_info_and_three_times_as_many_in_training() -> None:
    plain, learning = contender("classify", "infer"), contender("classify", "train")
    assert plain.figures == count_model(timm.create_model("paca_tiny", num_classes=3, **MODEL_ARGS), (3, 64, 96))
    assert learning.figures.macs == TRAINING_WORK * plain.figures.macs


def test_memory_grows_with_the_batch_and_the_weights_do_not() -> None:
    one, two = contender("classify", "infer", 1).memory(), contender("classify", "infer", 2).memory()
    assert one is not None
    assert two is not None
    assert two.activations == pytest.approx(2 * one.activations, rel=0.05)
    assert two.whole - two.activations == one.whole - one.activations


def test_boxes_lie_in_the_image_and_masks_in_their_boxes() -> None:
    targets = box_targets(2, 64, 96, 3, CPU)
    for boxes, masks in zip(targets["boxes"], targets["masks"], strict=True):
        assert (boxes[:, 2:] > boxes[:, :2]).all()
        assert (boxes >= 0).all()
        assert (boxes <= torch.tensor([96, 64, 96, 64])).all()
        for (x0, y0, x1, y1), mask in zip(boxes.tolist(), masks, strict=True):
            rows, columns = mask.nonzero(as_tuple=True)
            assert y0 <= rows.min() + 0.5 <= rows.max() + 0.5 <= y1
            assert x0 <= columns.min() + 0.5 <= columns.max() + 0.5 <= x1


def test_timms_models_of_a_fixed_size_are_built_for_the_size() -> None:
    source = open_source("test_vit", "classify", None, {}, CPU, "off")
    model = source.build((64, 96))
    assert source.fixed
    assert model(torch.zeros(1, 3, 64, 96)).shape == (1, 1000)


def test_classifiers_of_larger_data_have_the_classes_of_imagenet() -> None:
    assert open_source("tiny_vit_5m_224", "classify", None, {}, CPU, "off").build((224, 224)).num_classes == 1000
    assert open_source("paca_b0_cifar", "classify", None, {}, CPU, "off").build((32, 32)).num_classes == 100


def test_folders_bring_their_own_task(tmp_path: Path) -> None:
    plain, dense = save_tiny_model(tmp_path / "plain"), save_tiny_dense(tmp_path / "dense", "segment", ("a", "b"))
    assert open_source(plain, "classify", None, {}, CPU, "off").task.name == "classify"
    assert open_source(dense, "classify", None, {}, CPU, "off").task.name == "segment"
    with pytest.raises(InputError, match="has its own task, segment"):
        open_source(dense, "detect", None, {}, CPU, "off")


def test_what_cannot_be_measured_is_refused() -> None:
    for name, task, head, recompute, message in (
        ("paca_tny", "classify", None, "off", "unknown model 'paca_tny'; nearest: paca_tiny"),
        ("runs/absent", "classify", None, "off", "there is no folder"),
        ("paca_b0", "draw", None, "off", "unknown task 'draw'; accepted: classify"),
        ("paca_b0", "classify", "fcos", "off", "has no heads"),
        ("paca_b0", "detect", "fco", "off", "unknown head 'fco'"),
        ("test_convnext", "classify", None, "mlp", "cannot compute its mlp twice"),
    ):
        with pytest.raises(InputError, match=message):
            open_source(name, task, head, {}, CPU, recompute).build((64, 64))
    small = contender("classify", "infer")
    with pytest.raises(InputError, match="cannot take images of 8x8 pixels: the smallest"):
        _ = Contender("tiny", small.model, small.task, Setting("infer", (8, 8), 1), CPU).figures
    counting = Contender("tiny", small.model, CountTask(("a",)), Setting("train", (64, 64), 1), CPU)
    with pytest.raises(InputError, match="cannot be made up; measure --step infer"):
        counting.targets()
