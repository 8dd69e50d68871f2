"""Shared by all tests: where reference data lies, and quiet, reproducible torch."""

import os
import subprocess
import sys
from multiprocessing import popen_forkserver
from pathlib import Path

import pytest
import torch

from vitreous.runtime.device import avoid_broken_amx

# Tests run in parallel processes; threads of one process would only fight those of the other for the cores.
torch.set_num_threads(1)
os.environ.setdefault("OMP_NUM_THREADS", "1")  # of commands that tests start
avoid_broken_amx()  # for tests that compute in half precision without our verbs, and for commands that tests start

SHARED = Path(__file__).parents[2] / "shared"


@pytest.fixture(autouse=True)
def _reproducible():
    torch.manual_seed(0)


@pytest.fixture(autouse=True)
def _no_other_python(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Only a test marked `system` may start Python once more. Workers of a loader, which are forks, are free to all."""
    if request.node.get_closest_marker("system") is None:
        start = subprocess.Popen.__init__

        def checked_start(process: subprocess.Popen, arguments: object, *more: object, **options: object) -> None:
            if isinstance(arguments, list) and sys.executable in arguments:
                pytest.fail("this test starts Python and is not marked `system`")
            start(process, arguments, *more, **options)

        def refuse(_: object) -> None:
            pytest.fail("this test starts a process by fork server and is not marked `system`")

        monkeypatch.setattr(subprocess.Popen, "__init__", checked_start)
        monkeypatch.setattr(popen_forkserver.Popen, "_launch", refuse)


@pytest.fixture
def two_threads():
    """For what only happens where torch has more than one."""
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data kept beside the repository; a plain clone has none."""
    if not SHARED.is_dir():
        pytest.skip("reference data not found: ../shared does not exist beside this clone")
    return SHARED
