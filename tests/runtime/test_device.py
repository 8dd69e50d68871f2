"""Memory that is kept from step to step, and instructions that a machine only announces."""

import os
import signal
import subprocess
import sys

import pytest
import torch

from vitreous.runtime import device

PROGRAM = """
import resource, torch
from vitreous.runtime.device import keep_freed_memory

def new_pages():
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(20):
        torch.full((16 * 2**20,), 1.0)  # 64 MB
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before

before = new_pages()
keep_freed_memory(torch.device("cpu"))
torch.full((16 * 2**20,), 1.0)
print(before, new_pages())
"""


@pytest.mark.system
@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_a_tensor_takes_the_place_of_one_that_is_gone():
    """In a process of its own, for none can go back. 64 MB are 16,384 pages, or 32 where the system makes them huge."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, result.stdout.split())
    assert before >= 20 * 32
    assert after < before / 10  # one of the 20 may not fit into the gap that the one before left


@pytest.mark.parametrize(("ends", "limit"), [(-signal.SIGILL, "AVX512_CORE_FP16"), (0, None), (1, None)])
def test_matrix_tiles_that_would_end_the_process_are_avoided(
    ends: int, limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the machine really does is tried in another process, whose end is made up here."""
    monkeypatch.delenv(device.ONEDNN_ISA_VARIABLE, raising=False)
    monkeypatch.setattr(torch.cpu, "_is_amx_tile_supported", lambda: True)
    monkeypatch.setattr(subprocess, "run", lambda command, **_: subprocess.CompletedProcess(command, ends))
    device.avoid_broken_amx.__wrapped__()
    assert os.environ.get(device.ONEDNN_ISA_VARIABLE) == limit


def test_a_limit_that_was_given_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(device.ONEDNN_ISA_VARIABLE, "AVX2")
    monkeypatch.setattr(subprocess, "run", None)  # calling it would fail
    device.avoid_broken_amx.__wrapped__()
    assert os.environ[device.ONEDNN_ISA_VARIABLE] == "AVX2"
