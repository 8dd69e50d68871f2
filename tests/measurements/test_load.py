"""The competing load is there within the block, and gone after it however it ends."""

import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from vitreous.measurements.load import competing_load, usable_cores

pytestmark = pytest.mark.system


def alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    try:  # a process whose parent is gone and that nobody has asked for yet
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def test_one_process_for_each_core_and_none_afterwards() -> None:
    with competing_load() as pids:
        assert len(pids) == usable_cores()
        assert all(map(alive, pids))
    assert not any(map(alive, pids))


def test_it_is_gone_after_ctrl_c() -> None:
    with pytest.raises(KeyboardInterrupt), competing_load(1) as pids:
        raise KeyboardInterrupt
    assert not any(map(alive, pids))


def test_it_ends_by_itself_when_nobody_is_left_to_stop_it() -> None:
    code = "import os\nfrom vitreous.measurements.load import competing_load\n"
    code += "with competing_load(1) as pids:\n    print(*pids, flush=True)\n    os.kill(os.getpid(), 9)\n"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)
    pid, deadline = int(done.stdout), time.monotonic() + 20
    while alive(pid) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert not alive(pid)
