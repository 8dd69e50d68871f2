"""The report is one file: nothing outside it is requested, names are text, equal inputs give equal bytes."""

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from PIL import Image

from vitreous.maps.report import Cluster, Explanation, render

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
needs_chromium = pytest.mark.skipif(CHROMIUM is None, reason="no chromium binary on this machine (Debian: chromium)")

FLAGS = [
    *("--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--disable-dev-shm-usage", "--no-first-run"),
    *("--disable-background-networking", "--disable-component-update", "--disable-sync", "--disable-extensions"),
    *("--enable-logging=stderr", "--v=0", "--dump-dom"),
    *("--proxy-server=http://127.0.0.1:9", "--proxy-bypass-list=<-loopback>"),
]
HOSTILE = '"><script>alert(1)</script>&@TITLE@'


def explanation(
    name: str = "cat.png", *, clusters: int = 5, side: int = 32, grid: int = 4, seed: int = 0
) -> Explanation:
    rng = np.random.default_rng(seed)
    return Explanation(
        name=name,
        picture=Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)),
        predicted="cat",
        true="dog",
        watched="dog",
        probabilities=(("cat", 0.75), ("dog", 0.25)),
        clusters=tuple(Cluster(m, 0.4 - 0.1 * m, 2.0 + m) for m in range(clusters)),
        heat=rng.random((clusters, grid, grid)),
    )


def page(*items: Explanation, top_k: int = 3) -> str:
    return render(items, title="What a model looked at", facts={"model": "paca"}, hidden_with="grey", top_k=top_k)


def test_everything_is_inside():
    html = page(explanation(), explanation("dog.png", seed=1))
    assert not re.findall(r"""(?:src|href|url\()=?["']?(?!data:|#)[a-z/.]""", html)
    assert "http://" not in html
    assert "https://" not in html


def test_policy_allows_only_the_inline_texts():
    html = page(explanation())
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src 'none'; img-src data:;")
    assert "unsafe" not in policy
    assert not re.search(r"\sstyle=", html)  # the policy would drop it


def test_shows_overlays_ranking_and_labels():
    html = page(explanation(clusters=5), top_k=3)
    assert html.count("<figure><img alt=") == 3
    assert len(re.findall(r"<tr><td>\d", html)) == 5
    assert "it is <b>dog</b>" in html
    assert "arXiv 2203.11987" in html
    for image in re.findall(r"<img[^>]*>", html):
        assert "alt=" in image


def test_names_are_text():
    hostile = explanation()._replace(
        name=HOSTILE, predicted=HOSTILE, true=HOSTILE, watched=HOSTILE, probabilities=((HOSTILE, 1.0),)
    )
    html = page(hostile)
    assert "<script>alert" not in html
    assert html.count("<script>") == 1
    assert "@TITLE@" in html  # a placeholder in a name stays what it was


def test_equal_inputs_give_equal_bytes():
    assert page(explanation()) == page(explanation())


def test_ten_images_of_noise_stay_below_five_megabytes():
    items = [explanation(f"{seed}.png", clusters=100, side=224, grid=56, seed=seed) for seed in range(10)]
    assert len(page(*items, top_k=6).encode()) < 5e6


def test_flat_scores_and_single_cluster():
    flat = explanation(clusters=1)._replace(clusters=(Cluster(0, 0.0, 0.0),), true=None)
    assert "All 1 clusters" in page(flat)


class Visit(NamedTuple):
    dom: str
    console: list[str]
    requests: list[str]


def visit(file: Path, scratch: Path) -> Visit:
    """Open the file as a user would; the network is a proxy that does not exist, and what was asked of it is logged.

    The browser waits a given time by its own clock, which on a busy machine can run out before the page's script is
    done; it is then asked to wait longer.
    """
    log = scratch / "network.json"
    places = [f"--user-data-dir={scratch / 'profile'}", f"--log-net-log={log}", file.resolve().as_uri()]
    for milliseconds in (8_000, 80_000, 800_000):
        command = [CHROMIUM, *FLAGS, f"--virtual-time-budget={milliseconds}", *places]
        done = run_to_its_end(command)
        if 'data-ready="yes"' in done.stdout:
            break
    return Visit(done.stdout, [line for line in done.stderr.splitlines() if ":CONSOLE" in line], requests_of_page(log))


def run_to_its_end(command: list[str]) -> subprocess.CompletedProcess[str]:
    """Chromium now and then hangs while it ends, after everything was shown; it is then started once more."""
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=90, check=True)
    except subprocess.TimeoutExpired:
        return subprocess.run(command, capture_output=True, text=True, timeout=200, check=True)


def requests_of_page(log: Path) -> list[str]:
    """Addresses the page asked for. The browser's own traffic (updates, clock) has no origin and does not count."""
    started = [event.get("params", {}) for event in json.loads(log.read_text())["events"]]
    asked = [p["url"] for p in started if "url" in p and p.get("initiator", "not an origin") != "not an origin"]
    return [url for url in asked if not url.startswith(("data:", "file:"))]


@needs_chromium
def test_opens_in_chromium_without_request_or_console_message(tmp_path):
    report = tmp_path / "report.html"
    report.write_text(page(explanation(HOSTILE), explanation("dog.png", grid=56, seed=1)), encoding="utf-8")
    seen = visit(report, tmp_path)
    assert seen.console == []
    assert seen.requests == []
    assert 'data-ready="yes"' in seen.dom  # the script ran to its end
    assert "cluster 0, rank 1 of 5" in seen.dom
    assert '<figure class="viewer">' in seen.dom  # shown, no longer hidden


@needs_chromium
def test_the_check_notices_a_bad_page(tmp_path):
    """A page that loads something and fails in its script must not pass as a good one."""
    bad = tmp_path / "bad.html"
    bad.write_text('<img src="http://vitreous.invalid/x.png"><script>undefinedFunction()</script>', encoding="utf-8")
    seen = visit(bad, tmp_path)
    assert any("vitreous.invalid" in line for line in seen.requests)
    assert any("undefinedFunction" in line for line in seen.console)


@needs_chromium
def test_policy_blocks_what_should_not_be_there(tmp_path):
    html = page(explanation()).replace("</main>", '<img alt="" src="http://vitreous.invalid/x.png"></main>')
    report = tmp_path / "report.html"
    report.write_text(html, encoding="utf-8")
    seen = visit(report, tmp_path)
    assert seen.requests == []
    assert any("Content Security Policy" in line for line in seen.console)
