"""The whole way through the page in a real browser: nothing in the console, nothing asked of anybody else."""

import json
import time

import pytest

from tests.support.browser import browser, needs_chromium, strangers, text
from tests.support.explorer import (
    REASON,
    application,
    png,
    ranked,
    running,
    save_chosen,
    save_lively_model,
    save_refinement,
)
from tests.support.tiny_model import save_tiny_model
from vitreous.runs.model_folder import load_model
from vitreous.web.app import create_app
from vitreous.web.explorer import Explorer

HOSTILE = '<img src=x onerror=console.error("run")>'


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_lively_model(tmp_path_factory.mktemp("model") / "lively")


@needs_chromium
def test_journey(folder, tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(4))
    downloads = tmp_path / "downloads"
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.look()
        page.call("Browser.setDownloadBehavior", behavior="allow", downloadPath=str(downloads))
        page.open(f"{address}/")
        assert text(page, "#model") == "paca_tiny"
        assert page.run("document.querySelectorAll('#examples button').length") == 10

        page.choose_file("#file", picture)
        ranked(page)
        assert "%" in text(page, "#sentence")
        assert page.run("document.querySelectorAll('#classes button').length") == 5
        scores = page.run(
            "[...document.querySelectorAll('#cards .score')].map((e) => Number(e.textContent.replace('−', '-')))"
        )
        assert scores == sorted(scores, reverse=True)

        page.point("#viewer", 0.3, 0.3)  # hover a patch
        assert "looks most at cluster" in text(page, "#caption")
        assert page.run("document.querySelectorAll('#patch-clusters li').length") == 6
        page.point("h1")
        assert "looks most" not in text(page, "#caption")

        before = page.run("document.getElementById('viewer').toDataURL()")
        page.point("#cards li:nth-child(2) canvas")  # hover a cluster
        assert page.run("document.getElementById('viewer').toDataURL()") != before
        page.point("h1")
        assert page.run("document.getElementById('viewer').toDataURL()") == before

        sure = text(page, "#sentence")
        page.click("#cards li:nth-child(1) .switch input")  # switch a group off
        page.wait("document.getElementById('sentence').textContent.includes('without')")
        assert text(page, "#sentence") != sure
        assert page.run("document.querySelectorAll('#cards .off').length") == 1
        page.click("#all-on")
        assert text(page, "#sentence") == sure

        page.click("[name=unit][value=single] + span")  # one by one
        assert page.run("document.querySelectorAll('#cards li').length") == 12
        page.run(
            "document.getElementById('top').value = 3; document.getElementById('top').dispatchEvent(new Event('input'))"
        )
        assert page.run("document.querySelectorAll('#cards li:not([hidden])').length") == 3

        page.click("#stages label:nth-of-type(1) span")  # another stage
        page.wait("document.querySelectorAll('#cards li').length === 6")
        ranked(page)

        page.click("[data-method=grad_cam] .map-button")  # another method
        page.wait("document.getElementById('caption').textContent.startsWith('Grad cam, stage 1')")
        assert page.run("document.querySelector('[data-method=grad_cam] canvas') !== null")

        page.click("#classes li:nth-child(2) button")  # another class
        second = text(page, "#classes li:nth-child(2) .name")
        page.wait(f"document.getElementById('explained').textContent === {json.dumps(second)}")
        ranked(page)

        page.click("#report")
        file = downloads / "report.html"
        deadline = time.monotonic() + 60
        while not file.exists() and time.monotonic() < deadline:
            time.sleep(0.1)
        assert "mine.png" in file.read_text()

        assert page.console == []
        assert strangers(page, address) == []


HOLD = """{ const ask = window.fetch; window.held = []; window.held_part = "";
window.fetch = async (path, options) => {
  const answer = await ask(path, options);
  if (window.held_part && path.includes(window.held_part)) await new Promise((go) => window.held.push(go));
  return answer;
}; }"""


def hold(page, part):
    """From now on, answers from addresses with this part wait until they are let go."""
    page.run(f"window.held_part = {json.dumps(part)}")


def let_go(page):
    page.wait("window.held.length > 0")
    page.run("window.held_part = ''; window.held.splice(0).forEach((go) => go())")
    page.run("new Promise((go) => setTimeout(go, 50))")  # the page has seen them


