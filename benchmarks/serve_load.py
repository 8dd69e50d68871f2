"""How fast `vitreous serve` answers one user, in a browser too, and how it behaves under load.

    python benchmarks/serve_load.py                                   # fresh paca_tiny at 224: time to each answer
    python benchmarks/serve_load.py --browser                         # and until a person sees them, in Chromium
    python benchmarks/serve_load.py --run runs/demo --requests 10000 --concurrent 400

In the browser, time runs from the moment a file is chosen to the frame in which the picture, or the prediction, is
drawn. Browser and server share the machine.

The crowd asks for everything the page asks for, uploads pictures and garbage, and never waits. Only 200, 201, 422 (the
garbage) and 503 (busy) may come back, memory may grow by a fifth, and a new picture must be predicted within a second
of the last request. The clients share the machine with the server.
"""

import asyncio
import io
import json
import os
import platform
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from contextlib import contextmanager
from pathlib import Path
from typing import NamedTuple

import numpy as np
import torch
import tyro
from PIL import Image

import vitreous
from vitreous.data.transforms import Preprocess
from vitreous.runs.model_folder import save_model

ACCEPTED = {200, 201, 422, 503}


class Reply(NamedTuple):
    status: int
    body: bytes

    @property
    def json(self) -> dict:
        return json.loads(self.body)


class Client:
    """One persistent connection; does little work, because it shares the cores with the server."""

    def __init__(self, port: int) -> None:
        self.port, self.streams = port, None

    async def ask(self, path: str, body: bytes | None = None) -> Reply:
        if self.streams is None:
            self.streams = await asyncio.open_connection("127.0.0.1", self.port)
        reader, writer = self.streams
        kind = "GET" if body is None else "POST"
        length = "" if body is None else f"Content-Length: {len(body)}\r\nContent-Type: image/png\r\n"
        writer.write(f"{kind} {path} HTTP/1.1\r\nHost: localhost\r\n{length}\r\n".encode() + (body or b""))
        head = (await reader.readuntil(b"\r\n\r\n")).decode()
        size = int(re.search(r"content-length: (\d+)", head, re.I)[1])
        reply = Reply(int(head.split()[1]), await reader.readexactly(size))
        if "connection: close" in head.lower():
            self.close()
        return reply

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


def picture(seed: int, side: int | tuple[int, int], kind: str = "PNG") -> bytes:
    """Smooth noise: every image differs, and compresses like a photograph."""
    coarse = np.random.default_rng(seed).integers(0, 256, (8, 8, 3), dtype=np.uint8)
    buffer = io.BytesIO()
    size = (side, side) if isinstance(side, int) else side
    Image.fromarray(coarse).resize(size, Image.Resampling.BICUBIC).save(buffer, kind)
    return buffer.getvalue()


