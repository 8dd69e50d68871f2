import random
import shutil

import pytest
import torch

from vitreous.errors import InputError
from vitreous.manifest import DamagedError
from vitreous.training import storage
from vitreous.training.checkpoint import LATEST, load_checkpoint, save_checkpoint
from vitreous.training.storage import recover


def tensors(step: int) -> dict[str, torch.Tensor]:
    return {"weights": torch.full((50, 7), float(step)), "counter": torch.tensor(step)}


@pytest.fixture
def folder(tmp_path):
    for step in (10, 20):
        save_checkpoint(tmp_path, step, tensors(step), {"note": step})
    return tmp_path


def test_round_trip_and_two_generations(folder):
    save_checkpoint(folder, 30, tensors(30), {"note": 30})
    assert sorted(path.name for path in folder.iterdir()) == [LATEST, "step-00000020", "step-00000030"]
    assert (folder / LATEST).read_text() == "step-00000030\n"
    found = load_checkpoint(folder)
    assert (found.step, found.record, found.notes) == (30, {"note": 30}, ())
    assert torch.equal(found.tensors["weights"], tensors(30)["weights"])


def test_no_checkpoint_is_none(tmp_path):
    assert load_checkpoint(tmp_path) is None
    assert load_checkpoint(tmp_path / "absent") is None


def test_every_flipped_bit_is_found(folder):
    rng = random.Random(0)
    files = sorted(path for path in (folder / "step-00000020").iterdir())
    whole = {path: path.read_bytes() for path in files}
    for path in files:
        for _ in range(500 // len(files) + 1):
            damaged = bytearray(whole[path])
            damaged[rng.randrange(len(damaged))] ^= 1 << rng.randrange(8)
            path.write_bytes(damaged)
            found = load_checkpoint(folder)
            assert found.step == 10, f"a flipped bit in {path.name} went unnoticed"
            assert "step-00000020 cannot be used" in found.notes[0]
        path.write_bytes(whole[path])
    assert load_checkpoint(folder).step == 20


@pytest.mark.parametrize("name", ["tensors.safetensors", "record.json", "manifest.json"])
@pytest.mark.parametrize("keep", [0, 10, None])
def test_torn_empty_and_missing_files_fall_back(folder, name, keep):
    path = folder / "step-00000020" / name
    if keep is None:
        path.unlink()
    else:
        path.write_bytes(path.read_bytes()[:keep])
    found = load_checkpoint(folder)
    assert found.step == 10
    assert name in found.notes[0]


def test_manifest_of_another_generation_falls_back(folder):
    shutil.copy(folder / "step-00000010" / "manifest.json", folder / "step-00000020" / "manifest.json")
    assert load_checkpoint(folder).step == 10


@pytest.mark.parametrize("content", [b"", b"step-00000099\n", b"\xff\xfe"])
def test_lost_rename_is_reported(folder, content):
    (folder / LATEST).write_bytes(content)
    found = load_checkpoint(folder)
    assert found.step == 20
    assert "is not there" in found.notes[0]


def test_all_damaged_is_an_error_not_a_fresh_start(folder):
    for path in folder.glob("step-*/record.json"):
        path.write_text("")
    with pytest.raises(DamagedError, match=r"no checkpoint in .* can be used"):
        load_checkpoint(folder)


@pytest.mark.parametrize("stage", ["save_file", "fsync", "rename"])
def test_a_write_that_fails_leaves_the_old_generations(folder, monkeypatch, stage):
    def fail(*_, **__):
        raise OSError(28, "No space left on device")

    target = "vitreous.training.checkpoint.save_file" if stage == "save_file" else f"os.{stage}"
    with monkeypatch.context() as patch:
        patch.setattr(target, fail)
        with pytest.raises((InputError, OSError), match="No space left"):
            save_checkpoint(folder, 30, tensors(30), {})
    recover(folder)
    assert load_checkpoint(folder).step == 20
    assert not list(folder.glob(".*"))


def test_replacing_a_generation_survives_a_kill_between_the_renames(folder, monkeypatch):
    """The same step is saved twice when a run is stopped during validation."""
    rename, calls = storage.os.rename, []

    def killed_at_the_second(source, target):
        calls.append(target)
        if len(calls) == 2:
            raise KeyboardInterrupt
        rename(source, target)

    with monkeypatch.context() as patch:
        patch.setattr(storage.os, "rename", killed_at_the_second)
        with pytest.raises(KeyboardInterrupt):
            save_checkpoint(folder, 20, tensors(21), {})
    recover(folder)
    found = load_checkpoint(folder)
    assert (found.step, found.notes) == (20, ())
    assert torch.equal(found.tensors["weights"], tensors(20)["weights"])
    save_checkpoint(folder, 20, tensors(21), {})
    assert torch.equal(load_checkpoint(folder).tensors["weights"], tensors(21)["weights"])


def test_a_pickle_is_refused_without_being_opened(folder):
    torch.save({"a": 1}, folder / "step-00000020" / "tensors.safetensors")
    assert load_checkpoint(folder).step == 10


def test_the_last_one_has_none_before_it(folder):
    for path in folder.glob("step-*/record.json"):
        path.write_text("")
    with pytest.raises(DamagedError) as reason:
        load_checkpoint(folder)
    assert str(reason.value).count("falling back to the one before") == 1
