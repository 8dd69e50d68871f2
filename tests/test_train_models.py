"""The trainer with any backbone, with a teacher, compiled, and saving memory: what it computes stays what it was."""

import functools
import json

import pytest
import torch
from safetensors.torch import load_file

from tests.support.tiny_model import MODEL_ARGS, save_tiny_model
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.predict import predict
from vitreous.runs.run_folder import read_metrics
from vitreous.train import Training, train

SHORT = dict(
    data="shapes", size=32, epochs=2, batch_size=4, train_count=12, val_count=8, log_every=1, workers=0, device="cpu",
)  # fmt: skip
PACA = dict(model="paca_tiny", model_args=tuple(f"{name}={value}" for name, value in MODEL_ARGS.items()))


def weights(out, name: str = "final") -> dict[str, torch.Tensor]:
    return load_file(out / name / "model.safetensors")


def checkpoint(out) -> dict[str, torch.Tensor]:
    return load_file(max((out / "checkpoints").glob("step-*")) / "tensors.safetensors")


def equal(one: dict[str, torch.Tensor], other: dict[str, torch.Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def broken_off(out, monkeypatch, step: int, **settings):
    """The same run, broken off after a step and continued."""
    original = Training.step

    def until(self, pieces, epoch):
        if self.state.position.step == step:
            raise KeyboardInterrupt
        return original(self, pieces, epoch)

    with monkeypatch.context() as patch:
        patch.setattr(Training, "step", until)
        with pytest.raises(KeyboardInterrupt):
            train(**SHORT | settings, checkpoint_steps=1, out=out)
    return train(**SHORT | settings, checkpoint_steps=1, out=out)


# ---- any backbone -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["resnet10t", "pvt_v2_b0", "vit_tiny_patch16_224"])
def test_foreign_models_through_all_verbs(tmp_path, name):
    recipe = "paca_v1_imagenet"
    out = train(
        name,
        **SHORT | dict(epochs=1),
        out=tmp_path / "run",
        recipe=recipe,
        any_model=True,
        amp="off",
        warmup_epochs=0.0,
    )
    assert json.loads((out / "run.json").read_text())["arguments"]["repeats"] == 3
    figures = evaluate(str(out), "shapes", count=8, workers=0, device="cpu")
    assert 0 <= figures["top1"] <= 1
    assert len(predict(str(out), ("shapes:val:0-1",), device="cpu")) == 2
    explain(str(out), ("shapes:val:0",), out=tmp_path / "explanation", device="cpu")
    explained = json.loads((tmp_path / "explanation" / "explanation.json").read_text())
    assert {"grad_cam", "input_gradient"} <= {found["method"] for found in explained["images"][0]["methods"]}


def test_fine_tuning_starts_from_weights_and_says_what_is_new(tmp_path, capsys):
    first = train(**SHORT | PACA | dict(epochs=1), out=tmp_path / "first")
    settings = SHORT | PACA | dict(epochs=1, recipe="finetune", weights=str(first), augment="")
    train(**settings, lr=1e-9, min_lr=0.0, out=tmp_path / "second")
    assert f"weights: {first}" in capsys.readouterr().out
    for key, value in weights(first, "best").items():  # at such a rate nothing can move far
        assert torch.allclose(value, weights(tmp_path / "second")[key], atol=1e-6), key


# ---- a teacher --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("distill", ["hard", "soft"])
def test_taught_runs_resume_to_the_bit_and_do_not_keep_the_teacher(tmp_path, monkeypatch, distill):
    teacher = save_tiny_model(tmp_path / "teacher")
    settings = PACA | dict(teacher=teacher, distill=distill, mixup=0.5, ema=0.9, drop_path=0.1)
    whole = train(**SHORT | settings, out=tmp_path / "whole")
    again = broken_off(tmp_path / "again", monkeypatch, 4, **settings)
    assert equal(checkpoint(again), checkpoint(whole))
    assert equal(weights(again), weights(whole))
    plain = train(**SHORT | PACA | dict(mixup=0.5, ema=0.9, drop_path=0.1), out=tmp_path / "plain")
    assert checkpoint(plain).keys() == checkpoint(whole).keys()
    assert not equal(weights(plain), weights(whole))
    save_tiny_model(tmp_path / "teacher", dims=(8, 16, 24, 16))
    with pytest.raises(InputError, match=r"with other settings .*teacher"):
        train(**SHORT | settings, out=tmp_path / "whole")


# ---- compiled, and with less memory -----------------------------------------------------------------------------


def compiled_run(tmp_path, monkeypatch, **settings):
    settings |= dict(compile=True, drop_path=0.2, ema=0.9, accumulate=3)
    whole = train(**SHORT | settings, out=tmp_path / "whole")
    again = broken_off(tmp_path / "again", monkeypatch, 4, **settings)
    assert equal(checkpoint(again), checkpoint(whole))
    assert not [key for key in checkpoint(whole) if "_orig_mod" in key]
    plain = train(**SHORT | settings | dict(compile=False), out=tmp_path / "plain")
    assert weights(plain).keys() == weights(whole).keys()
    return plain, whole


def test_compiled_runs_have_clean_keys_and_resume_to_the_bit(tmp_path, monkeypatch):
    """With the quickest of the compiler's back ends, which computes as uncompiled."""
    monkeypatch.setattr(torch, "compile", functools.partial(torch.compile, backend="eager"))
    plain, whole = compiled_run(tmp_path, monkeypatch, model="test_vit")
    losses = [[line["loss"] for line in read_metrics(out) if line["split"] == "train"] for out in (plain, whole)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-4)


@pytest.mark.slow
def test_truly_compiled_runs_resume_to_the_bit(tmp_path, monkeypatch):
    compiled_run(tmp_path, monkeypatch, **PACA)


def test_recomputing_changes_nothing(tmp_path):
    settings = SHORT | PACA | dict(drop_path=0.3, epochs=1)
    plain = train(**settings, out=tmp_path / "plain")
    for part in ("blocks", "mlp"):
        saving = train(**settings, grad_checkpointing=part, out=tmp_path / part)
        assert equal(weights(plain), weights(saving)), part


# ---- schedules and layers ---------------------------------------------------------------------------------------


def rates(out) -> list[float]:
    return [line["lr"] for line in read_metrics(out) if line["split"] == "train"]


def test_logged_learning_rates_follow_the_schedule(tmp_path):
    steps = dict(schedule="step", step_epochs=(1.0,), warmup_epochs=0.0, lr=1e-3, lr_batch=8, min_lr=0.0)
    out = train("test_vit", **SHORT | steps, cooldown_epochs=1, out=tmp_path / "step")
    assert rates(out) == pytest.approx([5e-4] * 3 + [5e-5] * 3 + [0.0] * 3)
    warm = dict(warmup_epochs=1.0, warmup_lr=1e-4, lr=1e-3)
    out = train("test_vit", **SHORT | warm, out=tmp_path / "warm")
    assert rates(out)[:3] == pytest.approx([4e-4, 7e-4, 1e-3])


def test_early_layers_move_less_with_layer_decay(tmp_path):
    """AdamW's first step is as long as the learning rate, whatever the gradient."""
    settings = SHORT | PACA | dict(epochs=1, train_count=4, warmup_epochs=0.0, weight_decay=0.0, eps=1e-12)
    untouched = train(**settings, lr=1e-12, min_lr=0.0, out=tmp_path / "untouched")
    out = train(**settings, lr=1e-3, layer_decay=0.5, out=tmp_path / "run")
    moved = {key: (value - weights(untouched)[key]).abs().max().item() for key, value in weights(out).items()}
    assert moved["head.bias"] == pytest.approx(1e-3, rel=0.01)
    first = next(key for key in moved if key.startswith("stem") and key.endswith("weight"))
    assert 0 < moved[first] < 1e-3 * 0.5**4
