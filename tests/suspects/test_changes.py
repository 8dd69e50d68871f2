"""Hiding leaves nothing of what is hidden, controls are as large and lie elsewhere, exchanges take what they say."""

import torch

from vitreous.suspects.candidates import boxes, place_in_words
from vitreous.suspects.changes import Background, PictureTint, Place, Seen, filled
from vitreous.suspects.gathering import GRID_CELLS, MOST_CELLS_KEPT, Evidence
from vitreous.suspects.measuring import Donors


def seen(count: int = 4, answers: list[int] | None = None, side: int = 16) -> Seen:
    known = torch.zeros(count, dtype=torch.bool)
    images, ground = torch.rand(count, 3, side, side), torch.ones(count, 1, side, side)
    return Seen(images, ground, known, torch.tensor(answers or [0] * count))


def test_nothing_of_a_hidden_part_shows_through():
    pictures, mask = torch.rand(2, 3, 16, 16), torch.zeros(2, 1, 16, 16)
    mask[..., :5, :5] = 1
    others = torch.where(mask.bool(), torch.rand(2, 3, 16, 16), pictures)
    assert torch.allclose(filled(pictures, mask), filled(others, mask), atol=1e-6)
    assert torch.equal(filled(pictures, mask)[..., 5:, :], pictures[..., 5:, :])


def test_the_object_stays_untouched():
    one = seen()
    ground = one.ground.clone()
    ground[..., :8] = 0
    one, box = one._replace(ground=ground, known=torch.ones(4, dtype=torch.bool)), Place((0.25, 0.0, 0.75, 1.0))
    for pixels in (box.hidden(one), box.exchanged(one, seen()), Background().hidden(one)):
        assert torch.equal(pixels[..., :8], one.images[..., :8])
        assert not torch.equal(pixels[..., 8:], one.images[..., 8:])


def test_controls_are_as_large_and_lie_elsewhere():
    one, random = seen(20), torch.Generator().manual_seed(0)
    for box in ((0.0, 0.0, 0.25, 0.25), (0.0, 0.875, 1.0, 1.0)):
        mask = Place(box).mask(one)
        other = Place(box).elsewhere(mask, random)
        assert torch.equal(other.sum((1, 2, 3)), mask.sum((1, 2, 3)))
        assert bool(((other * mask).sum((1, 2, 3)) <= 0.25 * mask.sum((1, 2, 3))).all())


def test_a_tint_is_taken_away_and_exchanged():
    one, other, usual = seen(), seen(), torch.tensor([0.1, 0.2, 0.3])
    assert torch.allclose(PictureTint(usual).hidden(one).mean((2, 3)), usual.expand(4, 3), atol=1e-5)
    assert torch.allclose(PictureTint(usual).exchanged(one, other).mean((2, 3)), other.images.mean((2, 3)), atol=1e-5)


def test_a_picture_that_is_all_object_gets_the_usual_tint_too():
    one, usual = seen(), torch.tensor([0.1, 0.2, 0.3])
    whole = one._replace(ground=torch.zeros_like(one.ground))
    assert torch.allclose(PictureTint(usual).hidden(whole).mean((2, 3)), usual.expand(4, 3), atol=1e-5)


def test_the_usual_tint_is_that_of_grounds():
    """Pictures with equal grounds have nothing to lose, whatever their objects are."""
    one, evidence = seen(), Evidence(classes=1)
    one.images[..., :8] = 0.25
    one.ground[..., 8:] = 0
    evidence.add(one, torch.ones(4, 16, 16), torch.zeros(4, dtype=torch.long))
    assert torch.allclose(PictureTint(evidence.colour / 4).hidden(one), one.images, atol=1e-6)


def test_the_smallest_mark_is_a_pixel():
    assert Place((0.5, 0.5, 0.52, 0.52)).mask(seen()).sum((1, 2, 3)).tolist() == [1] * 4


def test_pictures_to_take_from_have_the_answer_asked_for():
    donors, one = Donors(), seen(5, [0, 0, 1, 2, 2])
    rows, alike = donors.pick(one, same=True)
    assert rows.tolist() == [0, 1, 3, 4]  # the only picture answered 1 has nobody to take from
    assert alike.answers.tolist() == [0, 0, 2, 2]
    assert not any(torch.equal(one.images[row], other) for row, other in zip(rows, alike.images, strict=True))
    donors.add(one)
    rows, unlike = donors.pick(seen(2, [1, 1]), same=False)
    assert rows.tolist() == [0, 1]
    assert 1 not in unlike.answers.tolist()


def test_evidence_stays_small_however_many_pictures_there_are():
    evidence = Evidence(classes=2)
    heat = torch.zeros(200, 16, 16)
    heat[:, :4, :4] = 1
    for _ in range(4):
        evidence.add(seen(200, [0, 1] * 100), heat, torch.zeros(200, dtype=torch.long))
    assert evidence.pictures.tolist() == [400, 400]
    assert evidence.used[0, :2, :2].tolist() == [[400, 400], [400, 400]]
    assert len(evidence.looks) == len(evidence.cells) == MOST_CELLS_KEPT


def test_boxes_lie_around_peaks():
    often = torch.zeros(GRID_CELLS, GRID_CELLS)
    often[0, 0], often[0, 1], often[7] = 0.9, 0.8, 0.5
    assert list(boxes(often)) == [(0.0, 0.0, 0.25, 0.125), (0.0, 0.875, 1.0, 1.0)]


def test_places_have_names():
    named = {
        (0.0, 0.0, 0.25, 0.25): "upper left corner",
        (0.75, 0.75, 1.0, 1.0): "lower right corner",
        (0.0, 0.875, 1.0, 1.0): "bottom edge",
        (0.9, 0.0, 1.0, 1.0): "right edge",
        (0.375, 0.375, 0.625, 0.625): "centre",
        (0.4, 0.0, 0.6, 0.2): "middle of the upper edge",
        (0.0, 0.0, 1.0, 1.0): "whole picture",
    }
    assert {box: place_in_words(box) for box in named} == named
