"""DINO's network: the loss is the textbook's, the teacher follows and drops nothing, the centre is a running mean."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F

from vitreous.errors import InputError
from vitreous.heads.dino import (
    Answers,
    ProjectionHead,
    SelfDistillation,
    contrast_loss,
    cross_view_loss,
    feature_spread,
    shared_out,
)
from vitreous.models.pooled import forward_pooled

HEAD = dict(outputs=12, hidden=8, bottleneck=4)


def network(name: str = "test_efficientnet", width: int = 256, **options) -> SelfDistillation:
    torch.manual_seed(0)
    return SelfDistillation(timm.create_model(name, num_classes=0, **options), width, **HEAD)


def views(pictures: int = 3) -> list[torch.Tensor]:
    torch.manual_seed(1)
    return [torch.randn(2 * pictures, 3, 32, 32), torch.randn(4 * pictures, 3, 16, 16)]


def test_the_loss_is_the_mean_over_pairs_of_different_views():
    torch.manual_seed(0)
    B, V, K = 3, 5, 7
    said, told = torch.randn(V * B, K), torch.randn(2 * B, K)
    found = cross_view_loss(Answers(said, told, torch.empty(0), torch.empty(0)), 0.1, 0.05)
    terms, entropies = [], []
    for i in range(2):
        p = (told[i * B : (i + 1) * B] / 0.05).softmax(1)
        entropies.append(-(p * p.clamp_min(1e-30).log()).sum(1))
        terms += [-(p * (said[j * B : (j + 1) * B] / 0.1).log_softmax(1)).sum(1) for j in range(V) if j != i]
    assert found.loss.item() == pytest.approx(torch.stack(terms).mean().item(), rel=1e-5)
    assert found.entropy.item() == pytest.approx(torch.stack(entropies).mean().item() / math.log(K), rel=1e-5)
    assert found.divergence.item() == pytest.approx((found.loss - torch.stack(entropies).mean()).item(), rel=1e-4)


def test_uniform_answers_have_entropy_one_and_no_divergence():
    found = cross_view_loss(Answers(torch.zeros(8, 5), torch.zeros(4, 5), torch.empty(0), torch.empty(0)), 0.1, 0.04)
    assert found.entropy.item() == pytest.approx(1)
    assert found.divergence.item() == pytest.approx(0, abs=1e-6)
    assert found.information.item() == pytest.approx(0, abs=1e-6)


def test_answers_tell_all_about_pictures_that_each_have_their_own():
    each, same = torch.eye(6)[[0, 1, 2, 3, 4, 5]], torch.eye(6)[[2] * 6]
    for told, information in ((each, 1.0), (same, 0.0)):
        found = cross_view_loss(Answers(torch.zeros(9, 6), told, torch.empty(0), torch.empty(0)), 0.1, 0.01)
        assert found.information.item() == pytest.approx(information, abs=1e-5)
        assert found.entropy.item() == pytest.approx(0, abs=1e-5)


def test_answers_are_shared_out_evenly_over_the_outputs():
    torch.manual_seed(0)
    told = (4 * torch.randn(40, 8)).softmax(1)
    assert shared_out(told, 0) is told
    even = shared_out(told, 200)
    torch.testing.assert_close(even.sum(1), torch.ones(40))
    torch.testing.assert_close(even.sum(0), torch.full((8,), 5.0), rtol=1e-3, atol=0)
    ratio = (even / told)[:, :1] / (even / told)  # a factor for each picture and one for each output, nothing else
    torch.testing.assert_close(ratio, ratio[:1].expand_as(ratio), rtol=1e-3, atol=0)


def test_an_output_that_wins_for_all_pictures_does_not_once_they_are_shared_out():
    torch.manual_seed(0)
    cosines = 0.1 * torch.randn(12, 6) + torch.tensor([0.8, 0, 0, 0, 0, 0])
    plain, shared = (
        cross_view_loss(
            Answers(torch.zeros(18, 6), cosines, torch.empty(0), torch.empty(0)), 0.1, 0.05, sharing_rounds=rounds
        )
        for rounds in (0, 3)
    )
    assert plain.information < 0.01
    assert shared.information > 0.3
    moved = Answers(torch.zeros(18, 6), cosines - torch.linspace(-0.1, 0.1, 6), torch.empty(0), torch.empty(0))
    again = cross_view_loss(moved, 0.1, 0.05, sharing_rounds=50)
    same = cross_view_loss(moved._replace(told=cosines), 0.1, 0.05, sharing_rounds=50)
    assert again.entropy.item() == pytest.approx(same.entropy.item(), rel=1e-3)  # a centre has no effect


def test_contrast_is_the_cross_entropy_of_finding_the_other_view():
    torch.manual_seed(0)
    B = 4
    unit = F.normalize(torch.randn(8, 5), dim=1)
    others = [[j for j in range(2 * B) if j != i] for i in range(2 * B)]
    cosines = torch.stack([unit[row] @ unit[i] for i, row in enumerate(others)]) / 0.2
    right = torch.tensor([row.index((i + B) % (2 * B)) for i, row in enumerate(others)])
    torch.testing.assert_close(contrast_loss(unit, B, 0.2), F.cross_entropy(cosines, right))


def test_contrast_is_least_for_vectors_that_only_views_of_a_picture_share():
    own, same = torch.eye(6).repeat(3, 1), torch.ones(18, 6) / math.sqrt(6)
    assert contrast_loss(own, 6, 0.01).item() == pytest.approx(math.log(2), abs=1e-5)  # two others are as near
    assert contrast_loss(same, 6, 0.01).item() == pytest.approx(math.log(17), abs=1e-5)
    unit = same.clone().requires_grad_()
    contrast_loss(unit, 6, 0.2).backward()
    assert unit.grad.isfinite().all()


def test_spread_is_zero_for_equal_and_one_for_opposite_features():
    assert feature_spread(torch.ones(4, 3)).item() == pytest.approx(0, abs=1e-6)
    assert feature_spread(torch.tensor([[2.0, 0], [-1, 0]])).item() == 1


def test_the_head_gives_cosines_with_its_directions():
    head = ProjectionHead(6, **HEAD)
    x = torch.randn(5, 6)
    unit = F.normalize(head.mlp(x), dim=1)
    expected = F.cosine_similarity(unit[:, None], head.directions[None], dim=2)
    assert torch.allclose(head(x).unit, unit)
    assert torch.allclose(head(x).cosines, expected, atol=1e-6)
    assert sum(isinstance(part, torch.nn.Linear) for part in head.mlp) == 3
    assert sum(isinstance(part, torch.nn.GELU) for part in head.mlp) == 2, "none after the last"
    with pytest.raises(InputError, match="outputs=0"):
        ProjectionHead(6, outputs=0)


def test_batch_norm_takes_away_what_pictures_have_in_common():
    torch.manual_seed(0)
    alike = torch.randn(1, 6) + 0.01 * torch.randn(50, 6)
    plain, normed = (ProjectionHead(6, **HEAD, batch_norm=norm).mlp(alike) for norm in (False, True))
    assert feature_spread(plain) < 0.01
    assert feature_spread(normed) > 0.1


def test_the_published_head_has_the_published_size():
    with torch.device("meta"):
        head = ProjectionHead(384)
    assert (
        sum(p.numel() for p in head.parameters()) == 384 * 2048 + 2048 + 2048**2 + 2048 + 2048 * 256 + 256 + 65536 * 256
    )


def test_answers_are_those_of_each_view_alone():
    """One pass a size, in the order of the views; without batch norm the batch does not matter."""
    model, pictures = network("test_vit", 64, img_size=32, dynamic_img_size=True), 3
    seen = views(pictures)
    found = model(seen, pictures)
    each = [
        model.student.head(forward_pooled(model.student.backbone, one)).cosines
        for size in seen
        for one in size.split(3)
    ]
    assert torch.allclose(found.said, torch.cat(each), atol=1e-5)
    told = model.teacher.head(forward_pooled(model.teacher.backbone, seen[0])).cosines
    assert torch.allclose(found.told, told, atol=1e-5)
    assert not found.told.requires_grad


def test_only_the_student_learns_and_drops():
    model = network(drop_path_rate=0.5, drop_rate=0.5)
    model(views(), 3).said.sum().backward()
    assert all(p.grad is None for p in model.teacher.parameters())
    assert any(p.grad is not None for p in model.student.parameters())
    model = network("test_vit", 64, img_size=32, dynamic_img_size=True, drop_path_rate=0.5)
    seen = views()
    one, two = model(seen, 3), model(seen, 3)
    assert torch.equal(one.told, two.told)
    assert not torch.equal(one.said, two.said)


def test_the_teachers_batch_norms_take_statistics_in_training_only():
    model = network()
    norm = next(m for m in model.teacher.modules() if isinstance(m, torch.nn.BatchNorm2d))
    before = norm.running_mean.clone()
    model(views(), 3)
    assert not torch.equal(before, norm.running_mean)
    before = norm.running_mean.clone()
    model.eval()(views()[0])
    assert torch.equal(before, norm.running_mean)
    assert torch.equal(model(views()[0]), forward_pooled(model.teacher.backbone, views()[0]))
    assert model.train().teacher.training is False
    assert norm.training


def test_the_teacher_follows_and_the_centre_moves():
    model = network()
    with torch.no_grad():
        for parameter in model.student.parameters():
            parameter.add_(1)
    before = [p.clone() for p in model.teacher.parameters()]
    model.follow(0.75)
    for old, new, student in zip(before, model.teacher.parameters(), model.student.parameters(), strict=True):
        assert torch.allclose(new, 0.75 * old + 0.25 * student, atol=1e-6)
    first, second = model(views(), 3).told, model(views(2), 2).told  # two pieces of one step
    model.move_centre(0.9)
    assert torch.allclose(model.centre, 0.1 * torch.cat([first, second]).mean(0), atol=1e-6)
    third = model(views(), 3).told + model.centre  # the answers themselves
    old = model.centre.clone()
    model.move_centre(0.9)
    assert torch.allclose(model.centre, 0.9 * old + 0.1 * third.mean(0), atol=1e-6)


def test_what_a_step_gathers_is_no_part_of_the_state():
    model = network()
    assert "centre" in model.state_dict()
    assert not [key for key in model.state_dict() if key.startswith("told")]
