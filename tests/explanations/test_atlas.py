"""`vitreous atlas`: its numbers once more by hand, memory that does not grow, what is written and refused."""

import json
import pickle
import re

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from PIL import Image

from tests.support.browser import browser, needs_chromium
from tests.support.explained_models import family
from tests.support.tiny_model import save_tiny_model
from vitreous.atlas import atlas as write_atlas
from vitreous.clusters.atlas import ATLAS_RANKING, Atlas, TopK, measure_clusters
from vitreous.clusters.atlas_figures import atlas_classes, atlas_clusters, atlas_summary
from vitreous.clusters.gates import cluster_layer, gated
from vitreous.data.layouts.shapes import ShapesImages
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.explanations.atlas import gather
from vitreous.explanations.dataset import read_batches, selection
from vitreous.layers.tap import record
from vitreous.reports.atlas_page import TILE, draw_region, regions_of, similar_regions
from vitreous.runs.model_folder import load_model
from vitreous.runs.trained_model import TrainedModel

IMAGES = 24


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def folder(model, tmp_path_factory):
    out = tmp_path_factory.mktemp("atlas") / "out"
    write_atlas(model, "shapes", limit=IMAGES, out=out, batch_size=10, like="shapes:val:3", cluster=2)
    return out


@pytest.fixture(scope="module")
def given():
    """A model with large weights, so that maps have peaks and answers differ, and its data."""
    network = family(clusters=(6, 6, 12, 0), stem_stride=2)
    network.reset_classifier(10)
    torch.nn.init.normal_(network.head.weight)
    images = ShapesImages("train", targets="labels", size=(32, 32), count=IMAGES)
    return TrainedModel(network, "tiny", "classify", tuple(CATEGORIES), Preprocess(size=(32, 32))), images


def gathered(given, out, batch_size=7):
    trained, images = given
    layer = cluster_layer(trained.model)
    return gather(trained, images, layer, ranking="logit_gate", limit=None, batch_size=batch_size, out=out).atlas


@pytest.fixture(scope="module")
def atlas(given, tmp_path_factory):
    return gathered(given, tmp_path_factory.mktemp("atlas"))


@pytest.fixture(scope="module")
def by_hand(given):
    """The same from one image after the other, by plain torch."""
    trained, images = given
    found = []
    for number in range(len(images)):
        x = trained.preprocess(images.picture(number))[None]
        gate = torch.ones(12, requires_grad=True)
        with record(trained.model, "stages.2.clusters") as maps, gated(trained.model, 3, logit_gate=gate):
            logits = trained.model(x)[0]
        answer = int(logits.argmax())
        rest = torch.cat([logits[:answer], logits[answer + 1 :]])
        (slope,) = torch.autograd.grad(logits[answer] - rest.logsumexp(0), gate)
        z = maps["stages.2.clusters"][0].detach()
        mask = torch.from_numpy(np.array(images.object_mask(number))).float()
        cells = mask.unflatten(0, (z.shape[1], -1)).unflatten(2, (z.shape[2], -1)).mean((1, 3))
        positive = slope.clamp_min(0)
        found.append(
            dict(
                label=images.target(number)["labels"],
                answer=answer,
                slope=slope,
                share=positive / positive.sum(),
                on_object=(z * cells).sum((1, 2)),
                area=1 - cells.mean(),
                peak=z.amax((1, 2)) * z[0].numel(),
                likeness=torch.corrcoef(z.flatten(1)),
            )
        )
    return found


def mean(values):
    return torch.stack(list(values)).mean(0)


def close(value, expected):
    """Single precision in batches against single images: sums of a few dozen values near one."""
    assert value == pytest.approx(float(expected), abs=2e-5, rel=1e-4)


