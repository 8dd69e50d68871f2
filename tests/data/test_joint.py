"""Views keep a picture and what is in it together: a painted square stays within its box, its mask, its keypoints."""

import math
import random

import numpy as np
import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from PIL import Image

from vitreous.data.annotations import Objects
from vitreous.data.coco_masks import run_length_counts
from vitreous.data.joint import IGNORE, DetectView, JointViews, SegmentView, collate_dense
from vitreous.data.keypoint_view import KeypointView
from vitreous.data.loader import BatchSampler, Loader, moved_to, seed_everything
from vitreous.data.source import open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError

PREPROCESS = Preprocess((64, 64), interpolation="bilinear")
SIZE = (120, 160)  # (H, W) of painted pictures
COLOUR = (250, 40, 40)


def painted(box, *, polygon: bool, size=SIZE):
    """A red rectangle on black, and everything there is to know about it: corners are keypoints, left and right."""
    x0, y0, x1, y1 = box
    pixels = np.zeros((*size, 3), np.uint8)
    pixels[y0:y1, x0:x1] = COLOUR
    mask = pixels[..., 0] > 0
    outline = [[x0, y0, x1, y0, x1, y1, x0, y1]]
    objects = Objects(
        np.array([box], np.float64),
        np.array([2]),
        np.zeros(1, bool),
        np.array([mask.sum()], np.float64),
        np.array([7]),
        (outline if polygon else {"size": list(size), "counts": run_length_counts(mask)},),
        np.array([[[x0, y0, 2], [x1, y0, 2], [x0, y1, 1], [x1, y1, 2], [0, 0, 0]]], np.float32),
        ((0, 1), (2, 3)),
    )
    return Image.fromarray(pixels), {"objects": objects, "image_id": 3, "semantic": mask.astype(np.uint8)}


def red(pixels):
    """(h, w): at least half covered by the rectangle."""
    return pixels[0] > COLOUR[0] / 2


def extent(mask):
    rows, columns = np.flatnonzero(mask.any(1)), np.flatnonzero(mask.any(0))
    return torch.tensor([columns[0], rows[0], columns[-1] + 1, rows[-1] + 1])


boxes = st.tuples(st.integers(0, 120), st.integers(0, 80), st.integers(12, 40), st.integers(12, 40)).map(
    lambda drawn: (drawn[0], drawn[1], drawn[0] + drawn[2], drawn[1] + drawn[3])
)


@settings(max_examples=60, deadline=None)
@given(boxes, st.booleans(), st.integers(0, 2**32))
@example(box=(0, 2, 12, 14), polygon=False, seed=250)  # an edge in the outermost row
def test_objects_stay_with_their_pixels(box, polygon, seed):
    random.seed(seed)
    view = DetectView(PREPROCESS, short=(60, 96, 150), longest=220, crop=(300, 500), scale=(0.5, 2.0))
    pixels, target = view(*painted(box, polygon=polygon))
    shown = red(pixels).numpy()
    if not len(target["boxes"]):
        assert shown.sum() <= max(shown.shape), "nothing, or a sliver of a pixel"
        return
    # Half a pixel: an edge within a pixel colours it or not. An eighth of the triangle over which the outermost pixel
    # is a mean lies outside and does not count, so that its half is where (1 - u)² = 7/8: u = 0.065 further in.
    box, size = target["boxes"][0], shown.shape[::-1]
    outermost = (box < 1) | (box > torch.tensor([*size, *size]) - 1)
    allowed = torch.where(outermost, 0.565, 0.51) + 1e-3
    assert ((box - extent(shown)).abs() <= allowed).all()
    mask = target["masks"][0].numpy().astype(bool)
    assert mask.shape == shown.shape == tuple(target["size"].tolist())
    border = 2 * sum(extent(shown)[2:] - extent(shown)[:2])
    assert (mask != shown).sum() <= border, "they differ at most along the edge"
    assert target["labels"].tolist() == [2]
    x0, y0, x1, y1 = target["boxes"][0].tolist()
    height, width = shown.shape
    corners = {0: (x0, y0), 1: (x1, y0), 2: (x0, y1), 3: (x1, y1)}  # left is on the left, mirrored or not
    for place, corner in corners.items():
        x, y, seen = target["keypoints"][0, place].tolist()
        if seen:
            assert (x, y) == pytest.approx(corner, abs=1e-3)
        else:
            assert corner[0] in (0, width) or corner[1] in (0, height), "only what is cut off is lost"
    assert target["keypoints"][0, 4].tolist() == [0, 0, 0]


