"""The page is one file: nothing outside it is requested, names are text, equal charts give equal bytes."""

import json
import math
import re

from tests.support.browser import needs_chromium, visit
from vitreous.reports.chart import COLOURS, Chart, LegendEntry, Series
from vitreous.reports.curves_page import render_curves

HOSTILE = '"><script>alert(1)</script>&@TITLE@'


def page(name: str = "run") -> str:
    points = tuple((float(x), math.nan if x == 3 else x / 7) for x in range(10))
    curves = (
        Series(f"{name}, training", points, COLOURS[0], name, faint=True),
        Series(f"{name}, training", points, COLOURS[0], name),
        Series(f"{name}, validation", points[::4], COLOURS[0], name, dashed=True),
    )
    charts = [Chart("Loss", "epoch", curves), Chart("Top-1 accuracy", "epoch", curves[1:2], "%")]
    return render_curves(charts, title=name, legend=[LegendEntry(name, COLOURS[0])], note="A note.")


def test_everything_is_inside():
    html = page()
    assert "http" not in html.replace("http-equiv", "")
    assert not re.findall(r"""(?:src|href|url\()=?["']?(?!data:|#)[a-z/.]""", html)
    policy = re.search(r'Content-Security-Policy" content="([^"]+)"', html)[1]
    assert policy.startswith("default-src 'none'")
    assert "unsafe" not in policy
    assert not re.search(r"\sstyle=", html)  # the policy would drop it


def test_equal_charts_give_equal_bytes():
    assert page() == page()


def test_names_are_text():
    html = page(HOSTILE)
    assert "<script>alert" not in html
    assert html.count("</script>") == 2
    data = json.loads(re.search(r'<script type="application/json" id="data">(.*?)</script>', html)[1])
    assert data[0]["series"][0]["group"] == HOSTILE


def test_values_can_be_read_and_gaps_are_left_out():
    data = json.loads(re.search(r'id="data">(.*?)</script>', page())[1])
    assert [chart["unit"] for chart in data] == ["", "%"]
    training, validation = data[0]["series"]  # the faint curve has no values to read
    assert len(training["points"]) == 9
    assert validation["points"] == [[0.0, 0.0], [4.0, 0.571429], [8.0, 1.14286]]
    assert validation["dashed"]


def test_drawn_places_are_percentages_of_the_plot():
    html = page()
    polyline = re.search(r'<polyline class="" stroke="[^"]+" points="([^"]+)"', html)[1]
    first, *_, last = (tuple(map(float, pair.split(","))) for pair in polyline.split())
    assert first == (0.0, 1000.0)
    assert last[0] == round(1000 * 2 / 9, 1), "the first piece ends before the gap"


@needs_chromium
def test_opens_in_chromium_without_request_or_console_message(tmp_path):
    file = tmp_path / "curves.html"
    file.write_text(page(HOSTILE), encoding="utf-8")
    seen = visit(file, tmp_path)
    assert seen.console == []
    assert seen.requests == []
    assert 'data-ready="yes"' in seen.dom  # the script ran to its end


@needs_chromium
def test_values_are_shown_at_the_arrow_keys_and_runs_can_be_hidden(tmp_path):
    use = """<script>
    const chart = document.querySelector(".chart");
    for (const key of ["Home", "ArrowRight", "ArrowRight"]) chart.dispatchEvent(new KeyboardEvent("keydown", { key }));
    document.body.dataset.read = chart.querySelector(".tip").textContent;
    document.querySelector(".legend input").click();
    document.body.dataset.off = document.querySelectorAll("g.off").length;
    </script></body>"""
    without_policy = re.sub(r"<meta http-equiv[^>]*>", "", page())  # it would, rightly, not run what the test adds
    file = tmp_path / "curves.html"
    file.write_text(without_policy.replace("</body>", use), encoding="utf-8")
    dom = visit(file, tmp_path).dom
    assert 'data-read="epoch 2run, training0.2857run, validation0"' in dom
    assert 'data-off="8"' in dom, "lines and dots of three curves in the first chart and of one in the second"
