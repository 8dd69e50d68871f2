"""Training on files: every layout, with damaged pictures, lists of pictures to leave out, and no network."""

import io
import json
import pickle
import re
import shlex
import shutil
import signal
import subprocess
import sys
import tarfile
from pathlib import Path

import datasets
import numpy as np
import pytest

import vitreous_command
from tests.support.tiny_data import DRAWN_COUNTS, as_folders, as_png, drawn_pictures
from tests.support.tiny_runs import PLAIN, TINY, fingerprint, finish, interrupt
from vitreous.errors import InputError
from vitreous.runs.run_folder import read_metrics
from vitreous.train import train

datasets.disable_progress_bars()
BAD = {"train": (0, 17), "val": (5,)}  # 5 % of each, by place in the sorted list of files
FILES = dict(PLAIN, train_count=None, val_count=None)
# Everything random is on, so that a sample that differs shows.
LONG = dict(FILES, epochs=3, mixup=0.5, augment="rand-m5-n1", erasing=0.3, batch_size=8, checkpoint_steps=2)


def test_one_class_is_refused_before_anything_is_written(tmp_path, capsys):
    root = as_folders(tmp_path / "photos")
    for split in DRAWN_COUNTS:
        for folder in sorted((root / split).iterdir())[1:]:
            shutil.rmtree(folder)
    out = tmp_path / "run"
    assert vitreous_command.main(["train", "test_vit", str(root), "--out", str(out), "--workers", "0"]) == 2
    said = capsys.readouterr().err
    assert re.search(r"has one class, '\d', so every answer would be right; a classifier needs two or more: add ", said)
    assert said.count("\n") == 1
    assert not out.exists()
    assert vitreous_command.main(["check", str(root), "--no-write"]) == 1
    assert "problem: there is one class; a classifier needs two or more" in capsys.readouterr().out


