"""The page of an evaluation: the answer first, names as text, tables that can be sorted and searched."""

import re

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.browser import browser, needs_chromium
from vitreous.metrics.accuracy import DetailedMetrics
from vitreous.reports.evaluation import Evaluation, Grid, Speed, WorstMistake
from vitreous.reports.evaluation_page import class_grid, render_evaluation, title_of
from vitreous.reports.page import ending

HOSTILE = '"><script>alert(1)</script>'
LONG = "/data/photographs/of/many/years/2019/summer/holidays/val/cat/IMG_20190714_2041.jpg"


def evaluation(classes: int = 6, images: int = 240, *, right: float = 0.8, name: str = "class") -> Evaluation:
    """Of a classifier that confuses a class with the next one."""
    rng = np.random.default_rng(0)
    details = DetailedMetrics(tuple(f"{name} {number}" for number in range(classes)), worst=6)
    true = np.arange(images) % classes
    answers = np.where(rng.random(images) < right, true, (true + 1) % classes)
    predictions = []
    for answer, sure in zip(answers, rng.uniform(0.5, 1, images), strict=True):
        others = [other for other in range(classes) if other != answer]
        predictions.append(
            {"labels": torch.tensor([answer, *others]), "scores": torch.tensor([sure] + [0.0] * len(others))}
        )
    details.update(predictions, {"labels": torch.tensor(true), "indices": torch.arange(images)})
    picture = Image.fromarray(rng.integers(0, 256, (32, 48, 3), dtype=np.uint8))
    names = details.accuracy.classes
    mistakes = [
        WorstMistake(LONG, names[m.true], names[m.answer], m.confidence, picture) for m in details.mistakes.worst
    ]
    return Evaluation(
        model="paca_b0",
        data="photos",
        split="val",
        images=images,
        size=(64, 64),
        values={"loss": 0.5} | details.compute(),
        speed=Speed(80.0, 16, "cpu", "fp32", 2, 2),
        sizes=(),
        details=details,
        mistakes=tuple(mistakes),
    )


def test_the_answer_comes_first_and_reading_is_folded():
    found = evaluation()
    html = render_evaluation(found)
    assert title_of(found) == f"paca_b0: {found.values['top1']:.1%} of 240 images right"
    assert f"<h1>{title_of(found)}</h1>" in html
    assert '<details class="reading">' in html
    assert html == render_evaluation(found), "equal evaluations give equal bytes"


def test_every_pair_that_occurred_has_a_cell():
    found = evaluation()
    html = render_evaluation(found)
    counts = found.details.accuracy.confusion()
    assert html.count('class="hit"') >= 6
    assert html.count('class="miss"') == np.count_nonzero(counts) - 6
    assert f"class 0 answered class 1: {counts[0, 1]} of {counts[0].sum()}" in html


def test_many_classes_are_a_heat_map_and_can_be_searched():
    html = render_evaluation(evaluation(classes=100, images=300))
    assert 'class="heat-matrix"' in html
    assert 'data-table="table-classes"' in html


def test_a_mistake_shows_the_end_of_its_name():
    html = render_evaluation(evaluation())
    assert f'title="{LONG}"' in html
    assert f">{ending(LONG)}<" in html
    assert ending(LONG).endswith("val/cat/IMG_20190714_2041.jpg")
    assert len(ending(LONG)) == 42
    assert ending("cat.png") == "cat.png"


def test_the_class_that_is_recognised_least_comes_first():
    grid = class_grid(evaluation().details)
    recalls = [float(row[2].rstrip("%")) for row in grid.rows]
    assert recalls == sorted(recalls)
    assert [grid.is_numeric(column) for column in range(1, 5)] == [True, True, True, False]


def test_names_are_text():
    html = render_evaluation(evaluation(name=HOSTILE)._replace(model=HOSTILE, data=HOSTILE))
    assert "<script>alert" not in html
    assert not re.findall(r"""(?:src|href|url\()=?["']?(?!data:|#)[a-z/.]""", html)


@pytest.mark.parametrize("values", [{"loss": 0.4, "AP": 0.31}, {"AP": 0.31, "AP50": -1.0}])
def test_other_tasks_have_their_figures_and_no_matrix(values):
    found = evaluation()._replace(details=None, mistakes=(), values=values)
    html = render_evaluation(found)
    assert "AP 31.00%" in title_of(found)
    assert 'class="matrix"' not in html


def test_columns_of_numbers_are_told_from_text():
    grid = Grid("t", ("a", "b", "c", "d"), [("x", "1,024", "12 (fewer than 30)", "3 × cat"), ("y", "–", "", "–")])
    assert [grid.is_numeric(column) for column in range(4)] == [False, True, True, False]


@needs_chromium
def test_tables_are_sorted_and_searched(tmp_path):
    file = tmp_path / "evaluation.html"
    file.write_text(render_evaluation(evaluation(classes=20)))
    first = "document.querySelector('#table-classes tbody tr').cells[0].textContent"
    with browser(tmp_path) as page:
        page.open(file.as_uri())
        lowest = page.run(first)
        page.click("#table-classes thead th:nth-child(3) button")
        assert page.run(first) != lowest, "the highest recall is first now"
        page.click("#table-classes thead th:nth-child(3) button")
        page.click("#table-classes thead th:nth-child(1) button")
        assert page.run(first) == "class 0"
        page.run("(() => { const i = document.querySelector('.search input'); i.value = 'class 19';"
                 " i.dispatchEvent(new Event('input')); })()")  # fmt: skip
        shown = "[...document.querySelectorAll('#table-classes tbody tr')].filter((r) => !r.hidden).length"
        assert page.run(shown) >= 1
        assert page.run("document.querySelector('.search output').textContent").endswith("of 20")
        assert not page.console
        page.look(width=390)
        assert page.run("document.documentElement.scrollWidth") <= 390
