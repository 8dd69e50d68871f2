"""Nobody is kept out: axe-core finds nothing serious in the explorer and in the reports, light and dark."""

import pytest

from tests.support.axe import severe_faults
from tests.support.browser import browser, needs_chromium
from tests.support.explorer import application, png, ranked, running, save_lively_model
from tests.support.tiny_model import save_tiny_dense
from vitreous.atlas import atlas
from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.shortcuts import shortcuts

OPEN_ALL = "document.querySelectorAll('details').forEach((one) => { one.open = true; })"


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_lively_model(tmp_path_factory.mktemp("model") / "lively")


@needs_chromium
def test_a_bad_page_is_noticed(tmp_path):
    (tmp_path / "bad.html").write_text(
        '<!doctype html><html lang="en" data-ready="yes"><title>bad</title><h1>Bad</h1><main><p>Ink.</p>'
        '<p style="color: #bbb">Nobody reads this.</p><input></main></html>'
    )
    with browser(tmp_path) as page:
        page.open((tmp_path / "bad.html").as_uri())
        assert {fault.partition(" ")[0] for fault in severe_faults(page)} == {"color-contrast", "label"}


@needs_chromium
def test_the_explorer_in_every_state(folder, tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(4, side=320))
    faults = []
    with running(application(folder)[0]) as address, browser(tmp_path) as page:
        for dark in (False, True):
            page.look(width=1280, height=900, dark=dark)
            page.open(f"{address}/")
            faults += severe_faults(page)  # nothing chosen yet
            page.choose_file("#file", picture)
            ranked(page)
            page.run(OPEN_ALL)
            page.wait("document.querySelectorAll('.skeleton').length === 0")
            page.click("#cards .switch input")
            page.wait("document.getElementById('sentence').textContent.includes('without')")
            faults += severe_faults(page)
            page.click("#help")
            faults += severe_faults(page)
            page.click("#shortcuts-close")
            page.look(width=390, height=800, dark=dark)
            faults += severe_faults(page)
        assert page.console == []
    assert faults == []


@needs_chromium
def test_the_explorer_of_findings(tmp_path):
    picture = tmp_path / "mine.png"
    picture.write_bytes(png(4))
    app, _ = application(save_tiny_dense(tmp_path / "detect", "detect", ("disc", "box")))
    with running(app) as address, browser(tmp_path) as page:
        for dark in (False, True):
            page.look(width=1280, height=900, dark=dark)
            page.open(f"{address}/")
            page.choose_file("#file", picture)
            ranked(page)
            assert severe_faults(page) == []


@needs_chromium
def test_reports_opened_as_files(folder, tmp_path):
    explanation, other = (tmp_path / name for name in ("explanation", "beside"))
    pages = [explain(folder, ("shapes:val:0-1",), method=("grad_cam", "token_gradient"), out=explanation, device="cpu")]
    pages.append(explain(folder, ("shapes:val:0",), compare=folder, method=("grad_cam",), out=other, device="cpu"))
    pages.append(atlas(folder, "shapes", limit=20, out=tmp_path / "atlas", device="cpu"))
    pages.append(shortcuts(folder, "shapes:corner_mark=0.9", limit=20, out=tmp_path / "shortcuts", device="cpu").page)
    evaluate(folder, "shapes", count=40, out=tmp_path / "evaluation", device="cpu")
    pages.append(tmp_path / "evaluation" / "evaluation.html")
    faults = []
    with browser(tmp_path) as page:
        for file in pages:
            for dark in (False, True):
                page.look(width=1280, height=900, dark=dark)
                page.call("Page.navigate", url=file.resolve().as_uri())
                page.wait("document.readyState === 'complete'")  # not all of them have scripts that say so
                faults += [f"{file.parent.name}: {fault}" for fault in severe_faults(page)]
                page.run(OPEN_ALL)
                faults += [f"{file.parent.name}, opened: {fault}" for fault in severe_faults(page)]
    assert faults == []
