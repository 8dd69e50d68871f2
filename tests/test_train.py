"""The trainer, as its user meets it: runs, repetitions, interruptions and refusals on tiny settings."""

import json
import os
import random
import signal
import sys
from pathlib import Path

import pytest
import torch

from tests.support.tiny_runs import PLAIN, STEPS, TINY, fingerprint, finish, interrupt, start, wait_for_step
from vitreous.data.transforms import Augmentation
from vitreous.errors import InputError
from vitreous.runs.model_folder import load_model
from vitreous.runs.run_folder import RunFolder, read_metrics
from vitreous.train import Training, train


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory) -> Path:
    return train(**TINY, out=tmp_path_factory.mktemp("uninterrupted") / "run")


def test_a_run_folder_holds_what_it_promises(uninterrupted):
    assert {path.name for path in uninterrupted.iterdir()} == {
        ".lock", "run.json", "metrics.jsonl", "checkpoints", "best", "final",
    }  # fmt: skip
    lines = read_metrics(uninterrupted)
    assert [line["step"] for line in lines if line["split"] == "train"] == list(range(1, STEPS + 1))
    assert [line["step"] for line in lines if line["split"] == "val"] == [5, 10, 15]
    assert {"step", "epoch", "split", "loss", "top1", "images_per_second"} <= set(lines[-1])
    assert len(list((uninterrupted / "checkpoints").glob("step-*"))) == 2
    recorded = json.loads((uninterrupted / "run.json").read_text())
    assert recorded["arguments"]["batch_size"] == 8
    assert "shapes:easy train count=40" in recorded["data"]["train"]
    trained = load_model(uninterrupted)
    assert trained.task == "classify"
    assert len(trained.classes) == 10


def test_the_table_shows_the_loss_of_the_whole_epoch(tmp_path, capsys):
    """With 5 steps an epoch and a line every 2, the last line is a single batch's."""
    train(**PLAIN | {"log_every": 1}, out=tmp_path / "batches")
    capsys.readouterr()
    train(**PLAIN | {"log_every": 2}, out=tmp_path / "run")
    batches = [line["loss"] for line in read_metrics(tmp_path / "batches") if line["split"] == "train"]
    lines = [line["loss"] for line in read_metrics(tmp_path / "run") if line["split"] == "train"]
    assert lines == pytest.approx([sum(batches[:2]) / 2, sum(batches[2:4]) / 2, batches[4]])
    row = next(line.split() for line in capsys.readouterr().out.splitlines() if line.split()[:1] == ["1/1"])
    assert float(row[1]) == pytest.approx(sum(batches) / 5, abs=1e-4)


@pytest.mark.system
def test_killed_at_several_moments_ends_with_the_same_bits(uninterrupted, tmp_path):
    out = tmp_path / "run"
    # before the first checkpoint, mid-epoch, at an epoch's edge (validation, best/ or checkpoint being written), late
    for step, after in [(1, 0.0), (4, 0.01), (5, 0.02), (10, 0.0), (13, 0.03)]:
        assert interrupt(out, step, signal.SIGKILL, after=after) == -signal.SIGKILL
    assert fingerprint(finish(out)) == fingerprint(uninterrupted)


@pytest.mark.slow
@pytest.mark.system
@pytest.mark.parametrize("workers", [0, 2])
def test_killed_twenty_times_ends_with_the_same_bits(tmp_path, workers):
    out, rng = tmp_path / "run", random.Random(workers)
    for _ in range(20):
        done = max((line["step"] for line in read_metrics(out)), default=0)
        moment = dict(step=done + rng.randint(1, 3), after=rng.random() / 50)
        assert interrupt(out, number=signal.SIGKILL, **moment, workers=workers, epochs=20) == -signal.SIGKILL
    whole = finish(tmp_path / "whole", workers=0, epochs=20)
    assert fingerprint(finish(out, workers=workers, epochs=20)) == fingerprint(whole)


