"""The page of a detector in a real browser: findings are listed, chosen, outlined, and lose their scores."""

import pytest

from tests.support.browser import browser, needs_chromium, strangers, text
from tests.support.explorer import application, png, ranked, running
from tests.support.tiny_model import TASK_ARGS, save_tiny_dense

CLASSES = ("disc", "box")


@needs_chromium
def test_a_finding_is_chosen_and_loses_its_score(tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(4, side=80))
    app, explorer = application(save_tiny_dense(tmp_path / "detect", "detect", CLASSES))
    item = explorer.receive(picture.read_bytes(), "mine.png")
    left, top, right, bottom = item.findings[4][0]["box"]
    across, down = (left + right) / 160, (top + bottom) / 160  # the middle of a box in a picture of 80 pixels
    pointed = explorer.pointed(item, across, down)["number"]
    with running(app) as address:
        with browser(tmp_path) as page:
            page.look()
            page.open(f"{address}/")
            assert "task detect" in text(page, "#facts")
            page.choose_file("#file", picture)
            ranked(page)
            assert text(page, "#answer-title") == "Found"
            assert page.run("document.querySelectorAll('#classes button').length") == 10
            assert page.run("document.getElementById('drawing').naturalWidth") >= 320
            first = text(page, "#explained")
            assert first.startswith("box 1: ")
            assert f"{first} " in text(page, "#sentence")
            assert text(page, "#sentence").endswith("is not sure: the model found no object with a score from 0.3.")

            page.click("#classes li:nth-child(2) button")
            page.wait("document.getElementById('explained').textContent.startsWith('box 2: ')")
            assert page.run("document.querySelectorAll('#classes [aria-pressed=true]').length") == 1
            page.wait("!document.getElementById('cards').inert")
            ranked(page)
            page.click("#cards .switch")
            page.wait("document.getElementById('sentence').textContent.includes('log-odds of the explained finding')")
            assert text(page, "#sentence").startswith("box 2: ")
            page.point("h1")
            page.point("#viewer", across, down)
            for kind in ("mousePressed", "mouseReleased"):
                x, y = page.pointer
                page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
            page.wait(f"document.getElementById('explained').textContent.startsWith('box {pointed + 1}: ')")
            page.click("[data-method=grad_cam] .map-button")
            page.wait("document.querySelectorAll('#method-cards canvas').length >= 1")
            assert page.console == []
            assert strangers(page, address) == []


@needs_chromium
@pytest.mark.parametrize("task", ["segment", "keypoints"])
def test_a_pixel_or_a_joint_is_explained_by_a_click(tmp_path, task):
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(1, side=80))
    classes = {"segment": ("background", "disc", "box"), "keypoints": ("figure",)}[task]
    app, explorer = application(save_tiny_dense(tmp_path / "model", task, classes))
    item = explorer.receive(picture.read_bytes(), "mine.png")
    steps = [step / 10 + 0.05 for step in range(10)]
    met = {explorer.pointed(item, x, y)["number"]: (x, y) for x in steps for y in steps}
    wanted = max(number for number in met if number is not None)
    assert wanted > 0  # not the one that is explained first
    with running(app) as address, browser(tmp_path) as page:
        page.look()
        page.open(f"{address}/")
        page.choose_file("#file", picture)
        ranked(page)
        noun = {"segment": "region", "keypoints": "joint"}[task]
        assert text(page, "#explained").startswith(f"{noun} 1: ")
        page.point("#viewer", *met[wanted])
        for kind in ("mousePressed", "mouseReleased"):
            x, y = page.pointer
            page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", clickCount=1)
        page.wait(f"document.getElementById('explained').textContent.startsWith('{noun} {wanted + 1}: ')")
        ranked(page)
        assert page.run("document.querySelectorAll('#classes [aria-pressed=true]').length") == 1
        assert page.console == []


@needs_chromium
def test_nothing_found_is_said(tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(4))
    strict = dict(TASK_ARGS["detect"]["head_args"], score_threshold=0.99)
    folder = save_tiny_dense(tmp_path / "strict", "detect", CLASSES, head_args=strict)
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        page.choose_file("#file", picture)
        page.wait("document.getElementById('sentence').textContent.startsWith('Nothing to explain')")
        assert text(page, "#sentence") == "Nothing to explain: the model found no object."
        assert page.run("document.getElementById('clusters').hidden && document.getElementById('methods').hidden")
        assert page.console == []