@needs_chromium
def test_better_maps_follow_by_themselves_until_one_is_chosen(tmp_path):
    found = {1: "clusters attention_mass", 3: "token_gradient", 50: "score_cam"}
    folder = save_refinement(save_tiny_model(tmp_path / "tiny"), found, beaten="grad_cam")
    line, caption = (f"document.getElementById('{id}').textContent" for id in ("default-method", "caption"))
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        page.run(HOLD)
        options = page.run("[...document.querySelectorAll('#show option')].map((o) => o.textContent)")
        assert options[:2] == ["chosen cluster", "score cam · most faithful on photos (val)"]
        assert "grad cam · no better than its controls" in options
        assert text(page, "[data-method=grad_cam] .label") == "no better than its controls"

        hold(page, "method=score_cam")
        page.click("#examples button")
        page.wait(f"{caption}.startsWith('Token gradient: ')")
        shown = "Shown: token gradient, 3 passes, insertion − deletion 0.10 (0.05 to 0.15) on 9 images of photos (val)."
        assert page.run(line) == f"{shown} A more faithful map is being computed: score cam, 33 passes (0.20)\u00a0…"
        let_go(page)
        page.wait(f"{caption}.startsWith('Score cam: ')")
        assert page.run(line) == f"Shown: score cam, 33 passes. {REASON}"
        ranked(page)
        assert text(page, "#caption").startswith("Score cam: ")  # the ranking did not push it away
        asked = [url.partition("method=")[2] for url in page.requests if "/heat?" in url]
        assert [(url.partition("&")[0], "background" in url) for url in asked[:2]] == [
            ("clusters+attention_mass", False),
            ("token_gradient", False),
        ]
        assert all("background" in url for url in asked if url.startswith("score_cam"))  # dear, so nobody waits for it

        hold(page, "method=score_cam")  # it arrives after a person has chosen a map
        page.click("#classes li:nth-child(2) button")
        page.wait("window.held.length > 0")
        page.click("#stages label:nth-of-type(1) span")  # the map follows to another stage
        page.wait(f"{caption}.startsWith('Token gradient, stage 1 (its faith')")
        ranked(page)  # until the order has arrived, the cards move under the pointer
        page.click("#cards li:nth-child(2) .map-button")
        let_go(page)
        assert page.run("document.getElementById('show').value") == ""
        assert page.run(line) == "Your choice: a cluster. The most faithful map was score cam, 33 passes (0.20)."
        assert page.console == []


@needs_chromium
def test_what_was_chosen_last_stays_however_late_answers_are(tmp_path):
    folder = save_chosen(save_tiny_model(tmp_path / "tiny"), "token_gradient", beaten="grad_cam")
    first, last = (f"#stages label:nth-of-type({place}) span" for place in (1, 3))
    shown = "document.getElementById('show').value"
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        assert text(page, "#default-method") == f"Token gradient is shown first. {REASON}"
        page.run(HOLD)
        page.click("#examples button")
        ranked(page)

        hold(page, "/importance")  # the exact order arrives between press and release
        page.click(first)
        page.wait("document.getElementById('caption').textContent.startsWith('Token gradient, stage 1')")
        page.wait("window.held.length > 0")
        page.press_button("#cards li:nth-child(2) .map-button")
        let_go(page)
        page.release_button()
        ranked(page)
        assert page.run(shown) == ""
        page.point("h1")
        assert text(page, "#caption").startswith("Cluster ")

        hold(page, "/importance")  # it arrives after a cluster and then a method was chosen
        page.click(last)
        page.wait("window.held.length > 0")
        page.click("#cards li:nth-child(2) .map-button")
        page.click("[data-method=token_gradient] .map-button")
        page.point("h1")
        page.wait("document.getElementById('caption').textContent.startsWith('Token gradient: ')")
        let_go(page)
        ranked(page)
        assert page.run(shown) == "token_gradient"
        assert text(page, "#caption").startswith("Token gradient: ")

        page.click("[data-method=grad_cam] .map-button")  # whose map may have come unasked
        page.wait("document.getElementById('caption').textContent.startsWith('Grad cam')")
        hold(page, "/heat")  # the map of a stage arrives after another stage was chosen
        page.click(first)
        page.wait("window.held.length > 0")
        page.click(last)
        page.point("h1")
        let_go(page)
        ranked(page)
        assert page.run(shown) == "grad_cam"
        assert text(page, "#caption").startswith("Grad cam: ")

        hold(page, "/ablation")  # a prediction without a cluster arrives after another stage was chosen
        page.click("#cards .switch input")
        page.wait("window.held.length > 0")
        page.click(first)
        let_go(page)
        ranked(page)
        assert "without" not in text(page, "#sentence")

        hold(page, "/stages/3")  # another order is asked for before there is a stage to order
        page.click(last)
        page.wait("window.held.length > 0")
        page.run("document.getElementById('ranking').selectedIndex = 0")
        page.run("document.getElementById('ranking').dispatchEvent(new Event('change'))")
        let_go(page)
        ranked(page, page.run("document.getElementById('ranking').selectedOptions[0].textContent"))
        assert not page.run("document.getElementById('cards').inert")

        hold(page, "api/images/")  # two pictures, and the first one last
        page.run("document.querySelector('#examples li:nth-child(2) button').click()")
        page.wait("window.held.length > 0")
        page.run("document.querySelector('#examples li:nth-child(3) button').click()")
        page.wait("window.held.length > 1")
        page.run("window.held.reverse()")
        let_go(page)
        page.wait("document.querySelector('#examples li:nth-child(3) button').ariaPressed === 'true'")
        assert page.run("document.querySelectorAll('#examples [aria-pressed=true]').length") == 1
        assert page.console == []


