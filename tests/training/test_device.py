"""Memory that is kept from step to step."""

import subprocess
import sys

import pytest

PROGRAM = """
import resource, torch
from vitreous.training.device import keep_freed_memory

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


@pytest.mark.skipif(sys.platform != "linux", reason="only glibc can be told")
def test_a_tensor_takes_the_place_of_one_that_is_gone():
    """In a process of its own, for none can go back. 64 MB are 16,384 pages, or 32 where the system makes them huge."""
    result = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=True)
    before, after = map(int, result.stdout.split())
    assert before >= 20 * 32
    assert after < before / 10  # one of the 20 may not fit into the gap that the one before left