def test_the_next_command_can_be_copied_whatever_the_folders_are_called(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    as_folders(tmp_path / "my photos" / "it's $5")
    train(**dict(FILES, data="my photos/it's $5", out=Path("runs of 'mine'")))
    (line,) = re.findall(r"next: (.*)", capsys.readouterr().out)
    program, *words = shlex.split(line)
    assert (program, words) == ("vitreous", ["evaluate", "runs of 'mine'", "my photos/it's $5"])
    assert vitreous_command.main([*words, "--workers", "0", "--device", "cpu"]) == 0


def test_the_list_of_check_can_be_given_to_train_as_it_is_printed(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    as_folders(tmp_path / "photos")
    vitreous_command.main(["check", "photos", "--workers", "0", "--out", "my list.txt"])
    (words,) = re.findall(r"use it as (.*)", capsys.readouterr().out)
    assert shlex.split(words) == ["--quarantine", "my list.txt"]


def as_shards(root: Path) -> Path:
    root.mkdir()
    for split in DRAWN_COUNTS:
        with tarfile.open(root / f"{split}-000.tar", "w") as shard:
            for number, (pixels, label) in enumerate(drawn_pictures(split)):
                for kind, content in (("png", as_png(pixels)), ("cls", str(label).encode())):
                    member = tarfile.TarInfo(f"{number:02d}.{kind}")
                    member.size = len(content)
                    shard.addfile(member, io.BytesIO(content))
    return root


def as_arrays(root: Path) -> Path:
    root.mkdir()
    content = {}
    for split in DRAWN_COUNTS:
        images, labels = zip(*drawn_pictures(split), strict=True)
        content |= {f"x_{split}": np.stack(images), f"y_{split}": np.array(labels)}
    np.savez(root / "toy.npz", **content)
    return root / "toy.npz"


def as_cifar(root: Path) -> Path:
    folder = root / "cifar-100-python"
    folder.mkdir(parents=True)
    (folder / "meta").write_bytes(pickle.dumps({b"fine_label_names": [f"{n}".encode() for n in range(10)]}, 2))
    for split, file in (("train", "train"), ("val", "test")):
        images, labels = zip(*drawn_pictures(split), strict=True)
        rows = np.stack(images).transpose(0, 3, 1, 2).reshape(len(images), -1)
        (folder / file).write_bytes(
            pickle.dumps({b"data": np.ascontiguousarray(rows), b"fine_labels": list(labels)}, 2)
        )
    return root


def as_hugging_face(root: Path) -> Path:
    names = datasets.ClassLabel(names=[str(n) for n in range(10)])
    features = datasets.Features(image=datasets.Image(), label=names)
    content = {}
    for split, name in (("train", "train"), ("val", "validation")):
        images, labels = zip(*drawn_pictures(split), strict=True)
        rows = {"image": [{"bytes": as_png(pixels), "path": None} for pixels in images], "label": list(labels)}
        content[name] = datasets.Dataset.from_dict(rows, features)
    datasets.DatasetDict(content).save_to_disk(root)
    return root


@pytest.mark.parametrize("write", [as_shards, as_arrays, as_cifar, as_hugging_face], ids=lambda write: write.__name__)
def test_every_layout_trains_on_the_same_pictures(tmp_path, write):
    """Same pictures in the same order with the same classes: the layout makes no difference to the bits."""
    expected = train(**FILES | dict(data=str(as_arrays(tmp_path / "arrays"))), out=tmp_path / "expected")
    command = ["train", "test_efficientnet", str(write(tmp_path / "data")), "--out", str(tmp_path / "run")]
    options = {name: value for name, value in FILES.items() if name not in ("model", "data") and value is not None}
    assert vitreous_command.main(command + [word for pair in options.items() for word in as_option(*pair)]) == 0
    assert fingerprint(tmp_path / "run") == fingerprint(expected)


def as_option(name: str, value: object) -> list[str]:
    return [f"--{name.replace('_', '-')}", str(value)]


# ---- damaged pictures ------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def damaged(tmp_path_factory) -> Path:
    root = as_folders(tmp_path_factory.mktemp("damaged") / "data")
    for split, places in BAD.items():
        files = sorted((root / split).rglob("*.png"))
        for place in places:
            files[place].write_bytes(files[place].read_bytes()[:200])
    return root


def planted(root: Path) -> set[str]:
    return {
        sorted((root / split).rglob("*.png"))[place].relative_to(root).as_posix()
        for split, places in BAD.items()
        for place in places
    }


def listed(out: Path) -> list[str]:
    return [json.loads(line)["name"] for line in (out / "bad_images.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def whole(damaged, tmp_path_factory) -> Path:
    return train(**TINY | LONG | dict(data=str(damaged)), out=tmp_path_factory.mktemp("whole") / "run")


def test_every_damaged_picture_is_counted_and_named(damaged, whole):
    assert sorted(listed(whole)) == sorted(planted(damaged))
    lines = read_metrics(whole)
    assert [line["bad_images"] for line in lines if line["split"] == "val"] == [3, 3, 3]


@pytest.mark.system
def test_workers_change_nothing_about_it(damaged, whole, tmp_path):
    out = finish(tmp_path / "run", **LONG | dict(data=str(damaged), workers=2))
    assert fingerprint(out) == fingerprint(whole)
    assert listed(out) == listed(whole)


@pytest.mark.system
def test_kills_change_nothing_about_it(damaged, whole, tmp_path):
    out, changes = tmp_path / "run", LONG | dict(data=str(damaged))
    for step in (1, 4, 9):
        assert interrupt(out, step, signal.SIGKILL, **changes) == -signal.SIGKILL
    finish(out, **changes)
    assert fingerprint(out) == fingerprint(whole)
    assert sorted(listed(out)) == sorted(planted(damaged))


def test_too_many_stop_the_run_and_a_higher_limit_continues_it(damaged, tmp_path):
    settings = FILES | dict(data=str(damaged), out=tmp_path / "run")
    with pytest.raises(InputError, match=r"2 of the 40 train images cannot be read .*--max-corrupt allows 3\.0%"):
        train(**settings, max_corrupt=0.03)
    assert len(listed(tmp_path / "run")) == 2
    train(**settings)
    assert sorted(listed(tmp_path / "run")) == sorted(planted(damaged))


# ---- the list of pictures to leave out -----------------------------------------------------------------------


def test_check_train_evaluate(tmp_path, capsys):
    root = as_folders(tmp_path / "data")
    file = sorted((root / "train").rglob("*.png"))[3]
    file.write_bytes(b"nothing")
    settings = FILES | dict(data=str(root))
    before = train(**settings, out=tmp_path / "before")
    assert len(listed(before)) == 1
    assert vitreous_command.main(["check", str(root), "--workers", "0"]) == 1
    capsys.readouterr()
    after = train(**settings, out=tmp_path / "after")
    assert f"data: 1 train images left out by {root / 'quarantine.txt'}" in capsys.readouterr().out
    assert not (after / "bad_images.jsonl").exists()
    assert " without 1 (" in json.loads((after / "run.json").read_text())["data"]["train"]
    with pytest.raises(InputError, match=r"data of split train: .* without 1"):
        train(**settings, out=before)
    (root / "quarantine.txt").rename(tmp_path / "list.txt")
    with pytest.raises(InputError, match="data of split train"):
        train(**settings, out=after)
    train(**settings, out=after, quarantine=str(tmp_path / "list.txt"))
    assert "is finished" in capsys.readouterr().out


# ---- without a network -----------------------------------------------------------------------------------------

OFFLINE = """
import socket, sys
from pathlib import Path

def refuse(*_, **__):
    raise AssertionError("the network was asked for")

class Local(socket.socket):
    def connect(self, address):
        if self.family != socket.AF_UNIX:  # processes on this machine talk through such sockets
            refuse()
        return super().connect(address)

socket.socket, socket.create_connection, socket.getaddrinfo = Local, refuse, refuse

import vitreous

out, photo = sys.argv[1:]
options = dict(workers=1, device="cpu")
vitreous.train("paca_b0", "shapes", out=out, size=32, epochs=1, batch_size=8, train_count=16, val_count=10, **options)
vitreous.evaluate(out, "shapes", count=10, **options)
vitreous.predict(out, (photo, "shapes:val:0-1"), device="cpu")
vitreous.explain(out, ("shapes:val:0",), out=Path(out) / "explanation", top_k=2, device="cpu")
vitreous.info("paca_b0")
vitreous.create_model("xcit_nano_12_p16")
"""


@pytest.mark.system
def test_nothing_asks_for_the_network(tmp_path):
    photo = sorted((as_folders(tmp_path / "data") / "val").rglob("*.png"))[0]
    command = [sys.executable, "-c", OFFLINE, str(tmp_path / "run"), str(photo)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, cwd=tmp_path)
    assert done.returncode == 0, done.stderr
