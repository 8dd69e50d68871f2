"""Several processes on one run: the same figures as one, the same bits after a restart, and one word when it fails."""

import json
import os
import signal
import sys
import threading
import time
from datetime import timedelta
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from torch.distributed import DistError, TCPStore

from tests.support.ranks import Ranks, finish_training, start_training
from tests.support.tiny_model import save_tiny_model
from tests.support.tiny_runs import TINY_EMSNET, TINY_PACA, TINY_PACA_RUN, fingerprint
from vitreous.errors import InputError
from vitreous.runs.model_folder import load_model
from vitreous.runs.run_folder import RunFolder, read_metrics
from vitreous.runtime import distributed
from vitreous.runtime.distributed import LOST_CONTACT, _lost_contact, _rendezvous, processes
from vitreous.train import Training, train


def losses(out: Path, split: str = "train") -> list[float]:
    return [line["loss"] for line in read_metrics(out) if line["split"] == split]


# ---- the same figures ---------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize(
    "changes",
    [
        pytest.param(  # shares of 2 and 3 images, pieces of 4 and 5
            TINY_EMSNET | dict(batch_size=9, accumulate=2), id="emsnet, copies", marks=pytest.mark.slow
        ),
        pytest.param(TINY_PACA | dict(mixup=0.8, cutmix=1.0, ema=0.9, shard=True), id="paca, parts"),
        pytest.param(  # grounds are exchanged within a process
            TINY_PACA | dict(attend_to="masks", attend_hide=0.0), id="paca, where to look"
        ),
    ],
)
def test_two_processes_follow_the_curve_of_one(tmp_path, changes):
    """Sums in another order: the bound is on how far 50 steps spread a rounding error."""
    settings = TINY_PACA_RUN | dict(epochs=1, train_count=450, checkpoint_steps=0) | changes
    one = finish_training(1, tmp_path / "one", settings | {"shard": False})
    two = finish_training(2, tmp_path / "two", settings)
    assert len(losses(one)) >= 50
    assert losses(two) == pytest.approx(losses(one), abs=1e-5)
    assert losses(two, "val") == pytest.approx(losses(one, "val"), abs=1e-5)
    assert read_metrics(two)[-1]["top1"] == read_metrics(one)[-1]["top1"]


@pytest.mark.system
def test_evaluation_in_shares_is_exactly_that_of_one_process(tmp_path):
    """21 images in batches of 4 are 6 batches for 4 processes: two of them get one that does not count."""
    model = save_tiny_model(tmp_path / "model")
    words = ["evaluate", model, "shapes", "--count", "21", "--batch-size", "4", "--workers", "0", "--worst", "5"]
    found = {}
    for count in (1, 2, 4):
        ranks = Ranks(count, [*words, "--json", str(tmp_path / f"{count}.json")], tmp_path / f"logs-{count}")
        assert ranks.wait() == [0] * count, ranks.said_by_all()
        assert all(ranks.said(rank) == "" for rank in range(1, count)), "only the first process talks"
        found[count] = json.loads((tmp_path / f"{count}.json").read_text()) | {"speed": None, "images_per_second": None}
    assert found[1]["images"] == 21
    assert found[2] == found[1]
    assert found[4] == found[1]


@pytest.mark.system
def test_the_first_process_alone_talks_and_writes(tmp_path):
    """TensorBoard's files are named after the process that wrote them."""
    out = tmp_path / "run"
    ranks = start_training(2, out, TINY_PACA_RUN | dict(tensorboard=True))
    first = ranks.processes[0].pid
    assert ranks.wait() == [0, 0], ranks.said_by_all()
    assert ranks.said(1) == ""
    assert ranks.said(0).count("epoch    loss") == 1
    assert [path.name.split(".")[-2] for path in (out / "tensorboard").iterdir()] == [str(first)]
    assert [line["step"] for line in read_metrics(out) if line["split"] == "train"] == list(range(1, 11))


# ---- the same bits ------------------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("changes", [dict(count=3), dict(count=2, shard=True)], ids=["3 copies", "2 parts"])
def test_a_killed_process_ends_all_and_a_restart_ends_with_the_same_bits(tmp_path, changes):
    """Three: of two numbers the sum does not depend on the order, so two processes would not show how DDP adds."""
    count = changes.pop("count")
    settings = TINY_PACA_RUN | dict(ema=0.9, drop_path=0.2, batch_size=6, epochs=1) | changes
    whole = finish_training(count, tmp_path / "whole", settings)
    for step, rank in [(2, count - 1), (4, 0)]:
        ranks = start_training(count, tmp_path / "run", settings)
        ranks.wait_for_step(tmp_path / "run", step)
        ranks.send(rank, signal.SIGKILL)
        codes = ranks.wait(60)
        assert codes.pop(rank) == -signal.SIGKILL
        assert set(codes) == {LOST_CONTACT}, ranks.said_by_all()
        assert "Checkpoints are intact" in ranks.said_by_all() or rank == 0  # which here keeps the store
    assert fingerprint(finish_training(count, tmp_path / "run", settings)) == fingerprint(whole)


