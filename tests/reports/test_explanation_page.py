"""The report is one file: nothing outside it is requested, names are text, equal inputs give equal bytes."""

import re
from dataclasses import replace

import numpy as np
import torch
from PIL import Image

from tests.support.browser import browser, needs_chromium, visit
from vitreous.clusters.layer import Layer, as_distributions, spatial_entropy
from vitreous.faithfulness.scoring import DECIDES
from vitreous.reports.explanation import Clusters, Explanation, MethodMap, StageLoad
from vitreous.reports.explanation_page import named, render_explanations

HOSTILE = '"><script>alert(1)</script>&@TITLE@'


def method(name: str, difference: float, *, side: int = 4, seed: int = 0, **more: bool) -> MethodMap:
    heat = torch.rand(side, side, generator=torch.Generator().manual_seed(seed))
    scores = {DECIDES: difference, "insertion_blur": 0.8, "deletion_blur": 0.8 - difference}
    return MethodMap(name, "What it shows.", heat, scores, (0.1, 0.5, 0.9), (0.9, 0.4, 0.1), **more)


def explanation(
    name: str = "cat.png", *, clusters: int = 5, side: int = 32, grid: int = 4, seed: int = 0, maps: int = 2
) -> Explanation:
    rng = np.random.default_rng(seed)
    heat = as_distributions(torch.from_numpy(rng.random((clusters, grid, grid))).float())
    scores = 0.4 - 0.1 * torch.arange(clusters)
    return Explanation(
        name=name,
        picture=Image.fromarray(rng.integers(0, 256, (side, side, 3), dtype=np.uint8)),
        probabilities=(("cat", 0.75), ("dog", 0.25)),
        watched="dog",
        true="dog",
        clusters=Clusters(
            layer=Layer(2, None, "clusters", "stages.1.clusters"),
            head=None,
            maps=heat,
            entropy=spatial_entropy(heat),
            ranking="ablation",
            importance={"ablation": scores, "random": scores.flip(0)},
            order=tuple(range(clusters)),
            attention=as_distributions(heat.permute(1, 2, 0)).permute(2, 0, 1),
            groups=tuple((m,) for m in range(clusters)),
            group_drop=tuple(scores.tolist()),
            counts=(1, 2),
            left={"ablation": (1.0, 0.5), "random": (1.9, 1.8)},
            before=2.0,
        ),
        load=tuple(
            StageLoad(
                stage, {"uniform": lost, "attention_off": 0.1}, {"uniform": lost > 1, "attention_off": False}, True
            )
            for stage, lost in ((1, 0.2), (2, 1.5))
        ),
        methods=(
            *(method(f"method {i}", 0.5 - i / 10, seed=i, side=grid) for i in range(maps)),
            method("centre_blob", 0.2, control=True),
        ),
        default="method 0",
        reason="It was the best of all.",
    )


def page(*items: Explanation, top_k: int = 3, **options) -> str:
    return render_explanations(items, title="What a model looked at", facts={"model": "paca"}, top_k=top_k, **options)


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


def test_shows_prediction_load_groups_clusters_and_methods():
    html = page(explanation(clusters=5), top_k=3)
    assert html.count('<figure class="tile') == 3 + 4 + 3  # methods, groups, clusters
    assert len(re.findall(r"<tr><td>\d", html)) == 5
    assert "it is <b>dog</b>" in html
    assert "Look first at" in html
    assert "It was the best of all." in html
    assert '+1.50 <span class="wrong">answer changes</span>' in html
    assert "ablation <b>(best)</b>" in html  # its removals cost most
    assert html.count("<polyline") == 2 * 3 + 2
    for image in re.findall(r"<img[^>]*>", html):
        assert "alt=" in image


def test_of_a_large_group_the_first_are_named():
    assert named([4]) == "cluster 4"
    assert named(range(6)) == "clusters 0, 1, 2, 3, 4, 5"
    assert named(range(7)) == "7 clusters: 0, 1, 2, 3, 4, 5, …"


def test_methods_are_ordered_by_what_was_measured_on_the_image():
    names = re.findall(r'<b class="name">([^<]+)</b>', page(replace(explanation(), methods=(
        method("worst", -0.1), method("best", 0.6), method("centre_blob", 0.3, control=True)))))  # fmt: skip
    assert names == ["best", "centre_blob", "worst"]


def test_doubts_are_said():
    item = explanation()
    idle = replace(item, load=tuple(load._replace(carries=load.stage == 1) for load in item.load))
    assert "The clusters of stage 2 carry nothing here." in page(idle)
    assert "Stages that carry load here: 1." in page(idle)
    assert "carry nothing here" not in page(item)
    beaten = replace(item, methods=(method("method 0", 0.1, beats_controls=False), item.methods[-1]))
    assert "no better than its controls" in page(beaten)
    assert "the control centre_blob reaches more (+0.20): doubt this map" in page(beaten)
    assert "doubt this map" not in page(item)


def test_masking_is_explained_where_it_ranks():
    item = explanation()
    scores = {"masking": item.clusters.importance["ablation"]}
    masked = replace(item.clusters, ranking="masking", importance=scores, left={}, counts=())
    html = page(replace(item, clusters=masked), hidden_with="black")
    assert "arXiv 2203.11987" in html
    assert "A picture with a black" in html
    assert "arXiv" not in page(item)


def test_model_without_clusters():
    html = page(replace(explanation(), clusters=None, load=()))
    assert "Causal load" not in html
    assert "Clusters." not in html
    assert html.count('<figure class="tile') == 3


