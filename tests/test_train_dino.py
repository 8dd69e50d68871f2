"""Training without labels: what stays is the teacher's backbone, and every bit of it survives interruptions."""

import json
import signal

import pytest
import timm
import torch
from safetensors.torch import load_file, save_file

from tests.support.ranks import finish_training, start_training
from tests.support.tiny_data import as_png, drawn_pictures, picture, write_shard
from tests.support.tiny_model import MODEL_ARGS
from tests.support.tiny_runs import fingerprint
from vitreous.errors import InputError
from vitreous.heads.dino import SelfDistillation
from vitreous.runs.model_folder import load_model
from vitreous.runs.run_folder import read_metrics
from vitreous.train import Training, train
from vitreous.training.build import build_training, open_splits
from vitreous.training.settings import TrainSettings

TINY_DINO = dict(
    model="test_efficientnet", data="shapes", task="dino", size=32, local_size=16, local_crops=2, epochs=2,
    batch_size=8, train_count=24, val_count=10, warmup_epochs=1.0, drop_path=0.2, color_jitter=0.4, log_every=1,
    checkpoint_steps=2, head_args=("outputs=16", "hidden=16", "bottleneck=8"), teacher_momentum=0.9, weight_decay=0.04,
    weight_decay_end=0.4, teacher_warmup_epochs=1.0, freeze_last=0.5, accumulate=2, workers=0, device="cpu",
)  # fmt: skip

SMALL_XCIT = ("dim=16", "depth=4", "heads=2", "ends=(0,1,2,3)")
SMALL_PACA = tuple(f"{key}={value}" for key, value in MODEL_ARGS.items())


class Killed(Exception):
    pass


@pytest.fixture
def kill_at(monkeypatch):
    """Let training end, as if killed, when it is about to take this step."""

    def arm(step: int) -> None:
        own = Training.step

        def fatal(self, pieces, epoch):
            if self.state.position.step == step:
                raise Killed
            return own(self, pieces, epoch)

        monkeypatch.setattr(Training, "step", fatal)

    return arm


def test_a_run_that_is_killed_ends_with_the_same_bits(tmp_path, kill_at, monkeypatch):
    """Teacher, centre, moments and every schedule: of weight decay, temperature, momentum and the frozen layer."""
    whole = train(**TINY_DINO, out=tmp_path / "whole")
    for step in (1, 3, 5):
        with monkeypatch.context():
            kill_at(step)
            with pytest.raises(Killed):
                train(**TINY_DINO, out=tmp_path / "run")
        monkeypatch.undo()
    train(**TINY_DINO, out=tmp_path / "run")
    assert fingerprint(tmp_path / "run") == fingerprint(whole)


def test_the_teachers_backbone_is_what_stays(tmp_path, monkeypatch):
    seen = []
    monkeypatch.setattr(Training, "close", lambda self: seen.append(self.state.model))
    out = train(**TINY_DINO, knn_every=1, out=tmp_path / "run")
    (learner,) = seen
    assert isinstance(learner, SelfDistillation)
    kept = load_file(out / "final" / "model.safetensors")
    assert all(torch.equal(kept[key], value) for key, value in learner.teacher.backbone.state_dict().items())
    trained = load_model(out, features=True)
    assert (trained.task, trained.classes, trained.model.num_classes) == ("dino", (), 0)
    lines = read_metrics(out)
    assert {"spread", "teacher_entropy", "teacher_information", "kl"} <= lines[0].keys()
    assert {"spread", "knn_10", "knn_20"} <= [line for line in lines if line["split"] == "val"][-1].keys()
    stored = json.loads((out / "final" / "config.json").read_text())
    assert stored["num_classes"] == 0


def test_the_last_layer_is_frozen_at_first_and_decay_rises(tmp_path, monkeypatch):
    seen, own = [], Training.step

    def noted(self, pieces, epoch):
        before = self.state.model.student.head.directions.detach().clone()
        result = own(self, pieces, epoch)
        moved = not torch.equal(before, self.state.model.student.head.directions)
        decays = {group["weight_decay"] for group in self.state.optimizer.param_groups}
        seen.append((moved, max(decays), min(decays)))
        return result

    monkeypatch.setattr(Training, "step", noted)
    train(**TINY_DINO, out=tmp_path / "run")
    assert [moved for moved, _, _ in seen] == [False, False, True, True, True, True], "half an epoch of three steps"
    assert seen[0][1] == pytest.approx(0.04)
    assert [most for _, most, _ in seen] == sorted(most for _, most, _ in seen)
    assert {least for _, _, least in seen} == {0.0}, "biases and norms never decay"


@pytest.mark.parametrize(
    "name", ["paca_tiny", "xcit_nano_12_p8", "emsnet_xxtiny", "mat_1", "partialformer_b0", "test_vit"]
)
def test_every_family_and_models_of_timm_learn(tmp_path, name):
    small = {
        "paca_tiny": SMALL_PACA,
        "xcit_nano_12_p8": SMALL_XCIT,
        "emsnet_xxtiny": ("dims=(16,16,32,32)", "depths=(1,1,1,1)"),
    }
    settings = TINY_DINO | dict(
        model=name, model_args=small.get(name, ()), epochs=1, train_count=8, size=64, local_size=32
    )
    out = train(**settings | dict(drop_path=None, val_count=4, batch_size=4), out=tmp_path / "run")
    assert all(line["loss"] > 0 for line in read_metrics(out) if line["split"] == "train")