@pytest.mark.system
def test_a_signal_to_any_process_stops_all_at_the_same_step(tmp_path):
    settings = TINY_PACA_RUN | dict(ema=0.9, checkpoint_steps=0)
    whole = finish_training(2, tmp_path / "whole", settings)
    ranks = start_training(2, tmp_path / "run", settings)
    ranks.wait_for_step(tmp_path / "run", 3)
    ranks.send(1, signal.SIGTERM)
    start = time.monotonic()
    assert ranks.wait() == [128 + signal.SIGTERM] * 2
    assert time.monotonic() - start < 10
    assert "SIGTERM: checkpoint written at step" in ranks.said(0)
    assert fingerprint(finish_training(2, tmp_path / "run", settings)) == fingerprint(whole)


@pytest.mark.system
def test_a_run_goes_on_with_another_number_of_processes(tmp_path):
    """Two that hold a part each, then one, then three that hold a part each: the curve stays that of one process."""
    settings = TINY_PACA_RUN | dict(ema=0.9, epochs=3)
    one = finish_training(1, tmp_path / "one", settings)
    for count, step in [(2, 4), (1, 9), (3, None)]:
        ranks = start_training(count, tmp_path / "run", settings | {"shard": count > 1})
        if step is not None:
            ranks.wait_for_step(tmp_path / "run", step)
            ranks.send(0, signal.SIGTERM)
        assert ranks.wait() == [0 if step is None else 143] * count, ranks.said_by_all()
    assert losses(tmp_path / "run") == pytest.approx(losses(one), abs=1e-5)
    weights = [load_file(out / "final" / "model.safetensors") for out in (one, tmp_path / "run")]
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=1e-5, rtol=1e-4)
    assert len(list((tmp_path / "run" / "checkpoints" / "step-00000015").glob("tensors*"))) == 3
    assert load_model(tmp_path / "run").model(torch.zeros(1, 3, 32, 32)).shape == (1, 10)


# ---- one word when it fails ----------------------------------------------------------------------------------------


@pytest.mark.system
@pytest.mark.parametrize("rank", [0, 1])
def test_a_process_that_is_frozen_ends_all(tmp_path, rank):
    """Also while the others wait for it patiently, as in half of the steps here: every second is saved."""
    ranks = start_training(2, tmp_path / "run", TINY_PACA_RUN | dict(rank_timeout=6.0, epochs=50))
    ranks.wait_for_step(tmp_path / "run", 2)
    ranks.send(rank, signal.SIGSTOP)  # it answers no more, and does not end either
    start = time.monotonic()
    other = 1 - rank
    ranks.processes[other].join(60)
    assert ranks.processes[other].exitcode == LOST_CONTACT, ranks.said_by_all()
    assert time.monotonic() - start < 30
    assert "for 6 s" in ranks.said(other)
    assert ranks.wait(0)[rank] is None


def stuck() -> None:
    """The second process lives, but its training gets nowhere."""
    original = Training.loss

    def loss(self, piece, index):
        while self.world.rank == 1 and self.state.position.step == 3:
            time.sleep(1)
        return original(self, piece, index)

    Training.loss = loss


@pytest.mark.parametrize(
    ("message", "lost"),
    [
        ("Application timeout caused pair closure", True),  # gloo, of a pair that was waiting before
        ("[gloo/transport/tcp/pair.cc:534] Connection closed by peer [127.0.0.1]:4242", True),
        ("Timed out waiting 6000ms for recv operation to complete", True),
        ("NCCL communicator was aborted on rank 1.", True),
        ("mat1 and mat2 shapes cannot be multiplied", False),
    ],
)
def test_failed_exchanges_are_told_from_other_errors(message, lost):
    assert _lost_contact(RuntimeError(message)) == lost


@pytest.mark.system
def test_a_process_that_is_stuck_ends_all(tmp_path):
    ranks = start_training(2, tmp_path / "run", TINY_PACA_RUN | dict(rank_timeout=6.0), stuck)
    ranks.processes[0].join(60)
    assert ranks.processes[0].exitcode == LOST_CONTACT, ranks.said_by_all()
    assert "did not answer for 6 s" in ranks.said(0)
    assert ranks.wait(30) == [LOST_CONTACT, LOST_CONTACT], "the other one hears no heart beat any more"