@needs_chromium
def test_keyboard_alone_and_names_for_the_ear(folder, tmp_path):
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        page.run("document.querySelector('#examples button').focus()")
        page.press("Enter", 13, "\r")
        ranked(page)
        page.run("document.getElementById('viewer').focus()")
        page.press("ArrowRight", 39)
        assert "Patch in row" in text(page, "#caption")
        place = text(page, "#caption")
        page.press("ArrowUp", 38)
        assert text(page, "#caption") != place
        page.run("document.querySelector('#cards [role=switch]').focus()")
        page.press(" ", 32, " ")
        page.wait("document.getElementById('sentence').textContent.includes('without')")
        assert page.run("document.activeElement.getAttribute('role')") == "switch"
        tree = page.call("Accessibility.getFullAXTree")["nodes"]
        spoken = {"button", "switch", "slider", "combobox", "radio", "image", "img", "link", "application"}
        found = [node for node in tree if node.get("role", {}).get("value") in spoken and not node["ignored"]]
        assert len(found) > 40
        nameless = [node for node in found if not node.get("name", {}).get("value")]
        assert nameless == []
        assert page.console == []


@needs_chromium
def test_errors_are_sentences_in_the_page(folder, tmp_path):
    (tmp_path / "bad.png").write_text("no picture at all")
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        page.choose_file("#file", tmp_path / "bad.png")
        page.wait("!document.getElementById('message').hidden")
        assert "bad.png' is damaged or not an image" in text(page, "#message")
        page.click("#examples button")
        ranked(page)
        assert page.run("document.getElementById('message').hidden")
        for number in page.run("[...document.querySelectorAll('#cards [role=switch]')].map((_, i) => i)"):
            page.run(f"document.querySelectorAll('#cards [role=switch]')[{number}].click()")
        page.wait("!document.getElementById('message').hidden")
        assert "keep at least one" in text(page, "#message")
        assert page.run("[...document.querySelectorAll('#cards [role=switch]')].some((e) => e.checked)")
        assert all("status of 422" in line for line in page.console)  # the browser's own remark
        assert len(page.console) == 2


@needs_chromium
def test_names_are_text(folder, tmp_path):
    trained = load_model(folder)
    app = create_app(Explorer(trained._replace(classes=tuple(f"{HOSTILE}{i}" for i in range(10)))))
    (tmp_path / f"{HOSTILE}.png").write_bytes(png())
    with running(app) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        page.choose_file("#file", tmp_path / f"{HOSTILE}.png")
        ranked(page)
        assert HOSTILE in text(page, "#classes .name")
        assert page.run("document.querySelectorAll('img:not(#sharp, #visit img)').length") == 0
        assert text(page, "#file-name") == f"{HOSTILE}.png"
        assert page.console == []
        assert strangers(page, address) == []


@needs_chromium
def test_model_without_clusters(tmp_path):
    app, _ = application(save_tiny_model(tmp_path / "plain", clusters=(0, 0, 0, 0)))
    with running(app) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        page.click("#examples button")
        page.wait("document.querySelectorAll('#method-cards canvas').length >= 3")
        assert "has no clusters. Inside it can be seen: " in text(page, "#inside")
        assert page.run("document.getElementById('clusters').hidden")
        page.point("#viewer")
        assert "Values from" in text(page, "#caption")  # of some map
        assert page.console == []


@needs_chromium
def test_without_a_measurement_the_most_faithful_map_on_the_picture_leads(tmp_path):
    app, _ = application(save_tiny_model(tmp_path / "plain", clusters=(0, 0, 0, 0)))
    name, score = "card.dataset.method", "card.querySelector('.score').textContent"
    cards_now = f"[...document.querySelectorAll('#method-cards li')].map((card) => [{name}, {score}])"
    with running(app) as address, browser(tmp_path) as page:
        page.open(f"{address}/")
        page.click("#examples button")
        page.wait("document.getElementById('default-method').textContent.includes('most faithful of the quick ones')")
        page.wait("!document.getElementById('compute').disabled")
        cards = page.run(cards_now)
        measured = [float(score.replace("−", "-")) for _, score in cards if score]
        assert len(measured) > 3
        assert measured == sorted(measured, reverse=True)
        assert all(score == "" for _, score in cards[len(measured) :])  # dear ones wait, behind the others
        best = cards[0][0]
        assert page.run("document.getElementById('show').value") == best
        words = f"{best.replace('_', ' ')} is the most faithful of the quick ones on this picture"
        assert text(page, "#default-method").lower().startswith(words)
        assert "was not measured" in text(page, "#default-method")
        page.click("#examples li:nth-child(2) button")
        page.wait("document.querySelectorAll('#method-cards canvas').length >= 3")
        assert page.console == []
