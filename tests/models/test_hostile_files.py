"""Weights from strangers: pickles that want to run something, and safetensors whose header lies."""

import builtins
import json
import os
import pickle
import random
import resource
import runpy
import shutil
import subprocess
from multiprocessing import get_context
from pathlib import Path

import pytest
import torch
from safetensors.torch import save

from vitreous.errors import InputError
from vitreous.models.weights import read_state


class Hostile:
    """Unpickling it calls `function`."""

    def __init__(self, function, *args) -> None:
        self.call = function, args

    def __reduce__(self):
        return self.call


def hostile(trace: Path) -> list[Hostile]:
    """Ten ways to leave a trace."""
    script = trace.with_name("script.py")
    script.write_text(f"open({str(trace)!r}, 'w')")
    code = script.read_text()
    return [
        Hostile(os.system, f"touch {trace}"),
        Hostile(os.mkdir, str(trace)),
        Hostile(os.popen, f"touch {trace}"),
        Hostile(subprocess.call, ["touch", str(trace)]),
        Hostile(subprocess.Popen, ["touch", str(trace)]),
        Hostile(builtins.exec, code),
        Hostile(builtins.eval, code),
        Hostile(builtins.open, str(trace), "w"),
        Hostile(shutil.copy, str(script), str(trace)),
        Hostile(runpy.run_path, str(script)),
    ]


def as_pickle(content: object, path: Path) -> None:
    path.write_bytes(pickle.dumps(content, protocol=2))


def as_checkpoint(content: object, path: Path) -> None:
    torch.save({"state_dict": {"head.weight": torch.zeros(2)}, "epoch": content}, path)


@pytest.mark.parametrize("write", [as_pickle, torch.save, as_checkpoint], ids=lambda write: write.__name__)
def test_thirty_hostile_pickles(tmp_path, write):
    trace, file = tmp_path / "was-run", tmp_path / "evil.pth"
    for attack in hostile(trace):
        write(attack, file)
        with pytest.raises(InputError, match="code in a checkpoint is never run"):
            read_state(file)
        assert not trace.exists(), attack.call
    as_pickle(attack, file)
    pickle.loads(file.read_bytes())
    assert trace.exists(), "the attack is one"


def mutated(header: bytes, rng: random.Random) -> bytes:
    """A header with one to three accidents or lies, and its length, sometimes a wrong one, before it."""
    numbers = [-1, 0, 1, 7, 2**31, 2**32, 2**53, 2**63, 2**64 - 1, 10**30, 0.5, None, "8", [], {}]
    for _ in range(rng.randint(1, 3)):
        kind = rng.randrange(5)
        if kind == 0:
            place = rng.randrange(len(header))
            header = header[:place] + bytes([rng.randrange(256)]) + header[place + 1 :]
        elif kind == 1:
            place = rng.randrange(len(header))
            header = header[:place] + header[place + rng.randint(1, 9) :] or b"{"
        else:
            try:
                entries = json.loads(header)
                name = rng.choice(list(entries))
                if kind == 2:
                    entries[name][rng.choice(["shape", "data_offsets"])] = rng.choices(numbers, k=rng.randint(0, 5))
                elif kind == 3:
                    entries[name]["dtype"] = rng.choice(["F64", "BOOL", "F8_E4M3", "U64", "X", 3])
                else:
                    entries[rng.choice(["", "head.weight", "\0", "é" * 500])] = entries[name]
            except (ValueError, IndexError, TypeError, KeyError):
                continue
            header = json.dumps(entries).encode()
    length = len(header) if rng.random() < 0.8 else rng.choice([0, 1, len(header) - 1, 2**20, 2**40, 2**63, 2**64 - 1])
    return length.to_bytes(8, "little") + header


def read_all(folder: Path, answer) -> None:
    """In a process that may take 100 MB more than it has."""
    rng, file, counts = random.Random(0), folder / "model.safetensors", {"read": 0, "refused": 0}
    whole = save({"a": torch.zeros(3, 4), "b": torch.zeros(5, dtype=torch.int64), "head.weight": torch.zeros(2)})
    end = 8 + int.from_bytes(whole[:8], "little")
    pages = int(Path("/proc/self/statm").read_text().split()[0])
    most = pages * resource.getpagesize() + 100 * 2**20
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    for _ in range(10_000):
        file.write_bytes(mutated(whole[8:end], rng) + whole[end:])
        try:
            read_state(file)
            counts["read"] += 1
        except InputError:
            counts["refused"] += 1
    answer.send(counts)


@pytest.mark.system
def test_ten_thousand_mutated_headers(tmp_path):
    context = get_context("fork")
    receiver, sender = context.Pipe(duplex=False)
    process = context.Process(target=read_all, args=(tmp_path, sender))
    process.start()
    process.join(300)
    assert process.exitcode == 0, "it neither crashed nor wanted more memory"
    counts = receiver.recv()
    assert sum(counts.values()) == 10_000
    assert min(counts.values()) > 100, counts
