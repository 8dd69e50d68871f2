"""Measures of maps on models whose truth is known, and the table over a data set."""

import numpy as np
import pytest
import torch
from torch import nn

from tests.support.explained_models import family, pictures, trained
from vitreous.attribution.controls import CentreBlob, RandomMap
from vitreous.attribution.gradient import GradCam
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.cluster_map import ClusterMap
from vitreous.errors import InputError
from vitreous.faithfulness.curves import Curves, area, curves, place_in_order
from vitreous.faithfulness.intervals import bootstrap, paired
from vitreous.faithfulness.localisation import energy, near, object_iou, pointing
from vitreous.faithfulness.sanity import map_similarity, randomisation, stability
from vitreous.faithfulness.scoring import DECIDES, MethodScores, ScoringBatch, score_methods


class Corner(nn.Module):
    """Class 1 is as probable as the top left quarter is bright."""

    def forward(self, x):
        return torch.stack([torch.zeros(len(x)), 8 * x[:, :, :4, :4].mean((1, 2, 3)) - 4], 1)


ONES = torch.ones(2, 3, 8, 8)
TARGET = ClassTarget(labels=torch.tensor([1, 1]))
TRUTH = torch.zeros(2, 2, 2)
TRUTH[:, 0, 0] = 1


def test_curves_of_the_true_map_in_plain_loops():
    heat = torch.rand(2, 8, 8)
    found = curves(Corner(), ONES, heat, TARGET, fill="mean", portions=4, batch_size=3)
    for b in range(2):
        order = heat[b].flatten().argsort(descending=True)
        for step in range(5):
            shown = torch.zeros(64)
            shown[order[: 16 * step]] = 1
            inserted, deleted = (ONES[b] * mask.view(8, 8) for mask in (shown, 1 - shown))
            p = Corner()(torch.stack([inserted, deleted])).softmax(1)[:, 1]
            torch.testing.assert_close(torch.stack([found.insertion[b, step], found.deletion[b, step]]), p)


def test_the_true_map_beats_its_opposite_and_a_flat_one():
    sharp = torch.nn.functional.interpolate(TRUTH[:, None], (8, 8))[:, 0]
    good, bad, flat = (
        curves(Corner(), ONES, heat, TARGET, fill="mean").difference for heat in (sharp, 1 - sharp, torch.ones(2, 8, 8))
    )
    torch.testing.assert_close(good, -bad, atol=0.02, rtol=0)
    assert (good > 0.5).all()
    assert flat.abs().max() < 0.1  # ties fall at random, not in reading order


def test_area_is_that_of_a_triangle():
    torch.testing.assert_close(area(torch.linspace(0, 1, 9)[None]), torch.tensor([0.5]))
    rising = torch.linspace(0, 1, 9)[None]
    torch.testing.assert_close(Curves(rising, 1 - rising).difference, torch.zeros(1))
    with pytest.raises(InputError, match="at least 2"):
        curves(Corner(), ONES, TRUTH, TARGET, portions=1)


def test_places_are_a_permutation():
    place = place_in_order(torch.rand(3, 4, 4), (8, 8))
    torch.testing.assert_close(place.flatten(1).sort(1)[0], (torch.arange(64) / 64).expand(3, 64))


def test_localisation_on_a_map_with_one_point():
    mask = torch.zeros(1, 16, 16, dtype=torch.bool)
    mask[0, 4:8, 4:8] = True
    heat = torch.zeros(1, 16, 16)
    heat[0, 9, 6] = 1  # two pixels below the object's last row
    assert pointing(heat, mask).item() == 0
    assert pointing(heat, mask, 2).item() == 1
    assert pointing(heat, mask, 1.5).item() == 0
    assert near(mask, 1).sum() == 16 + 16  # a disc adds no corners
    assert energy(mask.float(), mask).item() == 1
    assert object_iou(mask.float(), mask).item() == 1
    heat = mask.float()
    heat[0, 0, :16] = 1
    assert energy(heat, mask).item() == 0.5
    half = torch.zeros(1, 16, 16)
    half[0, 4:8, 6:10] = 1
    assert object_iou(half, mask).item() == pytest.approx(8 / 24)
    with pytest.raises(InputError, match="mask of image 0 is empty"):
        energy(heat, mask & False)


def test_sanity_checks():
    model, images = family(), pictures(2)
    target = ClassTarget(labels=torch.tensor([1, 2]))
    torch.testing.assert_close(randomisation(CentreBlob(), model, images, target), torch.ones(2))
    torch.testing.assert_close(stability(CentreBlob(), model, images, target), torch.ones(2))
    assert stability(RandomMap(), model, images, target).abs().max() < 0.6
    assert stability(GradCam(stage=2), model, images, target, noise=0.0).min() > 0.999
    ramp = torch.arange(6.0).view(1, 2, 3)
    assert map_similarity(ramp, ramp**3).item() == pytest.approx(1)
    assert map_similarity(ramp, -ramp).item() == pytest.approx(-1)


