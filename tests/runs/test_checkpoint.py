import random
import shutil

import pytest
import torch

from vitreous.errors import InputError
from vitreous.files import manifest, storage
from vitreous.files.storage import DamagedError, recover_folders
from vitreous.runs.checkpoint import LATEST, load_checkpoint, save_checkpoint, save_record


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

    target = "vitreous.runs.checkpoint.save_file" if stage == "save_file" else f"os.{stage}"
    with monkeypatch.context() as patch:
        patch.setattr(target, fail)
        with pytest.raises((InputError, OSError), match="No space left"):
            save_checkpoint(folder, 30, tensors(30), {})
    recover_folders(folder)
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
    recover_folders(folder)
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


def damage(generation) -> None:
    path = generation / "tensors.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def test_a_run_that_fell_back_can_fall_back_again(folder):
    """What is damaged is no reserve: the next save removes it, and keeps the one that was resumed from."""
    damage(folder / "step-00000020")
    assert load_checkpoint(folder).step == 10
    save_checkpoint(folder, 14, tensors(14), {})
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000010", "step-00000014"]
    damage(folder / "step-00000014")
    found = load_checkpoint(folder)
    assert (found.step, len(found.notes)) == (10, 1)
    assert torch.equal(found.tensors["weights"], tensors(10)["weights"])


def test_a_reserve_that_was_damaged_since_is_not_counted(folder):
    save_checkpoint(folder, 30, tensors(30), {}, keep=3)
    damage(folder / "step-00000030")  # nobody has read it since
    save_checkpoint(folder, 40, tensors(40), {})
    assert sorted(path.name for path in folder.glob("step-*")) == ["step-00000020", "step-00000040"]
    damage(folder / "step-00000040")
    assert load_checkpoint(folder).step == 20


CALLS = ("rename", "replace", "unlink", "rmdir", "fsync", "open", "mkdir", "link")


class Killed(BaseException):
    """As a kill: nothing that handles errors sees it."""


@pytest.mark.parametrize("before", [True, False], ids=["before the call", "after it"])
def test_a_kill_at_any_call_leaves_whole_generations(tmp_path, monkeypatch, before):
    """Of the system, while a generation is written, LATEST moved, and older ones removed."""
    moment, finished = 0, False
    while not finished:
        place, seen = tmp_path / str(moment), []
        for step in (10, 20):
            save_checkpoint(place, step, tensors(step), {})

        def counted(original, seen=seen, moment=moment):
            def call(*args, **kwargs):
                seen.append(original)
                kill = len(seen) == moment
                if kill and before:
                    raise Killed
                try:
                    return original(*args, **kwargs)
                finally:
                    if kill:
                        raise Killed

            return call

        with monkeypatch.context() as patch:
            for name in CALLS:
                patch.setattr(storage.os, name, counted(getattr(storage.os, name)))
            try:
                save_checkpoint(place, 30, tensors(30), {})
                finished = moment > 0
            except Killed:
                pass
        for generation in place.glob("step-*"):
            assert {path.name for path in generation.iterdir()} == {
                "manifest.json",
                "record.json",
                "tensors.safetensors",
            }
        recover_folders(place)
        found = load_checkpoint(place)
        assert found.step in (20, 30)
        assert torch.equal(found.tensors["weights"], tensors(found.step)["weights"])
        assert not [note for note in found.notes if "cannot be used" in note]
        save_checkpoint(place, 40, tensors(40), {})
        damage(place / "step-00000040")
        assert load_checkpoint(place).step == found.step
        assert not list(place.glob(".*"))
        moment += 1
    assert moment > 15, "pruning was reached"


def test_another_record_for_the_same_tensors(folder):
    before = (folder / "step-00000020" / "tensors.safetensors").stat()
    assert save_record(folder, 20, {"note": "later"})
    found = load_checkpoint(folder)
    assert (found.step, found.record, found.notes) == (20, {"note": "later"}, ())
    assert torch.equal(found.tensors["weights"], tensors(20)["weights"])
    after = (folder / "step-00000020" / "tensors.safetensors").stat()
    assert (after.st_ino, after.st_nlink) == (before.st_ino, 1)
    assert not save_record(folder, 30, {}), "there is no such step"


def test_another_record_does_not_hide_damage(folder):
    path = folder / "step-00000020" / "tensors.safetensors"
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.write_bytes(content)
    assert save_record(folder, 20, {})
    assert load_checkpoint(folder).step == 10


def test_a_file_system_without_links(folder, monkeypatch):
    def refuse(*_):
        raise OSError(1, "Operation not permitted")

    monkeypatch.setattr("os.link", refuse)
    assert not save_record(folder, 20, {"note": "later"})
    assert load_checkpoint(folder).record == {"note": 20}
    assert not list(folder.glob(".*"))


def test_a_file_that_cannot_be_read_falls_back(folder, monkeypatch):
    original = manifest.sha256

    def unreadable(path):
        if "step-00000020" in str(path):
            raise OSError(5, "Input/output error")
        return original(path)

    monkeypatch.setattr(manifest, "sha256", unreadable)
    found = load_checkpoint(folder)
    assert found.step == 10
    assert "Input/output error" in found.notes[0]


@pytest.mark.parametrize("record", ["[]", "3", '{"step": "x"}', '{"step": null}'])
def test_a_record_that_is_not_ours_falls_back(folder, record):
    generation = folder / "step-00000020"
    (generation / "record.json").write_text(record)
    files = manifest.manifest_of([generation / name for name in ("record.json", "tensors.safetensors")])
    storage.write_json(generation / "manifest.json", files)
    assert load_checkpoint(folder).step == 10
