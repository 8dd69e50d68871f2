import numpy as np
import pytest
import torch

from vitreous.errors import InputError
from vitreous.metrics.segmentation import ClassOverlap, SegmentationMetric

NAMES = ("background", "cat", "dog", "unseen")


def scored(answers: torch.Tensor, labels: torch.Tensor) -> SegmentationMetric:
    metric = SegmentationMetric(NAMES)
    metric.update([{"semantic": answer} for answer in answers], {"semantic": labels})
    return metric


def test_equal_to_the_definition() -> None:
    generator = torch.Generator().manual_seed(0)
    labels = torch.randint(0, 3, (4, 30, 40), generator=generator)
    labels[torch.rand(labels.shape, generator=generator) < 0.2] = 255
    answers = torch.randint(0, 3, labels.shape, generator=generator)
    a, t = answers[labels != 255].numpy(), labels[labels != 255].numpy()
    overlaps = [((a == k) & (t == k)).sum() / ((a == k) | (t == k)).sum() for k in range(3)]
    shares = [(a[t == k] == k).mean() for k in range(3)]
    metric = scored(answers, labels)
    figures = metric.compute()
    assert figures == pytest.approx(
        {"mIoU": np.mean(overlaps), "pixel_accuracy": (a == t).mean(), "class_accuracy": np.mean(shares)}, abs=1e-15
    )
    by_class = metric.per_class()
    assert [by_class[name].iou for name in NAMES[:3]] == pytest.approx(overlaps, abs=1e-15)
    assert by_class["unseen"] == ClassOverlap(0, None, None)
    assert metric.confusion().sum() == len(t)


def test_perfect_is_one_and_an_answered_class_counts() -> None:
    labels = torch.tensor([[[0, 1], [2, 255]]])
    assert scored(torch.tensor([[[0, 1], [2, 3]]]), labels).compute()["mIoU"] == 1
    # "unseen" is answered once instead of the dog: its overlap is 0 of 1, and the dog's too.
    assert scored(torch.tensor([[[0, 1], [3, 3]]]), labels).compute()["mIoU"] == pytest.approx(2 / 4)


def test_parts_merge_to_the_whole() -> None:
    labels, answers = torch.randint(0, 4, (4, 8, 8)), torch.randint(0, 4, (4, 8, 8))
    first, second = scored(answers[:1], labels[:1]), scored(answers[1:], labels[1:])
    first.merge(second)
    assert first.compute() == scored(answers, labels).compute()


def test_pictures_of_several_sizes_and_types() -> None:
    metric = SegmentationMetric(NAMES)
    labels = [torch.zeros(4, 6, dtype=torch.uint8), torch.ones(5, 3, dtype=torch.long)]
    metric.update([{"semantic": label.to(torch.int32)} for label in labels], {"semantic": labels})
    assert metric.compute()["pixel_accuracy"] == 1
    assert metric.confusion()[:2, :2].tolist() == [[24, 0], [0, 15]]


def test_what_is_refused() -> None:
    labels = torch.zeros(1, 4, 4, dtype=torch.long)
    with pytest.raises(InputError, match="true label 7 in a picture; classes are 0 to 3, ignored 255"):
        scored(labels, labels + 7)
    with pytest.raises(InputError, match="answered label 4"):
        scored(labels + 4, labels)
    with pytest.raises(InputError, match=r"an answer of \(2, 2\) for labels of \(4, 4\) pixels"):
        scored(labels[:, :2, :2], labels)
    with pytest.raises(InputError, match="2 predictions for 1 targets"):
        scored(labels.repeat(2, 1, 1), labels)
    with pytest.raises(InputError, match="all its pixels are ignored"):
        scored(labels, labels + 255).compute()