def test_pictures_without_labels(tmp_path, capsys):
    for number in range(12):
        picture(tmp_path / "photos" / f"{number}.png", seed=number)
    settings = {key: value for key, value in TINY_DINO.items() if not key.endswith("_count")}
    out = train(
        **settings | dict(data=str(tmp_path / "photos"), epochs=1, batch_size=4), knn_every=1, out=tmp_path / "run"
    )
    said = capsys.readouterr().out
    assert "(pictures without labels): " in said
    assert "no labels, so that nothing can be told by nearest neighbours" in said
    assert (out / "best").is_dir()
    for split in ("train", "val"):
        members = {f"{n}.png": as_png(pixels) for n, (pixels, _) in enumerate(drawn_pictures("val"))}
        write_shard(tmp_path / "shards" / f"{split}-000.tar", members)
    train(**settings | dict(data=str(tmp_path / "shards"), epochs=1, batch_size=10), out=tmp_path / "from_shards")


def test_a_model_that_cannot_take_the_small_crops_is_told(tmp_path):
    with pytest.raises(InputError, match=r"cannot take images of 16x16 pixels"):
        train(**TINY_DINO | dict(model="paca_b0", drop_path=None), out=tmp_path / "run")


# ---- what it is for ----------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """One of each kind of model; two steps, after which the teacher is not the student."""
    models = {"paca_tiny": SMALL_PACA, "xcit_nano_12_p8": SMALL_XCIT, "test_efficientnet": ()}
    found = {}
    for model, arguments in models.items():
        changes = dict(model=model, model_args=arguments, drop_path=None, size=64, local_crops=1, local_size=32)
        changes |= dict(train_count=8, val_count=4, batch_size=4, accumulate=1, epochs=1)
        found[model] = train(**TINY_DINO | changes, out=tmp_path_factory.mktemp("runs") / model)
    return found


@pytest.mark.parametrize("task", ["classify", "detect", "segment", "dino"])
@pytest.mark.parametrize("model", ["paca_tiny", "xcit_nano_12_p8", "test_efficientnet"])
def test_other_tasks_start_from_its_backbone(runs, model, task):
    """The teacher's; the arguments of the model come with it."""
    settings = TrainSettings(model, "shapes", task=task, size=64, train_count=2, val_count=2, weights=str(runs[model]))
    built = build_training(settings, open_splits(settings)["train"], torch.device("cpu"))
    assert f"weights: {runs[model]}" in built.note or f"those of {runs[model]}" in built.note
    kept = load_file(runs[model] / "best" / "model.safetensors")
    trunk = ("stages.", "blocks.")  # a class token's own blocks have no place in a dense model
    inner = [key for key in kept if key.startswith(trunk) and key.endswith(("fc1.weight", "conv_pw.weight"))]
    found = dict(built.model.named_parameters())
    ends = [[name for name in found if name.endswith(key)] for key in inner]
    assert inner
    assert all(
        any(torch.equal(found[name], kept[key]) for name in names) for key, names in zip(inner, ends, strict=True)
    )


def test_supervised_weights_start_it(tmp_path):
    whole = timm.create_model("test_efficientnet", num_classes=5).state_dict()
    save_file(whole, tmp_path / "five.safetensors")
    settings = TrainSettings(**TINY_DINO, weights=str(tmp_path / "five.safetensors"))
    built = build_training(settings, open_splits(settings)["train"], torch.device("cpu"))
    assert built.note.endswith("without the classifier")
    assert torch.equal(built.model.student.backbone.conv_stem.weight, whole["conv_stem.weight"])
    assert torch.equal(built.model.teacher.backbone.conv_stem.weight, whole["conv_stem.weight"])


# ---- several processes --------------------------------------------------------------------------------------------


@pytest.mark.system
def test_two_processes_move_one_centre_as_one_process_does(tmp_path):
    """Without random depth and colour the same pictures give the same answers, however many processes see them."""
    settings = TINY_DINO | dict(drop_path=0.0, accumulate=1, epochs=1, sharing_rounds=3)
    centres, losses = [], []
    for count in (1, 2):
        out = finish_training(count, tmp_path / f"{count}", settings)
        losses.append(read_metrics(out)[0]["loss"])  # of the first step, whose answers are shared out over both
        (file,) = (out / "checkpoints" / (out / "checkpoints" / "LATEST").read_text().strip()).glob("tensors*")
        centres.append(load_file(file)["model/centre"])
    assert centres[0].abs().max() > 1e-4
    assert torch.allclose(centres[0], centres[1], atol=2e-5)
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


@pytest.mark.system
@pytest.mark.parametrize(
    "shard", [pytest.param(False, id="copies"), pytest.param(True, id="parts", marks=pytest.mark.slow)]
)
def test_a_killed_process_and_a_restart_end_with_the_same_bits(tmp_path, shard):
    settings = TINY_DINO | dict(model="test_vit", model_args=(), shard=shard)
    whole = finish_training(2, tmp_path / "whole", settings)
    ranks = start_training(2, tmp_path / "run", settings)
    ranks.wait_for_step(tmp_path / "run", 3)
    ranks.send(1, signal.SIGKILL)
    ranks.wait(60)
    assert fingerprint(finish_training(2, tmp_path / "run", settings)) == fingerprint(whole)
