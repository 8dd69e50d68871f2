"""The machine that figures belong to: hardware, versions, threads, load; its free memory; its matrix products."""

import os
import platform
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path

import timm
import torch

from vitreous.layers.inference import product
from vitreous.measurements.load import usable_cores
from vitreous.version import __version__

PRODUCT_SIDE = 2048  # of the square matrices whose product is the measured peak
OTHER_PROGRAMS = ("onnxruntime", "openvino")  # that run models; loaded only where they do
CGROUP = Path("/sys/fs/cgroup")


@dataclass(frozen=True)
class Machine:
    """What every figure carries."""

    processor: str
    cores: int
    memory_bytes: int | None
    system: str
    device: str
    threads: int
    precision: str
    versions: dict[str, str]

    def __str__(self) -> str:
        versions = ", ".join(f"{name} {version}" for name, version in self.versions.items())
        held = "" if self.memory_bytes is None else f", {self.memory_bytes / 2**30:.0f} GB"
        where = "" if self.device == "cpu" else f", on {self.device}"
        threads = f"{self.threads} thread{'s' if self.threads != 1 else ''}"
        return f"{self.processor}, {self.cores} cores{held}{where}, {threads}, {self.precision}; {versions}"

    def row(self) -> dict[str, object]:
        return asdict(self)


def this_machine(device: torch.device) -> Machine:
    return Machine(
        processor=_processor(),
        cores=usable_cores(),
        memory_bytes=_meminfo("MemTotal"),
        system=f"{platform.system()} {platform.release()}",
        device=torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
        threads=torch.get_num_threads(),
        precision="fp32",
        versions={
            "vitreous": __version__,
            "torch": torch.__version__,
            "timm": timm.__version__,
            **{name: sys.modules[name].__version__ for name in OTHER_PROGRAMS if name in sys.modules},
            "Python": platform.python_version(),
        },
    )


def _processor() -> str:
    try:
        lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines()
        return next(line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def _meminfo(name: str) -> int | None:
    """Bytes of an entry of /proc/meminfo; None where there is none."""
    try:
        lines = Path("/proc/meminfo").read_text(encoding="utf-8").splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(f"{name}:"))
    except (OSError, StopIteration, ValueError):
        return None


def load_average() -> float | None:
    """Programs that wanted a core, on average over the last minute; None where the system does not tell."""
    return round(os.getloadavg()[0], 2) if hasattr(os, "getloadavg") else None


def free_bytes() -> int | None:
    """Memory that this process can still take, also within a container; None where the system does not tell."""
    left = [_meminfo("MemAvailable"), _container_bytes()]
    return min((count for count in left if count is not None), default=None)


def free_on(device: torch.device) -> int | None:
    """Memory that can still be taken on a device; None where nothing tells."""
    if device.type == "cuda":
        kept = torch.cuda.memory_reserved(device) - torch.cuda.memory_allocated(device)  # torch gives it out again
        return torch.cuda.mem_get_info(device)[0] + kept
    if device.type == "mps":
        return max(0, torch.mps.recommended_max_memory() - torch.mps.current_allocated_memory())
    return free_bytes() if device.type == "cpu" else None


def _container_bytes() -> int | None:
    try:
        limit, used = ((CGROUP / name).read_text().strip() for name in ("memory.max", "memory.current"))
        return None if limit == "max" else max(0, int(limit) - int(used))
    except (OSError, ValueError):
        return None


def matrix_product(device: torch.device, side: int | None = None) -> tuple[Callable[[], object], int]:
    """A run of one product of square matrices, the most that a processor can do, and its multiply-adds.

    By the faster of torch's libraries, as our own layers choose it.
    """
    side = side or PRODUCT_SIDE
    left, right = (torch.rand(side, side, device=device) for _ in range(2))
    return torch.inference_mode()(lambda: product(left, right, None)), side**3
