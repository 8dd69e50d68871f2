"""The page in a real browser: the picture at once, causes beside effects, a link that shows the same again."""

import json

import pytest

from tests.support.browser import browser, needs_chromium, text
from tests.support.explorer import application, png, ranked, running, save_lively_model
from tests.support.tiny_model import save_tiny_model
from vitreous.serve import find_examples, open_explorer
from vitreous.web.app import create_app

HOLD_UPLOADS = """{ const ask = window.fetch; window.fetch = async (path, options) => {
  if (options?.method === "POST") await new Promise((go) => { window.send = go; });
  return ask(path, options);
}; }"""
SUM_OF_SHIFTS = """window.shift = 0; new PerformanceObserver((list) => {
  for (const { value, hadRecentInput } of list.getEntries()) if (!hadRecentInput) window.shift += value;
}).observe({ type: "layout-shift", buffered: true })"""
MOST_SHIFT = 0.05


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_lively_model(tmp_path_factory.mktemp("model") / "lively")


def drag_over_picture(page, start, end):
    left, top, width, height = page.run(
        "(({left, top, width, height}) => [left, top, width, height])"
        "(document.querySelector('.mark-sheet').getBoundingClientRect())"
    )
    places = [(left + across * width, top + down * height) for across, down in (start, end)]
    for kind, (x, y) in (("mousePressed", places[0]), ("mouseMoved", places[1]), ("mouseReleased", places[1])):
        page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)


@pytest.fixture(scope="module")
def opened(folder, tmp_path_factory):
    """The page in one browser for several tests, and its address."""
    with running(application(folder)[0]) as address, browser(tmp_path_factory.mktemp("browser")) as page:
        yield page, address


@needs_chromium
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
@pytest.mark.parametrize("width", [320, 390, 768, 1024, 1440])
def test_the_picture_is_there_before_it_is_sent_and_nothing_moves_or_sticks_out(opened, tmp_path, width, dark):
    page, address = opened
    picture = tmp_path / "wide photo.png"
    picture.write_bytes(png(4, side=320))
    page.look(width=width, height=900, dark=dark)
    page.open(f"{address}/")
    page.run(HOLD_UPLOADS)
    page.run(SUM_OF_SHIFTS)
    page.choose_file("#file", picture)
    page.wait("document.getElementById('sharp').naturalWidth === 320")
    assert text(page, "#file-name") == "wide photo.png"
    assert page.run("document.querySelectorAll('#classes .skeleton').length") == 5
    page.wait("typeof window.send === 'function'")
    page.run("window.send()")
    ranked(page)
    page.wait("document.querySelectorAll('#method-cards .skeleton').length === 0")
    assert page.run("document.getElementById('sharp').naturalWidth") == 320  # still the user's own
    assert page.run("window.shift") <= MOST_SHIFT
    page.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    page.wait("document.querySelectorAll('#head-tiles canvas').length > 0")
    assert page.run("document.documentElement.scrollWidth") <= width
    assert page.console == []


@needs_chromium
def test_prediction_stays_in_sight_or_becomes_a_strip(folder, tmp_path):
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.look(width=1280, height=800)
        page.open(f"{address}/")
        page.click("#examples button")
        ranked(page)
        page.run(
            "document.querySelector('#cards li:last-child').scrollIntoView({block: 'center', behavior: 'instant'})"
        )
        inside = "(({top, bottom}) => top >= 0 && bottom <= innerHeight)"
        for part in ("#viewer", "#sentence", "#classes"):
            assert page.run(f"{inside}(document.querySelector('{part}').getBoundingClientRect())"), part
        page.look(width=390, height=800)
        page.run(
            "document.querySelector('#cards li:last-child').scrollIntoView({block: 'center', behavior: 'instant'})"
        )
        page.wait("!document.getElementById('strip').hidden")
        page.click("#cards li:last-child .switch input")
        page.wait("document.getElementById('strip-text').textContent.includes('without')")
        assert page.run("document.getElementById('strip').getBoundingClientRect().top") == 0
        assert page.console == []