def test_whole_pictures_at_evaluation():
    picture, target = painted((30, 20, 70, 50), polygon=True)
    view = DetectView(PREPROCESS, short=(60, 90), longest=100, train=False)
    pixels, found = view(picture, target)
    assert tuple(pixels.shape) == (3, 75, 100), "the longer side decides"
    assert found["boxes"].tolist() == [[18.75, 12.5, 43.75, 31.25]]
    assert found["area"].tolist() == pytest.approx([1200 * 0.625**2])
    assert found["objects"] is target["objects"]
    assert found["original_size"].tolist() == list(SIZE)


def test_boxes_that_show_nothing_are_not_learnt():
    picture, target = painted((30, 20, 70, 50), polygon=True)
    bad = [[5, 5, 5, 9], [9, 9, 4, 12], [200, 10, 220, 30], [-20, -20, 0, 0], [np.nan, 0, 5, 5]]
    boxes = np.array([*target["objects"].boxes, *bad])
    repeated = target["objects"][[0] * len(boxes)]
    objects = Objects(boxes, repeated.labels, repeated.crowd, repeated.area, np.arange(len(boxes)), repeated.masks)
    for train in (True, False):
        view = DetectView(PREPROCESS, short=(120,), train=train, flip=0)
        _, found = view(picture, {"objects": objects, "image_id": 1})
        assert found["boxes"].tolist() == [[30, 20, 70, 50]]
        assert len(found["masks"]) == len(found["labels"]) == 1


@settings(max_examples=60, deadline=None)
@given(boxes, st.integers(0, 2**32))
def test_labels_stay_with_their_pixels(box, seed):
    random.seed(seed)
    torch.manual_seed(seed)
    picture, target = painted(box, polygon=True)
    pixels, found = SegmentView(PREPROCESS, crop=(64, 80), jitter=0)(picture, target)
    assert tuple(pixels.shape) == (3, 64, 80)
    labels, (height, width) = found["semantic"], found["size"].tolist()
    assert labels.dtype == torch.int64
    inside = torch.zeros(64, 80, dtype=torch.bool)
    inside[:height, :width] = True
    assert bool((labels[~inside] == IGNORE).all())
    assert bool((pixels[:, ~inside] == 0).all())
    assert set(labels[inside].tolist()) <= {0, 1}
    shown = red(pixels)
    assert int((shown != (labels == 1)).sum()) <= 2 * (height + width), "they differ at most along the edge"


def test_whole_masks_at_evaluation():
    picture, target = painted((30, 20, 70, 50), polygon=True)
    pixels, found = SegmentView(PREPROCESS, crop=(60, 60), train=False)(picture, target)
    assert tuple(pixels.shape) == (3, 60, 80)
    assert np.array_equal(found["semantic"], target["semantic"][::2, ::2])
    assert np.array_equal(found["original_semantic"], target["semantic"])


def test_crops_show_more_than_one_class():
    """A bar of which one crop in three shows between a quarter and three quarters of its own area."""
    picture, target = painted((60, 0, 100, 120), polygon=True)
    random.seed(0)
    view = SegmentView(PREPROCESS, crop=(40, 40), ratio=(1.0, 1.0), short=120, jitter=0)
    shares = [float((view(picture, target)[1]["semantic"] == 1).float().mean()) for _ in range(40)]
    assert sum(0.25 < share < 0.75 for share in shares) > 35  # all but 1 - (2 / 3) ** 10


@settings(max_examples=40, deadline=None)
@given(boxes, st.integers(0, 2**32))
def test_heat_maps_stay_with_their_pixels(box, seed):
    random.seed(seed)
    picture, target = painted(box, polygon=True)
    view = KeypointView(PREPROCESS, size=(128, 96))
    pixels, found = view(picture, target)
    assert tuple(pixels.shape) == (3, 128, 96)
    turn, shift = found["to_picture"][:, :2], found["to_picture"][:, 2]
    rows, columns = np.nonzero(red(pixels).numpy())
    there = torch.tensor(np.stack([columns, rows], 1) + 0.5, dtype=torch.float32) @ turn.T + shift
    x0, y0, x1, y1 = box
    step = turn.det().abs().sqrt()  # of the picture for a pixel of the crop
    slack = 0.5 + step  # half a pixel of either
    assert bool((there >= torch.tensor([x0, y0]) - slack).all())
    assert bool((there <= torch.tensor([x1, y1]) + slack).all())
    mirrored = bool(turn.det() < 0)
    truth = target["objects"].keypoints[0]
    for place, other in enumerate((1, 0, 3, 2) if mirrored else (0, 1, 2, 3)):
        heat = found["heatmaps"][place]
        # Half a cell away from the middle of a cell in both directions, sigma 2: the keypoint is within the map.
        if found["weights"][place] and heat.max() > math.exp(-0.5 / 8):
            row, column = divmod(int(heat.argmax()), heat.shape[1])
            where = torch.tensor([column + 0.5, row + 0.5]) * view.stride @ turn.T + shift
            reach = step * view.stride  # of a cell; the peak lies within one
            assert float((where - torch.tensor(truth[other, :2])).norm()) <= reach * 0.75
    assert found["weights"][4] == 0
    assert float(found["heatmaps"][4].max()) == 0
    assert found["keypoints"].tolist() == truth.tolist(), "those of the picture stay as they are"