def test_bootstrap_intervals_hold_the_mean_and_shrink():
    random = np.random.default_rng(0)
    hits = 0
    for trial in range(100):
        sample = bootstrap(random.normal(3, 1, 50).tolist(), resamples=300, seed=trial)
        hits += sample.low <= 3 <= sample.high
    assert 86 <= hits <= 100  # 95 wanted; the binomial's three deviations and the percentile's small bias below
    few, many = (bootstrap(random.normal(0, 1, n).tolist()) for n in (20, 2000))
    assert many.high - many.low < (few.high - few.low) / 3
    a = random.normal(0, 1, 100)
    assert paired((a + 0.1).tolist(), a.tolist()).low > 0.09  # what both share cancels
    with pytest.raises(InputError, match="no values"):
        bootstrap([])
    with pytest.raises(InputError, match="pair"):
        paired([1.0], [1.0, 2.0])


@pytest.fixture(scope="module")
def table():
    model, images, labels, masks = trained()
    methods = [GradCam(stage=3), ClusterMap("attention_mass")]
    return score_methods(model, images, target=labels, masks=masks, methods=methods, portions=6)


def test_the_table_has_methods_controls_and_all_measures(table):
    rows = table.rows()
    controls = {row["method"] for row in rows if row["control"]}
    assert controls >= {"random_map", "centre_blob", "clusters random top 1", "random_weights grad_cam", "oracle_mask"}
    assert {row["method"] for row in rows} - controls == {"grad_cam stage 3", "clusters attention_mass"}
    whole = {DECIDES, "pointing", "pointing_near", "energy", "overlap", "randomisation", "stability"}
    whole |= {f"{kind}_{fill}" for kind in ("insertion", "deletion") for fill in ("blur", "mean")}
    for row in rows:
        assert set(row["measures"]) >= whole - {"randomisation", "stability"}
        for name, interval in row["measures"].items():
            assert interval["low"] <= interval["mean"] <= interval["high"], (row["method"], name)
    means = [row["measures"][DECIDES]["mean"] for row in rows]
    assert means == sorted(means, reverse=True)
    assert table.interval("oracle_mask", "energy").mean > table.interval("random_map", "energy").mean + 0.3
    assert table.best() in ("grad_cam stage 3", "clusters attention_mass")


def test_batches_give_the_same_table(table):
    model, images, labels, masks = trained()
    batches = (ScoringBatch(images[r], labels[r], masks[r]) for r in torch.arange(8).split(3))
    again = score_methods(model, batches, methods=[GradCam(stage=3)], portions=6, sanity=0)
    for measure, tolerance in ((DECIDES, 5e-3), ("energy", 1e-4)):  # rounding may swap two pixels in the order
        one, other = (scores.values["grad_cam stage 3"][measure] for scores in (again, table))
        np.testing.assert_allclose(one, other, atol=tolerance)


def test_objects_may_be_known_in_some_images_only():
    model, images, labels, masks = trained()
    batches = [ScoringBatch(images[:1], labels[:1], masks[:1]), ScoringBatch(images[1:3], labels[1:3])]
    scores = score_methods(model, batches, methods=[GradCam(stage=3)], portions=2, sanity=0)
    rows = {row["method"]: row for row in scores.rows()}
    assert [len(scores.values[name][DECIDES]) for name in ("oracle_mask", "grad_cam stage 3")] == [1, 3]
    assert len(scores.values["grad_cam stage 3"]["energy"]) == 1
    assert {name for name, row in rows.items() if row["beats_controls"] is not None} == {"grad_cam stage 3"}


def test_a_method_that_does_not_beat_its_controls_is_labelled():
    random = np.random.default_rng(0)
    noise = random.normal(0, 0.05, (3, 100))
    values = {"random_map": noise[0], "centre_blob": 0.4 + noise[1], "good": 0.7 + noise[2], "poor": 0.3 + noise[2]}
    scores = MethodScores(
        {name: {DECIDES: row.tolist()} for name, row in values.items()}, ("random_map", "centre_blob")
    )
    assert scores.beats_controls("good")
    assert scores.verdict("poor") == {"random_map": True, "centre_blob": False}
    assert scores.best() == "good"
    with pytest.raises(InputError, match="was not scored"):
        scores.interval("other")


def test_nothing_to_score_is_refused():
    model = family()
    with pytest.raises(InputError, match="no images"):
        score_methods(model, [], methods=[])
    with pytest.raises(InputError, match="fills"):
        score_methods(model, pictures(1), fills=())
    only_controls = MethodScores({"random_map": {DECIDES: [0.0]}}, ("random_map",))
    with pytest.raises(InputError, match="besides the controls"):
        only_controls.best()