def test_two_models_side_by_side():
    html = page(explanation(), beside=[replace(explanation(), facts={"model": "other"})])
    assert html.count('<div class="pair">') == 1
    assert "other: predicted" in html
    assert html.count("<h2>Maps, method by method</h2>") == 1
    assert html.count('<div class="method-row"><h3') == 3
    assert len(set(re.findall(r' id="([^"]+)"', html))) == len(re.findall(r' id="([^"]+)"', html))


def test_methods_of_two_models_stand_in_one_row():
    """In the order of the first model; what the other does not have is said."""
    first = replace(explanation(), methods=(method("a", 0.1), method("b", 0.4)))
    other = replace(explanation(), methods=(method("c", 0.2), method("a", 0.5)))
    html = page(first, beside=[other])
    assert re.findall(r'<h3 class="name">(\w+)', html) == ["b", "a", "c"]
    rows = html.split('<div class="method-row"><h3')[1:]
    found = [re.findall(r'data-for="([\w-]+)"', row) for row in rows]
    assert found == [["image-1"], ["image-1", "other-1"], ["other-1"]]
    assert html.count("not for this model") == 2


def test_several_pictures_begin_with_how_many_are_right():
    items = [explanation(), replace(explanation("dog.png"), true="cat"), replace(explanation("x.png"), true=None)]
    assert '<p class="conclusion">1 of 2 answers are right.</p>' in page(*items)
    assert '<p class="conclusion">' not in page(explanation())


@needs_chromium
def test_no_column_of_two_models_is_cut(tmp_path):
    file = tmp_path / "report.html"
    file.write_text(page(explanation(grid=8, side=64), beside=[explanation(seed=1, grid=8, side=64)]), encoding="utf-8")
    cut = "[...document.querySelectorAll('.scroll, .ranking')].filter((e) => e.scrollWidth > e.clientWidth + 1).length"
    names = cut.replace(".length", ".map((e) => e.textContent.slice(0, 60))")
    with browser(tmp_path) as tab:
        for width in (1440, 1210, 1000, 390):
            tab.look(width=width, height=900)
            tab.open(file.resolve().as_uri())
            tab.run("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
            assert tab.run(cut) == 0, (width, tab.run(names))
            assert tab.run("document.documentElement.scrollWidth") <= width
        tab.click('.show[data-for="other-1"]')
        assert tab.run("document.querySelector('#other-1 .viewer figcaption').textContent").startswith("method 0")
        assert tab.console == []


def test_names_are_text():
    hostile = replace(
        explanation(),
        name=HOSTILE,
        true=HOSTILE,
        watched=HOSTILE,
        probabilities=((HOSTILE, 1.0),),
        default=HOSTILE,
        reason=HOSTILE,
        methods=(method(HOSTILE, 0.5),),
        facts={"model": HOSTILE},
    )
    html = page(hostile)
    assert "<script>alert" not in html
    assert html.count("<script") == 1
    assert "@TITLE@" in html  # a placeholder in a name stays what it was


def test_equal_inputs_give_equal_bytes():
    assert page(explanation()) == page(explanation())


def test_ten_images_of_noise_stay_below_five_megabytes():
    items = [explanation(f"{seed}.png", clusters=100, side=224, grid=56, seed=seed, maps=5) for seed in range(10)]
    assert len(page(*items, top_k=6).encode()) < 5e6


def test_flat_scores_and_single_cluster():
    flat = explanation(clusters=1)
    zero = replace(flat.clusters, importance={"ablation": torch.zeros(1)}, left={}, counts=())
    flat = replace(flat, clusters=zero, true=None)
    assert "All 1 clusters" in page(flat)


@needs_chromium
def test_opens_in_chromium_without_request_or_console_message(tmp_path):
    report = tmp_path / "report.html"
    report.write_text(page(explanation(HOSTILE), explanation("dog.png", grid=56, seed=1)), encoding="utf-8")
    seen = visit(report, tmp_path)
    assert seen.console == []
    assert seen.requests == []
    assert 'data-ready="yes"' in seen.dom  # the script ran to its end
    assert "method 0: insertion − deletion +0.50</figcaption>" in seen.dom  # the default is shown first
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


@needs_chromium
def test_pointing_at_places_and_clusters(tmp_path):
    """A place tells which clusters it looks at; a cluster is drawn, and what was chosen comes back."""
    item = explanation(clusters=3, grid=2)
    looks = torch.tensor([[[0.7, 0.1], [0.2, 0.3]], [[0.2, 0.8], [0.2, 0.3]], [[0.1, 0.1], [0.6, 0.4]]])
    file = tmp_path / "report.html"
    file.write_text(page(replace(item, clusters=replace(item.clusters, attention=looks))), encoding="utf-8")
    with browser(tmp_path) as tab:
        tab.open(file.resolve().as_uri())
        tab.point(".places", 0.75, 0.25)
        told = tab.run("document.querySelector('.attended').innerText").split("\n")
        assert [line for line in told if line][:3] == ["Row 1, column 2 looks at", "cluster 1", "80 %"]
        assert tab.run("document.querySelectorAll('.show.highlighted').length") == 2  # a tile and a row of the table
        tab.point(".tile .show[data-stack=clusters][data-cell='2']")
        assert tab.run("document.querySelector('.attended').innerText") == ""
        assert "cluster 2, rank 3 of 3" in tab.run("document.querySelector('.viewer figcaption').innerText")
        tab.point("h1")
        assert "method 0" in tab.run("document.querySelector('.viewer figcaption').innerText")
        assert tab.console == []