@pytest.mark.system
@pytest.mark.parametrize(("number", "step"), [(signal.SIGTERM, 3), (signal.SIGINT, 5), (signal.SIGUSR1, 7)])
def test_signals_write_a_checkpoint_and_say_how_to_go_on(uninterrupted, tmp_path, number, step):
    out = tmp_path / "run"
    process = start(out, checkpoint_steps=0)
    wait_for_step(out, step, process)
    os.kill(process.pid, number)
    process.join(10)  # seconds: schedulers do not wait for long
    assert process.exitcode == 128 + number
    saved = json.loads((max((out / "checkpoints").glob("step-*")) / "record.json").read_text())
    assert saved["position"]["step"] >= step
    assert fingerprint(finish(out)) == fingerprint(uninterrupted)


@pytest.mark.system
def test_workers_and_repetition_change_nothing(uninterrupted, tmp_path):
    assert fingerprint(finish(tmp_path / "run", workers=2)) == fingerprint(uninterrupted)


@pytest.mark.system
def test_damaged_checkpoint_falls_back_and_says_so(tmp_path, capsys):
    out = tmp_path / "run"
    assert interrupt(out, 5, signal.SIGTERM) == 143
    newest = max((out / "checkpoints").glob("step-*"))
    (newest / "tensors.safetensors").write_bytes(b"")
    train(**TINY, out=out)
    shown = capsys.readouterr().out
    assert f"{newest.name} cannot be used" in shown
    assert "continuing" in shown
    assert [line["step"] for line in read_metrics(out) if line["split"] == "train"] == list(range(1, STEPS + 1))


# ---- in this process, and so quick ------------------------------------------------------------------------------


def test_finished_run_is_left_alone_and_another_command_refused(tmp_path, capsys):
    out = train(**PLAIN, out=tmp_path / "run")
    before = fingerprint(out)
    assert train(**PLAIN, out=tmp_path / "run") == out
    assert "is finished; nothing to do" in capsys.readouterr().out
    with pytest.raises(InputError, match=r"lr: 0\.001 there, 0\.5 now"):
        train(**PLAIN | {"lr": 0.5}, out=out)
    with pytest.raises(InputError, match="--no-resume"):
        train(**PLAIN, out=out, resume=False)
    assert fingerprint(out) == before


def test_a_folder_in_use_is_refused(tmp_path):
    with RunFolder(tmp_path / "run"), pytest.raises(InputError, match="in use"):
        train(**PLAIN, out=tmp_path / "run")


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        (dict(model="paca_bo"), "unknown model 'paca_bo'; nearest: paca_b"),
        (dict(data="nowhere"), "there is no such folder"),
        (dict(model_args=("clusters",)), "write name=value"),
        (dict(model_args=("no_such_thing=3",)), "does not accept.*no_such_thing"),
        (dict(device="abacus"), "device 'abacus'"),
        (dict(epochs=0), "epochs 0"),
        (dict(min_lr=1.0), "min_lr 1.0"),
        (dict(augment="rand-q"), "augment 'rand-q'"),
        (dict(val_count=0), "at least 1"),
    ],
)
def test_bad_input_leaves_nothing_behind(tmp_path, wrong, message):
    with pytest.raises(InputError, match=message):
        train(**PLAIN | wrong, out=tmp_path / "run")
    assert not (tmp_path / "run").exists()


@pytest.mark.parametrize("loss", [float("nan"), float("inf")])
def test_a_loss_that_is_not_finite_stops_before_the_weights(tmp_path, monkeypatch, loss):
    original, weights = Training.loss, []

    def loss_of(self, piece, index):
        weights.append([parameter.detach().clone() for parameter in self.state.model.parameters()])
        self.watched = list(self.state.model.parameters())
        weights[0] = self.watched
        value = original(self, piece, index)
        return value * loss if self.state.position.step == 3 else value

    monkeypatch.setattr(Training, "loss", loss_of)
    with pytest.raises(InputError, match=r"the loss is (nan|inf) at step 3 \(epoch 1\), on training samples \d+, "):
        train(**PLAIN, out=tmp_path / "run")
    assert all(torch.equal(now, before) for now, before in zip(weights[0], weights[-1], strict=True))


def test_a_gradient_that_is_not_finite_stops_before_the_weights(tmp_path, monkeypatch):
    original = Training.loss

    def loss_with_bad_gradient(self, piece, index):
        first = next(self.state.model.parameters())
        bad = (first.flatten()[0] - first.flatten()[0].detach()).abs().sqrt()  # zero, with an endless slope
        return original(self, piece, index) + bad

    monkeypatch.setattr(Training, "loss", loss_with_bad_gradient)
    with pytest.raises(InputError, match="norm of the gradient is nan at step 0"):
        train(**PLAIN, out=tmp_path / "run")


