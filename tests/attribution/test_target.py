"""Targets read what they say from the outputs of all tasks, and say so when they cannot."""

from types import SimpleNamespace

import pytest
import torch

from vitreous.attribution.target import BoxTarget, ClassTarget, JointTarget, RegionTarget, as_target, box_region, peaks
from vitreous.errors import InputError

LOGITS = torch.tensor([[2.0, -1.0, 0.5], [0.0, 3.0, 1.0]])
LABELS = torch.tensor([0, 2])


def test_the_scales_of_a_class_agree():
    target = ClassTarget(labels=LABELS)
    p = LOGITS.softmax(1)[[0, 1], LABELS]
    torch.testing.assert_close(target.on("probability")(LOGITS), p)
    torch.testing.assert_close(target(LOGITS), (p / (1 - p)).log())
    torch.testing.assert_close(target.on("logit")(LOGITS), torch.tensor([2.0, 1.0]))
    assert target.holds(LOGITS).tolist() == [True, False]


def test_log_odds_do_not_saturate():
    sure = torch.tensor([[200.0, 0.0, 0.0]])
    assert abs(ClassTarget(labels=torch.tensor([0]))(sure).item() - (200 - torch.tensor(2.0).log().item())) < 1e-4


def test_targets_follow_their_images():
    rows = torch.tensor([1, 1, 0])
    again = ClassTarget(labels=LABELS).on("logit").select(rows)
    assert again.labels.tolist() == [2, 2, 0]
    assert again.scale == "logit"
    torch.testing.assert_close(again(LOGITS[rows]), torch.tensor([1.0, 1.0, 2.0]))


def test_a_region_is_the_mean_over_its_pixels():
    logits = torch.randn(2, 3, 4, 4)
    region = torch.zeros(2, 8, 8, dtype=torch.bool)
    region[0, :4, :4], region[1, 6:, 2:6] = True, True
    target = RegionTarget(scale="probability", labels=LABELS, region=region)
    p = logits.softmax(1)
    expected = torch.stack([p[0, 0, :2, :2].mean(), p[1, 2, 3, 1:3].mean()])
    torch.testing.assert_close(target(logits), expected)
    torch.testing.assert_close(target(SimpleNamespace(logits=logits)), expected)
    torch.testing.assert_close(target({"out": logits}), expected)
    assert target.select(torch.tensor([1])).region.shape == (1, 8, 8)
    best = torch.zeros(2, 3, 4, 4)
    best[:, 2] = 1
    assert target.holds(best).tolist() == [False, True]


def test_regions_that_cannot_be_read_are_refused():
    with pytest.raises(InputError, match="region of image 1 is empty"):
        RegionTarget(labels=LABELS, region=torch.stack([torch.ones(4, 4), torch.zeros(4, 4)]))
    assert box_region((1, 0, 3, 2), 4, 5).nonzero().tolist() == [[0, 1], [0, 2], [1, 1], [1, 2]]
    assert box_region((-9, -9, 99, 99), 4, 5).all()
    for outside in ((5, 0, 9, 4), (3, 1, 1, 2)):
        with pytest.raises(InputError, match="within 5 x 4 pixels"):
            box_region(outside, 4, 5)
    whole = RegionTarget(labels=LABELS, region=torch.ones(2, 4, 4))
    with pytest.raises(InputError, match="labels pixels"):
        whole(LOGITS)


def test_a_box_is_the_best_score_times_overlap_of_its_class():
    boxes = torch.tensor([[0.0, 0, 10, 10], [0, 0, 10, 5], [0, 0, 10, 10]])
    found = dict(boxes=boxes, labels=torch.tensor([1, 1, 2]), scores=torch.tensor([0.3, 0.8, 0.9]).requires_grad_())
    none = {name: value[:0] for name, value in found.items()}
    target = BoxTarget(labels=torch.tensor([1, 1]), boxes=boxes[:1].expand(2, 4))
    scores = target.on("probability")([found, none])
    torch.testing.assert_close(scores, torch.tensor([0.4, 0.0]))  # 0.8 at half overlap beats 0.3
    assert target([found, none]).isfinite().all()
    assert target.holds([found, none]).tolist() == [True, False]
    scores.sum().backward()
    assert found["scores"].grad.tolist() == [0, 0.5, 0]


def test_a_joint_is_its_peak():
    heat = torch.zeros(2, 3, 5, 6)
    heat[0, 1, 2, 3], heat[1, 2, 4, 0] = 0.8, 0.6
    target = peaks(heat, torch.tensor([1, 2]))
    assert target.places.tolist() == [[2, 3], [4, 0]]
    torch.testing.assert_close(target.on("probability")(heat), torch.tensor([0.8, 0.6]))
    moved = heat.roll(3, -1)
    assert target.holds(heat).all()
    assert not target.holds(moved).any()
    torch.testing.assert_close(target.on("logit")(moved), torch.zeros(2))
    anywhere = JointTarget(scale="logit", joints=torch.tensor([1, 2]))
    torch.testing.assert_close(anywhere(moved), torch.tensor([0.8, 0.6]))


def test_log_odds_of_a_joint_have_a_slope_beyond_probabilities():
    heat = torch.tensor([-0.1, 0.05, 0.5, 0.95, 1.1]).view(5, 1, 1, 1).requires_grad_()
    odds = JointTarget(joints=torch.zeros(5, dtype=torch.long))(heat)
    torch.testing.assert_close(odds[1:4], heat[1:4].flatten().logit())
    torch.testing.assert_close(odds[4] - odds[3], torch.tensor(0.15 / (0.95 * 0.05)))
    odds.sum().backward()
    torch.testing.assert_close(heat.grad.flatten(), torch.tensor([21.0526, 21.0526, 4.0, 21.0526, 21.0526]))


def test_class_numbers_and_nothing_become_targets():
    assert as_target(None, LOGITS, 2).labels.tolist() == [0, 1]
    assert as_target(2, LOGITS, 2).labels.tolist() == [2, 2]
    target = ClassTarget(labels=LABELS)
    assert as_target(target, None, 2) is target
    with pytest.raises(InputError, match="class 3 was to be explained; this model has classes 0 to 2"):
        as_target(3, LOGITS, 2)
    with pytest.raises(InputError, match="give a RegionTarget, BoxTarget or JointTarget"):
        as_target(1, torch.zeros(2, 3, 4, 4), 2)
