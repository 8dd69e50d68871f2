"""axe-core, which checks a page for people who do not see it, hear it or hold a mouse; npm brings it, once."""

import json
import os
import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest

AXE = "axe-core@4.14.1"
PROGRAM = Path("node_modules") / "axe-core" / "axe.min.js"
SEVERE = ("serious", "critical")


@cache
def axe_code() -> str:
    """The program, from npm's registry or from what an earlier test has fetched; without either the test is skipped."""
    folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "vitreous-tests" / AXE
    if not (folder / PROGRAM).is_file():
        fetch(folder)
    return (folder / PROGRAM).read_text(encoding="utf-8")


def fetch(folder: Path) -> None:
    """Into a folder of its own first, as another test may fetch it at the same time."""
    if (npm := shutil.which("npm")) is None:
        pytest.skip("no npm on this machine (Debian: npm), which brings axe-core")
    own = folder.with_name(f"{folder.name}.{os.getpid()}")
    own.mkdir(parents=True)
    asked = [npm, "install", "--prefix", str(own), "--no-save", "--no-audit", "--no-fund", "--fetch-retries=1", AXE]
    done = subprocess.run(asked, capture_output=True, text=True, timeout=180)
    if done.returncode or not (own / PROGRAM).is_file():
        shutil.rmtree(own)
        pytest.skip(f"npm could not fetch {AXE}: {(done.stderr or done.stdout).strip()[-200:]}")
    try:
        own.rename(folder)
    except OSError:  # the other one was first
        shutil.rmtree(own)


def severe_faults(page) -> list[str]:
    """What axe calls serious or critical in the open page, with the elements; first, that it has looked at all."""
    page.run(axe_code() + "; true")
    found = page.run("axe.run(document, {resultTypes: ['violations', 'passes']})")
    assert len(found["passes"]) > 3
    return [
        f"{fault['id']} ({fault['impact']}): {fault['help']}: {node['html'][:200]} {json.dumps(node['any'][:1])[:400]}"
        for fault in found["violations"]
        if fault["impact"] in SEVERE
        for node in fault["nodes"]
    ]
