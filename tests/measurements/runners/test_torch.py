"""Torch's own ways to run a model answer as plain torch does, as exactly as their precision allows."""

import pytest
import timm
import torch

from tests.support.tiny_model import MODEL_ARGS
from vitreous.measurements.contender import Contender, Setting
from vitreous.measurements.runners import load_runners
from vitreous.tasks.base import load_task


def contender(step: str = "infer") -> Contender:
    torch.manual_seed(0)
    model = timm.create_model("paca_tiny", num_classes=3, **MODEL_ARGS)
    task = load_task("classify")(("a", "b", "c"))
    return Contender("tiny", model, task, Setting(step, (64, 96), 2), torch.device("cpu"))


@pytest.mark.parametrize("mode", ["bf16", pytest.param("compiled", marks=pytest.mark.slow)])
def test_answers_are_those_of_plain_torch(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    one = contender()
    images = one.images()
    monkeypatch.setattr(Contender, "images", lambda _: images)
    wanted = load_runners()["eager"].prepare(one)()
    found = load_runners()[mode].prepare(one)()
    digits = 8 if mode == "bf16" else 20  # bits of a product's factors that are kept
    torch.testing.assert_close(found.float(), wanted, rtol=0, atol=4 * 2**-digits * wanted.abs().max().item())
    assert (found.dtype == torch.bfloat16) == (mode == "bf16")


def test_a_training_step_in_mixed_precision_reaches_every_parameter() -> None:
    one = contender("train")
    load_runners()["bf16"].prepare(one)()
    assert all(parameter.grad is not None for parameter in one.model.parameters())