def lose_data() -> None:
    """On the second process only."""

    def refuse(*_):
        raise InputError("there is no such folder")

    if os.environ["RANK"] == "1":
        sys.modules["vitreous.train"].open_splits = refuse


def nan_loss() -> None:
    """At step 3 of the second process."""
    original = Training.loss

    def loss(self, piece, index):
        value = original(self, piece, index)
        return value * float("nan") if self.world.rank == 1 and self.state.position.step == 3 else value

    Training.loss = loss


def bad_sample() -> None:
    """One that only the second process meets, in the middle of an epoch."""
    original = Training.loss

    def loss(self, piece, index):
        if self.world.rank == 1 and self.state.position.step == 3:
            raise InputError("file five.jpg is not an image")
        return original(self, piece, index)

    Training.loss = loss


@pytest.mark.system
@pytest.mark.parametrize(
    ("changes", "before", "message", "codes"),
    [
        (dict(model="paca_tny"), None, "vitreous: unknown model 'paca_tny'", {2}),
        (dict(lr=-1.0), None, "vitreous: lr -1.0 cannot be used", {2}),
        (dict(no_such_option=1), None, "no-such-option", {2}),
        (dict(data="nowhere"), None, "vitreous: cannot use data 'nowhere'", {2}),
        (dict(batch_size=4, accumulate=3), None, "4 images in 3 pieces leaves 1 at a time for 2 processes", {2}),
        (dict(batch_size=2, mixup=0.1), None, "which need 3 (mixup and cutmix mix images in pairs)", {2}),
        (dict(device="cuda:1"), None, "device 'cuda:1' cannot be shared by several processes", {2}),
        (dict(), lose_data, "vitreous: process 1 of 2: there is no such folder", {2}),
        (dict(), bad_sample, "vitreous: process 1 of 2: file five.jpg is not an image", {2, LOST_CONTACT}),
        (dict(), nan_loss, "vitreous: the loss is nan at step 3 (epoch 1), on training samples", {2}),
    ],
)
def test_what_cannot_be_used_is_said_once_and_ends_all(tmp_path, changes, before, message, codes):
    ranks = start_training(2, tmp_path / "run", TINY_PACA_RUN | changes, before)
    assert set(ranks.wait()) == codes, ranks.said_by_all()
    said = ranks.said_by_all()
    assert message in said
    assert said.count("vitreous: ") == (0 if "option" in message else 1)
    assert "Traceback" not in said


@pytest.mark.system
def test_a_folder_in_use_is_refused_to_all(tmp_path):
    with RunFolder(tmp_path / "run"):
        ranks = start_training(2, tmp_path / "run", TINY_PACA_RUN)
        assert ranks.wait() == [2, 2]
    assert ranks.said_by_all().count("is in use by process") == 1


def test_meetings_on_one_store_never_include_the_dead(monkeypatch):
    """torchrun keeps the store over restarts: the numbers of processes killed on their way are still there."""
    limit = timedelta(seconds=30)
    monkeypatch.setattr(distributed, "RENDEZVOUS_TIMEOUT", limit)
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False, timeout=limit)
    names = set()
    for size in (2, 2, 4, 3):
        server.set("vitreous/present/1", "dead")
        found: dict[int, str] = {}

        def join(rank: int, size: int = size, found: dict[int, str] = found) -> None:
            time.sleep(0.1 * (rank == 1))  # the others have seen the dead one by then
            found[rank] = _rendezvous(TCPStore("127.0.0.1", server.port, is_master=False, timeout=limit), rank, size)

        threads = [threading.Thread(target=join, args=(rank,)) for rank in range(size)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert len(found) == size
        assert len(set(found.values())) == 1, "all are at the same meeting"
        names |= set(found.values())
    assert len(names) == 4, "and never at an earlier one"


def test_who_waits_in_vain_is_told(monkeypatch):
    monkeypatch.setattr(distributed, "RENDEZVOUS_TIMEOUT", timedelta(seconds=0.3))
    server = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    with pytest.raises(DistError, match="did not join"):
        _rendezvous(server, 0, 2)


def test_processes_without_torchrun_are_told_how(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="torchrun --nproc-per-node 2"), processes("cpu"):
        pass


def test_splitting_among_one_process_is_refused(tmp_path):
    with pytest.raises(InputError, match="there is only one; start more"):
        train(**TINY_PACA_RUN, shard=True, out=tmp_path / "run")