@needs_chromium
def test_a_link_shows_the_same_again(folder, tmp_path):
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.look()
        page.open(f"{address}/")
        page.click("#examples li:nth-child(3) button")
        ranked(page)
        page.click("#classes li:nth-child(2) button")
        page.wait("location.hash.includes('class=')")
        ranked(page)
        page.click("#stages label:nth-of-type(2) span")
        ranked(page)
        page.click("#cards li:nth-child(2) .switch input")
        page.wait("document.getElementById('sentence').textContent.includes('without')")
        page.point("h1")
        page.run("document.getElementById('show').value = 'grad_cam'")
        page.run("document.getElementById('show').dispatchEvent(new Event('change'))")
        page.wait("document.getElementById('caption').textContent.startsWith('Grad cam')")
        seen = [text(page, part) for part in ("#sentence", "#explained", "#caption")]
        link = page.run("location.href")

        page.call("Page.navigate", url="about:blank")
        page.open(link)
        ranked(page)
        page.wait(f"document.getElementById('sentence').textContent === {json.dumps(seen[0])}")
        page.wait(f"document.getElementById('caption').textContent === {json.dumps(seen[2])}")
        assert text(page, "#explained") == seen[1]
        assert page.run("document.querySelector('[name=stage]:checked').value") == "2"

        page.click("#place-mark")  # a hidden part takes the place of switched-off clusters, in the address too
        drag_over_picture(page, (0.5, 0.5), (1, 1))
        page.wait("document.getElementById('sentence').textContent.includes('hidden')")
        assert "off=" not in page.run("location.hash")
        hidden = text(page, "#sentence")
        link = page.run("location.href")
        page.call("Page.navigate", url="about:blank")
        page.open(link)
        page.wait(f"document.getElementById('sentence').textContent === {json.dumps(hidden)}")
        page.press("u", 85, "u")
        page.wait("!document.getElementById('sentence').textContent.includes('hidden')")
        assert page.run("document.getElementById('mark-frame').hidden")
        assert page.console == []


@needs_chromium
def test_clusters_that_carry_nothing_give_way_to_a_map_that_tells(tmp_path):
    with running(application(save_tiny_model(tmp_path / "tiny"))[0]) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        page.click("#examples button")
        page.wait("!document.getElementById('idle').hidden")
        page.wait("document.getElementById('idle-text').textContent.includes('Look at')")
        assert "carry nothing" in text(page, "#load")
        assert page.run("document.getElementById('cluster-body').hidden")
        assert (
            page.run("document.getElementById('show').value") != ""
        )  # the large picture shows a method, not a cluster
        page.click("#show-anyway")
        page.wait("document.querySelectorAll('#cards .map-button').length > 0")
        page.wait("document.querySelectorAll('#cards .faint').length > 0")  # and what is too small to matter is grey
        assert page.console == []


@needs_chromium
def test_words_keys_and_pictures_of_this_visit(folder, tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(4))
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.look()
        page.open(f"{address}/")
        page.choose_file("#file", picture)
        ranked(page)
        page.point("[data-term='gathers from']")
        assert "is made of" in text(page, "#tip")
        page.click("h1")  # so that the page has the keyboard
        page.press("?", 191, "?")
        assert page.run("document.getElementById('shortcuts').open")
        page.click("#shortcuts-close")
        page.call("Input.dispatchKeyEvent", type="keyDown", key="o", text="o", windowsVirtualKeyCode=79)
        assert page.run("getComputedStyle(document.getElementById('viewer')).opacity") == "0"
        page.call("Input.dispatchKeyEvent", type="keyUp", key="o", windowsVirtualKeyCode=79)
        assert page.run("getComputedStyle(document.getElementById('viewer')).opacity") == "1"

        page.click("#examples button")
        page.wait("document.getElementById('file-name').textContent !== 'mine.png'")
        ranked(page)
        page.click("#visit button")
        page.wait("document.getElementById('file-name').textContent === 'mine.png'")
        page.wait("document.querySelector('#visit button').ariaPressed === 'true'")
        assert page.run("document.querySelectorAll('#visit li').length") == 1
        assert page.console == []


