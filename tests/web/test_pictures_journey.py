"""The page in a real browser: every way to bring a picture, the way back, and what is laid over it."""

import base64
import json

import pytest

from tests.support.browser import browser, needs_chromium, text
from tests.support.explorer import application, png, ranked, running, save_lively_model

FAKE_CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
NAME = "document.getElementById('file-name').textContent"
# How opaque the map is at its densest.
OVER = """(() => { const { width, height } = document.getElementById("viewer");
  const copy = new OffscreenCanvas(width, height).getContext("2d", { willReadFrequently: true });
  copy.drawImage(document.getElementById("viewer"), 0, 0);
  const { data } = copy.getImageData(0, 0, width, height);
  return data.reduce((most, value, i) => i % 4 === 3 ? Math.max(most, value) : most, 0); })()"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_lively_model(tmp_path_factory.mktemp("model") / "lively")


def paste(page, content: bytes, name: str) -> None:
    letters = json.dumps(base64.b64encode(content).decode())
    page.run(f"""{{ const held = new DataTransfer();
      const bytes = Uint8Array.from(atob({letters}), (letter) => letter.charCodeAt(0));
      held.items.add(new File([bytes], {json.dumps(name)}, {{ type: "image/png" }}));
      document.dispatchEvent(new ClipboardEvent("paste", {{ clipboardData: held, bubbles: true }})); }}""")


@needs_chromium
def test_pictures_come_by_camera_clipboard_and_drop_and_the_browser_goes_back(folder, tmp_path):
    dropped = tmp_path / "dropped.png"
    dropped.write_bytes(png(5, side=200))
    with running(application(folder)[0]) as address, browser(tmp_path, *FAKE_CAMERA) as page:
        page.look()
        page.open(f"{address}/")
        page.click("#camera")
        page.wait("document.getElementById('camera-view').videoWidth > 0")
        page.click("#camera-take")
        page.wait(f"{NAME}.startsWith('camera ')")
        ranked(page)
        assert not page.run("document.getElementById('camera-dialog').open")
        assert page.run("document.getElementById('camera-view').srcObject === null")  # its light is off

        paste(page, png(4, side=150), "copied.png")
        page.wait(f"{NAME} === 'copied.png'")
        ranked(page)
        assert page.run("document.getElementById('sharp').naturalWidth") == 150
        copied = text(page, "#sentence")

        page.drop_file("#answer", dropped)
        page.wait(f"{NAME} === 'dropped.png'")
        ranked(page)
        assert not page.run("document.body.classList.contains('over')")
        assert page.run("document.querySelectorAll('#visit li').length") == 3

        page.run("history.back()")
        page.wait(f"{NAME} === 'copied.png'")
        ranked(page)
        assert text(page, "#sentence") == copied
        page.run("history.forward()")
        page.wait(f"{NAME} === 'dropped.png'")
        assert page.console == []


@needs_chromium
def test_the_map_fades_the_original_is_a_press_away_and_dear_maps_say_their_price(folder, tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(4))
    opacity = "document.getElementById('opacity')"
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.look()
        page.open(f"{address}/")
        page.choose_file("#file", picture)
        ranked(page)
        page.point("h1")
        seen = []
        for value in (0, 50, 100):
            page.run(f"{opacity}.value = {value}; {opacity}.dispatchEvent(new Event('input'))")
            seen.append(page.run(OVER))
        assert seen[0] == 0 < seen[1] < seen[2]

        page.press_button("#original")
        assert page.run("getComputedStyle(document.getElementById('viewer')).opacity") == "0"
        page.release_button()
        assert page.run("getComputedStyle(document.getElementById('viewer')).opacity") == "1"

        prices = page.run("[...document.querySelectorAll('#method-list .price')].map((one) => one.textContent)")
        assert len(prices) == int(text(page, "#dear-count"))
        assert all(price.startswith("Compute: ") and " passes" in price for price in prices), prices
        page.run("document.getElementById('dear').open = true")
        page.click("[data-method=occlusion] .map-button")
        page.wait("document.querySelector('#method-cards [data-method=occlusion] canvas') !== null")
        assert int(text(page, "#dear-count")) == len(prices) - 1
        page.wait("document.getElementById('caption').textContent.startsWith('Occlusion')")
        assert page.console == []
