"""Marking a place with the pointer, in a real browser, up to the file of regions."""

import time

from tests.support.browser import browser, needs_chromium, strangers, text
from tests.support.explorer import application, running, save_lively_model
from vitreous.data.regions import read_regions


@needs_chromium
def test_a_dragged_box_becomes_an_answer_and_a_file(tmp_path):
    downloads = tmp_path / "downloads"
    with running(application(save_lively_model(tmp_path / "lively"))[0]) as address, browser(tmp_path) as page:
        page.look()
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        page.open(f"{address}/")
        page.click("#examples li:first-child button")
        page.wait("!document.getElementById('explore').hidden")
        page.wait("document.getElementById('answer').getAttribute('aria-busy') === 'false'")
        page.click("#place-mark")
        box = page.run(
            "(({left, top, width, height}) => [left, top, width, height])"
            "(document.querySelector('.mark-sheet').getBoundingClientRect())"
        )
        corners = [[box[0] + share * box[2], box[1] + share * box[3]] for share in (0.01, 0.3)]
        for kind, (x, y) in (("mousePressed", corners[0]), ("mouseMoved", corners[1]), ("mouseReleased", corners[1])):
            page.call("Input.dispatchMouseEvent", type=kind, x=x, y=y, button="left", buttons=1, clickCount=1)
        page.wait("document.getElementById('sentence').textContent.includes('with the upper left corner hidden')")
        page.click("#place-examples")
        page.wait("document.getElementById('place-answer').textContent.startsWith('Without')")
        assert "upper left" in text(page, "#place-answer")
        assert page.run("document.querySelectorAll('#place-pictures li').length") == 9
        page.click("#place-save")
        end = time.monotonic() + 30
        while not (downloads / "regions.json").is_file() and time.monotonic() < end:
            time.sleep(0.1)
        (region,) = read_regions(downloads / "regions.json")
        assert region.match == "place"
        assert abs(region.box[2] - 0.3) < 0.02
        assert page.console == []
        assert strangers(page, address) == []