@contextmanager
def server(run: str):
    command = [sys.executable, "-m", "vitreous", "serve", run, "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        line = process.stdout.readline()
        try:
            yield process.pid, int(re.search(r":(\d+) ", line)[1])
        finally:
            process.send_signal(signal.SIGINT)


def memory(pid: int) -> float:
    """Megabytes in use."""
    return int(re.search(r"VmRSS:\s+(\d+)", Path(f"/proc/{pid}/status").read_text())[1]) / 1024


def worked(pid: int) -> float:
    """Processor time so far: on a busy machine it says more than wall-clock time."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


async def latency(pid: int, port: int, side: int, rounds: int) -> None:
    """Response times for one user, each with a new picture."""
    client, times, work = Client(port), {}, {}

    def note(name: str, start: float, spent: float) -> None:
        times.setdefault(name, []).append(time.perf_counter() - start)
        work.setdefault(name, []).append(worked(pid) - spent)

    stages = (await client.ask("/api/model")).json["stages"]
    last = stages[-1]["stage"]
    for number in range(rounds + 1):  # the first round warms up
        start, spent = time.perf_counter(), worked(pid)
        id = (await client.ask("/api/images", picture(number, side))).json["id"]
        at = f"/api/images/{id}"
        steps = {
            "prediction": at,
            "maps and gradient scores": f"{at}/stages/{last}",
            "exact ranking": f"{at}/stages/{last}/importance?by=ablation",
            "causal load of all stages": f"{at}/load",
        }
        for name, path in steps.items():
            assert (await client.ask(path)).status == 200
            note(name, start, spent)
        start, spent = time.perf_counter(), worked(pid)
        await client.ask(f"{at}/stages/{last}/ablation?off=1,2")
        note("two clusters switched off (by itself)", start, spent)
    for name, seconds in times.items():
        cost = statistics.median(work[name][1:])
        print(
            f"  {name:<38}{statistics.median(seconds[1:]):6.2f} s   worst {max(seconds[1:]):.2f} s   work {cost:.2f} s"
        )
    client.close()


# Notes in the page when a file is chosen, and the first frames that show it and the prediction.
STOPWATCH = """window.seen = {}; window.shift = 0;
new PerformanceObserver((list) => {
  for (const { value, hadRecentInput } of list.getEntries()) if (!hadRecentInput) window.shift += value;
}).observe({ type: "layout-shift" });
document.getElementById("file").addEventListener("change", () => {
  const start = performance.now();
  const note = (name, visible) => requestAnimationFrame(() => {
    if (!visible()) note(name, visible);
    else requestAnimationFrame(() => { window.seen[name] = (performance.now() - start) / 1000; });
  });
  const sharp = document.getElementById("sharp");
  const before = sharp.src;
  note("picture", () => sharp.src !== before && sharp.complete && sharp.naturalWidth > 0);
  note("prediction", () => !document.querySelector("#sentence .skeleton, #classes .skeleton"));
}, { capture: true }); true"""
PHOTOGRAPH = (4000, 3000)
WEIGHT = """[...performance.getEntriesByType("navigation"), ...performance.getEntriesByType("resource")]
.filter(({ name }) => !name.includes("/api/") && !name.startsWith("data:"))
.reduce((sum, one) => sum + one.encodedBodySize, 0)"""


def in_browser(port: int, side: int, rounds: int, scratch: Path) -> None:
    """What a person waits for, in headless Chromium; each round with a new picture."""
    sys.path.insert(0, str(Path(__file__).resolve().parents[1]))  # for the driver that the tests have
    from tests.support.browser import CHROMIUM, browser

    if CHROMIUM is None:
        sys.exit("no chromium on this machine (Debian: chromium)")
    with browser(scratch) as page:
        page.look(width=1440, height=900)
        page.open(f"http://127.0.0.1:{port}/")
        print(f"  {'html, css and scripts':<38}{page.run(WEIGHT) / 1000:6.1f} kB")
        page.run(STOPWATCH)
        for title, size, kind in (("", side, "PNG"), (" of 12 megapixels", PHOTOGRAPH, "JPEG")):
            times: dict[str, list[float]] = {}
            for number in range(rounds + 1):  # the first round warms up
                file = scratch / f"{number}.{kind.lower()}"
                file.write_bytes(picture(1000 + number, size, kind))
                page.run("window.seen = {}")
                page.choose_file("#file", file)
                page.wait("window.seen.picture !== undefined && window.seen.prediction !== undefined")
                for name, seconds in page.run("window.seen").items():
                    times.setdefault(name, []).append(seconds)
                page.wait("document.querySelectorAll('#method-cards .skeleton').length === 0")
                page.wait("!document.querySelector('[aria-busy=true]')")
            for name, seconds in times.items():
                middle = statistics.median(seconds[1:])
                print(f"  {name + title + ' visible':<38}{middle:6.2f} s   worst {max(seconds[1:]):.2f} s")
        print(f"  {'layout shift, all pictures together':<38}{page.run('window.shift'):6.3f}")


async def crowd(port: int, side: int, requests: int, concurrent: int) -> Counter:
    """Statuses of many concurrent requests, of every kind the page makes."""
    first = Client(port)
    model = (await first.ask("/api/model")).json
    first.close()
    examples = [item["id"] for item in model["examples"]]
    if not examples:
        async with asyncio.timeout(60):
            examples = [(await first.ask("/api/images", picture(1_000_000 + i, side))).json["id"] for i in range(4)]
    left, statuses = iter(range(requests)), Counter()

    def question(rng: random.Random, number: int) -> tuple[str, bytes | None]:
        at = f"/api/images/{rng.choice(examples)}"
        kind = number % 10
        if kind < 3:
            return rng.choice(["/", "/app.js", "/api/model", f"{at}/picture.png"]), None
        if kind == 3:
            return "/api/images", picture(number, side)
        if kind == 4:
            return "/api/images", rng.randbytes(2000)
        if not model["stages"] or kind == 5:
            return rng.choice([at, f"{at}/heat?method=grad_cam"]), None
        stage = rng.choice(model["stages"])
        if kind == 6:
            return f"{at}/stages/{stage['stage']}", None
        off = ",".join(map(str, rng.sample(range(stage["clusters"]), 3)))
        return f"{at}/stages/{stage['stage']}/ablation?off={off}", None

    async def one(seed: int) -> None:
        rng, client = random.Random(seed), Client(port)
        for number in left:
            try:
                statuses[(await client.ask(*question(rng, number))).status] += 1
            except (OSError, asyncio.IncompleteReadError) as error:
                statuses[type(error).__name__] += 1
                client.close()
        client.close()

    await asyncio.gather(*(one(seed) for seed in range(concurrent)))
    return statuses


async def press(pid: int, port: int, side: int, requests: int, concurrent: int) -> bool:
    await crowd(port, side, 200, 4)  # use everything once before measuring memory
    before, start = memory(pid), time.perf_counter()
    statuses = await crowd(port, side, requests, concurrent)
    seconds = time.perf_counter() - start
    client, end = Client(port), time.perf_counter()
    id = (await client.ask("/api/images", picture(-1 % 2**31, side))).json.get("id")
    healthy = id is not None and (await client.ask(f"/api/images/{id}")).status == 200
    recovery, after = time.perf_counter() - end, memory(pid)
    client.close()
    print(f"  {requests:,} requests, {concurrent} at once, {seconds:.0f} s: {dict(statuses.most_common())}")
    print(f"  memory {before:.0f} MB before, {after:.0f} MB after ({after / before - 1:+.1%})")
    print(
        f"  a new picture {'was predicted' if healthy else 'was NOT predicted'} {recovery:.2f} s after the last request"
    )
    return set(statuses) <= ACCEPTED and after <= 1.2 * before and healthy and recovery <= 1


def fresh_model(folder: Path, name: str, size: int) -> str:
    model = vitreous.create_model(name)
    classes = tuple(f"class {number}" for number in range(model.num_classes))
    preprocess = Preprocess(size=(size, size))
    save_model(folder, model, name=name, model_args={}, task="classify", classes=classes, preprocess=preprocess)
    return str(folder)


def main(
    run: str | None = None,
    model: str = "paca_tiny",
    size: int = 224,
    rounds: int = 5,
    requests: int = 0,
    concurrent: int = 400,
    browser: bool = False,
) -> None:
    """Args:
    run: Run or model folder to serve; default: fresh weights of `model` at `size`.
    rounds: Pictures of which the answers are timed.
    requests: Requests of the crowd; 0: no crowd.
    browser: Measure in Chromium, too.
    """
    machine = f"{os.cpu_count()} cores, {platform.machine()}, load average {os.getloadavg()[0]:.1f}"
    print(f"torch {torch.__version__}, {machine}")
    with (
        tempfile.TemporaryDirectory() as scratch,
        server(run or fresh_model(Path(scratch) / "m", model, size)) as (pid, port),
    ):
        print(f"since the upload of a picture, median of {rounds}, and processor time of the server:")
        asyncio.run(latency(pid, port, size, rounds))
        if browser:
            print(f"in Chromium, since a file was chosen, median of {rounds}:")
            in_browser(port, size, rounds, Path(scratch))
        if requests:
            print("under a crowd:")
            sys.exit(0 if asyncio.run(press(pid, port, size, requests, concurrent)) else 1)


if __name__ == "__main__":
    tyro.cli(main)