def test_figures_of_clusters_are_those_by_hand(atlas, by_hand):
    clusters = atlas_clusters(atlas, CATEGORIES)
    assert sorted(one.number for one in clusters) == list(range(12))
    assert [one.share for one in clusters] == sorted((one.share for one in clusters), reverse=True)
    wrong = [item for item in by_hand if item["label"] != item["answer"]]
    assert 0 < len(wrong) < IMAGES  # or half of this would be untested
    likeness = mean(item["likeness"] for item in by_hand)
    for one in clusters:
        m = one.number
        close(one.importance, mean(item["slope"] for item in by_hand)[m])
        close(one.share, mean(item["share"] for item in by_hand)[m])
        close(one.share_of_wrong, mean(item["share"] for item in wrong)[m])
        close(one.strength, mean(item["peak"] for item in by_hand)[m])
        close(one.on_object, mean(item["on_object"] for item in by_hand)[m])
        shares = torch.zeros(10)
        for item in by_hand:
            shares[item["label"]] += item["share"][m]
        assert one.label == CATEGORIES[int(shares.argmax())]
        close(one.purity, shares.max() / shares.sum())
        close(one.chance, sum(item["label"] == int(shares.argmax()) for item in by_hand) / IMAGES)
        outside = sum(item["share"][m] * (1 - item["on_object"][m]) for item in by_hand)
        close(one.background, outside / shares.sum())
        for k in range(10):
            answered = [item["slope"][m] for item in by_hand if item["answer"] == k]
            assert (one.by_class[k] is None) == (not answered)
            if answered:
                close(one.by_class[k], mean(answered))
        others = sorted((n for n in range(12) if n != m), key=lambda n: -likeness[m, n])
        assert [n for n, _ in one.nearest] == others[:3]
        close(one.nearest[0][1], likeness[m, others[0]])


def test_figures_of_classes_are_those_by_hand(atlas, by_hand):
    for k, one in enumerate(atlas_classes(atlas, CATEGORIES)):
        answered = [item for item in by_hand if item["answer"] == k]
        own = [item for item in by_hand if item["label"] == k]
        assert (one.images, one.answered) == (len(own), len(answered))
        assert one.right == sum(item["answer"] == k for item in own)
        if answered:
            outside = [(item["share"] * (1 - item["on_object"])).sum() for item in answered]
            close(one.background, mean(outside))
            close(one.area, mean(item["area"] for item in answered))
            slopes = mean(item["slope"] for item in answered)
            assert one.clusters == [m for m in slopes.argsort(descending=True).tolist() if slopes[m] > 0][:3]
            assert one.shortcut == (one.background >= one.area)


def test_load_is_that_of_even_maps(given, atlas):
    trained, images = given
    x = torch.stack([trained.preprocess(images.picture(number)) for number in range(IMAGES)])
    tap = trained.model.get_submodule("stages.2.clusters")
    with torch.no_grad():
        before = trained.model(x)
        handle = tap.register_forward_hook(lambda _tap, _inputs, z: torch.full_like(z, 1 / 16))
        after = trained.model(x)
        handle.remove()
    answer = before.argmax(1, keepdim=True)
    odds = [p.gather(1, answer).logit() for p in (before.double().softmax(1), after.double().softmax(1))]
    close(atlas_summary(atlas).lost, (odds[0] - odds[1]).mean())
    close(atlas_summary(atlas).changed, (after.argmax(1, keepdim=True) != answer).double().mean())


def test_kept_regions_are_the_best_of_all(atlas, by_hand):
    peaks = torch.stack([item["peak"] for item in by_hand])  # (images, M)
    for m in range(12):
        top = regions_of(atlas.kept["top"], m, m, "top")
        assert [region.image for region in top] == peaks[:, m].argsort(descending=True, stable=True)[:8].tolist()
        assert all(
            region.importance == pytest.approx(float(by_hand[region.image]["slope"][m]), abs=2e-5) for region in top
        )
        mistakes = [(-float(item["slope"][m]), n) for n, item in enumerate(by_hand) if item["label"] != item["answer"]]
        expected = [n for slope, n in sorted(mistakes) if slope < 0][:4]
        assert [region.image for region in regions_of(atlas.kept["mistakes"], m, m, "mistakes")] == expected
    typical = [{region.image for region in regions_of(atlas.kept["typical"], m, m, "typical")} for m in range(12)]
    assert all(len(images) == 6 for images in typical)
    assert len(set().union(*typical)) > 12  # another few for every cluster


