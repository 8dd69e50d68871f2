"""Shared by all tests: where reference data lies, and quiet, reproducible torch."""

import os
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


@pytest.fixture(scope="session")
def shared() -> Path:
    """Reference data kept beside the repository; a plain clone has none."""
    if not SHARED.is_dir():
        pytest.skip("reference data not found: ../shared does not exist beside this clone")
    return SHARED