@needs_chromium
def test_a_second_model_stands_beside(folder, tmp_path):
    first, second = open_explorer(folder), open_explorer(save_lively_model(tmp_path / "other", clusters=(6, 6, 6, 0)))
    app = create_app(first, examples=find_examples(first, None), beside=(second, find_examples(second, None)))
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(4))
    with running(app) as address, browser(tmp_path) as page:
        page.look()
        page.open(f"{address}/")
        for choose in (lambda: page.click("#examples button"), lambda: page.choose_file("#file", picture)):
            page.run("document.getElementById('beside-sentence').textContent = ''")
            choose()
            page.wait("document.getElementById('beside-sentence').textContent.includes('%')")
            ranked(page)
        before = text(page, "#beside-sentence")
        page.run("document.getElementById('place-named').value = 'upper left'")
        page.run("document.getElementById('place-named').dispatchEvent(new Event('change'))")
        page.wait("document.getElementById('sentence').textContent.includes('upper left corner hidden')")
        page.wait("document.getElementById('beside-sentence').textContent.includes('upper left corner hidden')")
        page.click("#undo")
        page.wait(f"document.getElementById('beside-sentence').textContent === {json.dumps(before)}")
        link = page.run("location.href")
        page.call("Page.navigate", url="about:blank")
        page.open(link)  # the second model is shown the same picture again, too
        ranked(page)
        page.wait(f"document.getElementById('beside-sentence').textContent === {json.dumps(before)}")
        assert page.console == []


@needs_chromium
def test_heads_read_from_the_place_that_is_clicked(folder, tmp_path):
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.look()
        page.open(f"{address}/")
        page.click("#examples button")
        ranked(page)
        assert not any("/heads?" in url for url in page.requests)  # nobody has opened them
        page.run("document.getElementById('heads').open = true")
        page.wait("document.querySelectorAll('#head-tiles canvas').length === 4")  # as many as the last stage has heads
        page.click("#viewer")
        page.wait("document.getElementById('head-text').textContent.includes('50 % across and 50 % down')")
        page.point("#head-tiles li:nth-child(2) .map-button")
        page.wait("document.getElementById('caption').textContent.startsWith('Head 2 of stages.3.')")
        assert page.console == []


@needs_chromium
def test_bars_that_add_up_to_the_logit_are_short_where_it_is_small(tmp_path):
    """All bars together stand for three log-odds at least."""
    parts = (
        "[...document.querySelectorAll('#sum-rows li')].map((row) => ({name: row.querySelector('.name').textContent, \
value: Number(row.querySelector('.value').textContent.replace('−', '-')), \
share: parseFloat(row.querySelector('i').style.width) / 100}))"
    )
    quiet = save_tiny_model(tmp_path / "quiet", readout="clusters", readout_clusters=4)
    loud = save_lively_model(tmp_path / "loud", readout="clusters", readout_clusters=4)
    with browser(tmp_path) as page:
        for model in (quiet, loud):
            with running(application(model)[0]) as address:
                page.look()
                page.open(f"{address}/")
                page.click("#examples button")
                ranked(page, by="contribution")
                rows = page.run(parts)
                reached = [0.0]
                for row in rows[:-1]:
                    reached.append(reached[-1] + row["value"])
                assert rows[-1]["value"] == pytest.approx(reached[-1], abs=0.02)
                width = max(3, max(reached) - min(reached))
                for row in rows:
                    assert row["share"] == pytest.approx(abs(row["value"]) / width, abs=0.01)