def test_result_does_not_depend_on_the_batches(given, atlas, tmp_path):
    other = gathered(given, tmp_path, batch_size=5)
    for name, value in vars(atlas).items():
        if isinstance(value, torch.Tensor):
            torch.testing.assert_close(value, getattr(other, name), atol=1e-4, rtol=1e-4)  # single precision inside
    for name, kept in atlas.kept.items():
        assert kept.fields["image"].equal(other.kept[name].fields["image"])


def test_state_does_not_grow(given):
    trained, _ = given
    layer, atlas, sizes = cluster_layer(trained.model), Atlas(12, 10), {}
    images = ShapesImages("train", targets="labels", size=(32, 32), count=128)
    for batch in read_batches(trained, images, range(128), 16, label="atlas"):
        atlas.add(measure_clusters(trained.model, batch.inputs, layer), batch.numbers, batch.labels, batch.objects)
        sizes[int(atlas.labelled.sum())] = len(pickle.dumps(atlas))
    assert atlas.kept["typical"].count(0) == 6
    assert sizes[32] == sizes[128]


def test_kept_is_what_sorting_everything_keeps():
    scores = torch.rand(3, 40).mul(10).round()  # many are equal
    scores[2, 3:] = -torch.inf
    kept = TopK(3, 5)
    for part in torch.arange(40).split(7):
        kept.offer(scores[:, part], {"image": part.expand(3, -1)})
    for row in range(3):
        expected = [
            n for n in scores[row].argsort(descending=True, stable=True).tolist() if scores[row, n] > -torch.inf
        ]
        assert kept.fields["image"][row, : kept.count(row)].tolist() == expected[:5]


def test_alike_are_the_nearest_tokens_of_other_images(atlas):
    regions = [region for m in range(12) for region in regions_of(atlas.kept["top"], m, m, "top")]
    found = similar_regions(regions)
    for place in (0, 17, 95):
        cosines = [F.cosine_similarity(regions[place].token, region.token, dim=0).item() for region in regions]
        best = {}
        for other, region in enumerate(regions):
            if region.image != regions[place].image:
                best[region.image] = max(best.get(region.image, -2.0), cosines[other])
        assert [cosine for _, cosine in found[place]] == pytest.approx(
            sorted(best.values(), reverse=True)[:8], abs=1e-5
        )


def test_region_is_cut_around_the_peak_and_outlined():
    heat = torch.zeros(8, 8)
    heat[1, 6] = 1.0  # its centre is at (52, 12) of 64 pixels
    picture = Image.new("RGB", (64, 64), "blue")
    picture.paste("red", (48, 8, 56, 16))
    tile = np.asarray(draw_region(picture, heat)).astype(int)
    assert tile.shape == (TILE, TILE, 3)
    assert (tile == 255).all(-1).any()  # a white outline
    rows, columns = np.nonzero((tile[..., 0] > 200) & (tile[..., 2] < 60))  # what is left of the red inside it
    assert abs(rows.mean() - 12 / 32 * TILE) < 3
    assert abs(columns.mean() - 20 / 32 * TILE) < 3


