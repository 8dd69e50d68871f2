"""Time of `import vitreous` beside `import timm`, and of `vitreous --help`; new processes, in turns.

python benchmarks/startup.py
"""

import statistics
import subprocess
import sys
import time

import tyro

COMMANDS = {
    "import timm": "import timm",
    "import vitreous": "import vitreous",
    "vitreous --help": "import sys; sys.argv = ['vitreous', '--help']; from vitreous_command import main; main()",
}


def seconds(code: str) -> float:
    start = time.perf_counter()
    subprocess.run([sys.executable, "-c", code], check=True, stdout=subprocess.DEVNULL)
    return time.perf_counter() - start


def main(rounds: int = 9) -> None:
    times: dict[str, list[float]] = {name: [] for name in COMMANDS}
    for code in COMMANDS.values():
        seconds(code)  # the first start reads the disk
    for _ in range(rounds):
        for name, code in COMMANDS.items():
            times[name].append(seconds(code))
    for name, values in times.items():
        print(f"{name:16} {statistics.median(values):.2f} s")
    ratios = [v / t for v, t in zip(times["import vitreous"], times["import timm"], strict=True)]
    print(f"ratio            {statistics.median(ratios):.3f} over {rounds} rounds")


if __name__ == "__main__":
    tyro.cli(main)