def test_batches_of_mixed_orientation():
    wide, tall = painted((30, 20, 70, 50), polygon=True), painted((5, 20, 40, 110), polygon=False, size=(160, 100))
    nothing = {"objects": wide[1]["objects"][:0], "image_id": 9}
    view = DetectView(PREPROCESS, short=(100,), longest=400, train=False)
    images, targets = collate_dense([view(*wide), view(*tall), view(wide[0], nothing)])
    assert tuple(images.shape) == (3, 3, 160, 160)
    assert images.dtype == torch.uint8
    assert targets["sizes"].tolist() == [[100, 133], [160, 100], [100, 133]]
    assert targets["image_ids"].tolist() == [3, 3, 9]
    assert [len(boxes) for boxes in targets["boxes"]] == [1, 1, 0]
    assert [tuple(masks.shape) for masks in targets["masks"]] == [(1, 160, 160), (1, 160, 160), (0, 160, 160)]
    for image, size, masks in zip(images, targets["sizes"].tolist(), targets["masks"], strict=True):
        assert not image[:, size[0] :].any()
        assert not image[:, :, size[1] :].any()
        assert not masks[:, size[0] :].any()


def test_labels_of_padded_pixels_are_ignored():
    view = SegmentView(PREPROCESS, crop=(50, 50), train=False)
    images, targets = collate_dense([view(*painted((30, 20, 70, 50), polygon=True))])
    assert tuple(images.shape) == (1, 3, 64, 96)
    assert bool((targets["semantic"][:, 50:] == IGNORE).all())
    assert bool((targets["semantic"][:, :50, :67] != IGNORE).all())


@pytest.mark.parametrize(
    ("targets", "view"),
    [
        ("boxes", DetectView(PREPROCESS, short=(48, 64), longest=96, jitter=0.5)),
        ("semantic", SegmentView(PREPROCESS, crop=(48, 48))),
        ("keypoints", KeypointView(PREPROCESS, size=(64, 48))),
    ],
)
def test_samples_depend_on_the_draw_alone(targets, view):
    """The same with worker processes as without, and again in another run; lists reach the device."""
    images = open_data("shapes", "train", size=(48, 64), count=6, targets=targets)
    batches = []
    for workers in (0, 1):
        seed_everything(workers)
        loader = Loader(JointViews(images, view), BatchSampler(6, 4, shuffle=True), collate_dense, workers=workers)
        batches.append([loader.on(batch, torch.device("cpu")) for batch in loader])
        loader.close()
    for (here, known), (there, given_) in zip(*batches, strict=True):
        assert torch.equal(here, there)
        for key, value in known.items():
            pairs = [(value, given_[key])] if torch.is_tensor(value) else zip(value, given_[key], strict=True)
            assert all(torch.equal(a, b) for a, b in pairs), key


def test_doubles_stay_where_metrics_reckon():
    exact = torch.zeros(1, dtype=torch.float64)
    assert moved_to([exact], torch.device("mps"))[0] is exact, "Apple's GPUs would refuse it"
    assert moved_to(exact, torch.device("meta")).is_meta


def test_lists_are_moved_with_their_batch():
    images = open_data("shapes", "val", size=(48, 48), count=2, targets="boxes")
    views = JointViews(images, DetectView(PREPROCESS, short=(48,), train=False))
    loader = Loader(views, BatchSampler(2, 2), collate_dense, workers=0)
    _, targets = loader.on(next(iter(loader)), torch.device("meta"))
    assert {boxes.device.type for boxes in targets["boxes"]} == {"meta"}
    assert isinstance(targets["objects"][0], Objects), "what is no tensor stays as it is"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: DetectView(PREPROCESS, short=()), "at least one shorter side"),
        (lambda: DetectView(PREPROCESS, short=(800,), longest=600), "above the longest"),
        (lambda: DetectView(PREPROCESS, flip=1.5), "probability"),
        (lambda: DetectView(PREPROCESS, scale=(2.0, 0.5)), "the least and the most"),
        (lambda: DetectView(PREPROCESS, jitter=3), "between 0"),
        (lambda: SegmentView(PREPROCESS, crop=(0, 5)), "height and width"),
        (lambda: SegmentView(PREPROCESS, ratio=(0, 1)), "above 0"),
        (lambda: KeypointView(PREPROCESS, size=(255, 192)), "multiples of 4"),
        (lambda: KeypointView(PREPROCESS, scale=1), "scale must be"),
    ],
)
def test_settings_that_cannot_work(make, message):
    with pytest.raises(InputError, match=message):
        make()