def test_folder_holds_page_pictures_and_numbers(folder):
    content = json.loads((folder / "atlas.json").read_text())
    assert content["summary"]["images"] == IMAGES
    assert content["importance_by"] == ATLAS_RANKING == "integrated"
    assert sorted(one["number"] for one in content["clusters"]) == list(range(6))
    assert {path.name for path in folder.iterdir()} == {*content["files"], "atlas.json"}
    page = (folder / "index.html").read_text()
    shown = set(re.findall(r'<image href="([^"]+)"', page))
    assert shown == {name for name in content["files"] if name != "index.html"}
    assert not re.search(r"(?:src|href)=\"(?:https?:)?//", page)
    for one in content["clusters"]:
        assert f'id="cluster-{one["number"]}"' in page
        with Image.open(folder / one["regions"][0]["picture"]) as strip:
            assert strip.size == (TILE * len(one["regions"]), TILE)
    numbers = [region["number"] for one in content["clusters"] for region in one["regions"]]
    assert numbers == list(range(len(numbers)))
    assert all(f'id="region-{number}"' in page for number in numbers)


def test_like_finds_the_nearest_of_the_data(model, folder):
    """Once more by hand: the cosine of what the attention reads of cluster 2, over the images selected."""
    found = json.loads((folder / "atlas.json").read_text())["like"]
    assert (found[0]["image"], found[0]["cluster"]) == ("shapes:val:3", 2)
    trained = load_model(model)
    images = ShapesImages("val", targets="labels", size=(64, 64))
    seen: list[torch.Tensor] = []
    handle = (
        trained.model.stages[2]
        .blocks[0]
        .attention.cluster_norm.register_forward_hook(lambda _norm, _inputs, output: seen.append(output[:, 2]))
    )
    numbers = list(selection(len(images), IMAGES))
    with torch.no_grad():
        trained.model(torch.stack([trained.preprocess(images.picture(number)) for number in (3, *numbers)]))
    handle.remove()
    cosine = F.cosine_similarity(seen[0][1:], seen[0][:1]).tolist()
    order = sorted(range(IMAGES), key=lambda place: -cosine[place])[:16]
    assert [region["image"] for region in found[1:]] == [f"val/{numbers[place]}" for place in order]


@needs_chromium
def test_page_in_a_browser(folder, tmp_path):
    with browser(tmp_path) as tab:
        tab.open((folder / "index.html").as_uri())
        tab.look(width=1440, height=900)
        assert tab.run("document.querySelector('.thumbs').getBoundingClientRect().bottom") < 2 * 900
        assert tab.run("document.querySelectorAll('.cluster[open]').length") == 0, "details on demand"
        chosen = "#clusters .cluster .show"
        tab.click(".cluster summary")
        tab.click(chosen)
        tab.wait("!document.querySelector('.alike').hidden")
        similar = tab.run(f"document.querySelector('{chosen}').dataset.alike.split(' ').length")
        assert tab.run("document.querySelectorAll('.alike svg.region').length") == 1 + similar
        tab.press("Escape", 27)
        assert tab.run("document.querySelector('.alike').hidden")
        assert tab.run(f"document.activeElement === document.querySelector('{chosen}')")
        tab.run("document.querySelector('select').value = 'number'")
        tab.run("document.querySelector('select').dispatchEvent(new Event('change'))")
        shown = tab.run("[...document.querySelectorAll('.cluster')].map((c) => c.id)")
        assert shown == [f"cluster-{number}" for number in range(6)]
        words = tab.run("document.querySelector('#cluster-4').dataset.words")
        tab.run(f"document.querySelector('.order input').value = {json.dumps(words)}")
        tab.run("document.querySelector('.order input').dispatchEvent(new Event('input'))")
        assert tab.run("[...document.querySelectorAll('.cluster:not([hidden])')].map((c) => c.id)") == ["cluster-4"]
        tab.run("location.hash = 'cluster-5'")
        tab.wait("document.querySelector('#cluster-5').open && !document.querySelector('#cluster-5').hidden")
        assert tab.console == []
        assert all(address.startswith(folder.as_uri()) for address in tab.requests if not address.startswith("data:"))
        assert len({address for address in tab.requests if address.endswith(".jpg")}) == 7