def test_accumulation_does_not_change_the_result(tmp_path):
    """One step from the same weights: only the order of additions may differ."""
    one = train(**PLAIN | dict(model="test_vit", drop_path=0.0, train_count=8), out=tmp_path / "one")
    two = train(**PLAIN | dict(model="test_vit", drop_path=0.0, train_count=8, accumulate=3), out=tmp_path / "two")
    assert read_metrics(one)[0]["loss"] == pytest.approx(read_metrics(two)[0]["loss"], rel=1e-5)


@pytest.mark.parametrize("able", [True, False])
def test_precision_that_fits_the_device_is_kept(able, tmp_path, monkeypatch, capsys):
    module = sys.modules["vitreous.train"]
    monkeypatch.setattr(module, "faster_in_bf16", lambda device: able)
    run = train(**PLAIN | dict(epochs=1, amp="auto", out=tmp_path / "run"))
    assert ("precision: bf16" in capsys.readouterr().out) == able
    expected = "bf16" if able else "off"
    assert json.loads((run / "run.json").read_text())["arguments"]["amp"] == expected
    monkeypatch.setattr(module, "faster_in_bf16", None)  # calling it would fail
    train(**PLAIN | dict(epochs=1, amp="auto", out=tmp_path / "run"))


@pytest.mark.parametrize("changes", [dict(amp="bf16"), dict(amp="fp16"), dict(channels_last=True), dict(clip_grad=0.0)])
def test_precisions_and_layouts(tmp_path, changes):
    out = train(**PLAIN | changes, out=tmp_path / "run")
    assert read_metrics(out)[-1]["loss"] < 10


def test_fewer_images_than_a_batch_are_one_batch(tmp_path):
    out = train(**PLAIN | dict(train_count=5, batch_size=64), out=tmp_path / "run")
    assert [line["step"] for line in read_metrics(out)] == [1, 1]


def test_a_small_paca_learns(tmp_path):
    """Ten images by heart: the loss on them falls below a tenth of that of guessing."""
    arguments = ("dims=(8,16,24,32)", "depths=(1,1,1,1)", "heads=(1,2,3,4)", "clusters=(4,4,4,0)")
    settings = PLAIN | dict(
        model="paca_tiny", model_args=arguments, train_count=10, val_count=10, epochs=30, batch_size=10, lr=5e-3,
        drop_path=0.0, scale=1.0, flip=0.0, label_smoothing=0.0, log_every=30,
    )  # fmt: skip
    losses = [
        line["loss"] for line in read_metrics(train(**settings, out=tmp_path / "run")) if line["split"] == "train"
    ]
    assert losses[-1] < 0.25 * losses[0]


def test_help_lists_every_setting(capsys):
    import vitreous_command

    with pytest.raises(SystemExit):
        vitreous_command.main(["train", "--help"])
    shown = capsys.readouterr().out
    assert "--warmup-epochs FLOAT" in shown
    assert "vitreous train paca_b0 shapes" in shown
    assert "Images per optimiser step" in shown


def test_augmentation_settings_reach_the_views(tmp_path, monkeypatch):
    seen = []
    original = Augmentation.__call__
    monkeypatch.setattr(Augmentation, "__call__", lambda self, image: (seen.append(self), original(self, image))[1])
    train(**TINY | dict(epochs=1), out=tmp_path / "run")
    assert (seen[0].policy, seen[0].erasing, seen[0].color_jitter) == ("rand-m5-n1", 0.3, 0.2)


def test_a_start_that_failed_may_be_corrected(tmp_path):
    with pytest.raises(InputError, match="smallest this model can take"):
        train(**PLAIN | dict(model="paca_b0", size=16, train_count=16, out=tmp_path / "run"))
    with pytest.raises(InputError, match="it has: ivmcl_in1k"):
        train(**PLAIN | dict(model="paca_tiny.nope", out=tmp_path / "other"))
    assert not (tmp_path / "other").exists()
    train(**PLAIN | dict(model="paca_b0", size=32, train_count=16, out=tmp_path / "run"))
    assert (tmp_path / "run" / "final").exists()