def test_equal_inputs_give_equal_bytes(model, folder, tmp_path):
    write_atlas(model, "shapes", limit=IMAGES, out=tmp_path, batch_size=10, like="shapes:val:3", cluster=2)
    for path in folder.iterdir():
        assert path.read_bytes() == (tmp_path / path.name).read_bytes(), path.name


def save_pictures(folder, count=2):
    for label in CATEGORIES[:2]:
        (folder / "val" / label).mkdir(parents=True)
        for number in range(count):
            colour = (40 * number, 90, 10 * len(label))
            Image.new("RGB", (70, 64), colour).save(folder / "val" / label / f"{number}.png")
    return str(folder)


def test_damaged_picture_is_skipped_and_objects_may_be_unknown(model, tmp_path, capsys, caplog):
    data = save_pictures(tmp_path / "data")
    (tmp_path / "data" / "val" / CATEGORIES[0] / "0.png").write_bytes(b"no picture")
    write_atlas(model, data, out=tmp_path / "out")
    told = capsys.readouterr().err + caplog.text
    assert "skipped:" in told
    assert "1 of 4 images could not be read" in told
    content = json.loads((tmp_path / "out" / "atlas.json").read_text())
    assert content["summary"]["images"] == 3
    assert content["summary"]["background"] is None
    assert "background area" not in (tmp_path / "out" / "index.html").read_text()


def test_names_are_escaped(model, tmp_path):
    data = tmp_path / "data"
    save_pictures(data)
    (data / "val" / CATEGORIES[0] / "0.png").rename(data / "val" / CATEGORIES[0] / "<b>&.png")
    write_atlas(model, str(data), out=tmp_path / "out")
    page = (tmp_path / "out" / "index.html").read_text()
    assert "&lt;b&gt;&amp;.png" in page
    assert "<b>&.png" not in page


def test_selection_meets_every_class():
    """Classes take turns in the embedded data: every 20th image would meet half of them."""
    images = ShapesImages("val", targets="labels", size=(32, 32))
    assert len({images.target(number)["labels"] for number in selection(len(images), 100)}) == 10
    assert list(selection(7, None)) == list(selection(7, 9)) == list(range(7))
    chosen = selection(1000, 10)
    assert [number // 100 for number in chosen] == list(range(10))


def test_nan_is_refused(model, tmp_path):
    trained = load_model(model)
    images = ShapesImages("val", targets="labels", size=(64, 64), count=2)
    layer = cluster_layer(trained.model)
    with torch.no_grad():
        trained.model.stages[2].blocks[0].clustering.logits.weight.fill_(torch.nan)
    with pytest.raises(InputError, match="the map of the clusters for image 0 is not finite"):
        gather(trained, images, layer, ranking="logit_gate", limit=None, batch_size=2, out=tmp_path / "out")
    assert not (tmp_path / "out" / ".parts").exists()


def test_model_without_clusters_says_what_it_has(tmp_path):
    model = save_tiny_model(tmp_path / "plain", clusters=(0, 0, 0, 0))
    with pytest.raises(
        InputError, match=r"an atlas shows clusters, and this model .* has no clusters\. Inside it has patch_to_patch"
    ):
        write_atlas(model, "shapes", out=tmp_path / "out")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (dict(ranking="masking"), "the atlas takes logit_gate, value_gate"),
        (dict(stage=4), "stage 4 has no clusters"),
        (dict(limit=0), "--limit 0"),
        (dict(cluster=3), "--cluster 3 goes with --like"),
        (dict(like="shapes:val:0", cluster=6), "clusters 0 to 5"),
        (dict(like="shapes:val:0-3"), "stands for 4 images; give one"),
    ],
)
def test_bad_options(model, tmp_path, options, message):
    with pytest.raises(InputError, match=message):
        write_atlas(model, "shapes", out=tmp_path / "out", **options)
    assert not (tmp_path / "out").exists()
