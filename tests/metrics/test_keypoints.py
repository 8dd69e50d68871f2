import pytest
import torch

from vitreous.errors import InputError
from vitreous.metrics.keypoints import PCK

JOINTS = ("head", "left", "right")
TRUTH = torch.tensor([[[10.0, 10, 2], [30, 20, 1], [50, 90, 0]], [[5, 5, 2], [8, 5, 2], [5, 8, 2]]])
BOXES = torch.tensor([[0.0, 0, 60, 100], [0, 0, 10, 10]])  # tolerances of 10 and 1 pixels


def scored(moved: torch.Tensor, rows: slice = slice(None)) -> PCK:
    metric = PCK(JOINTS)
    answers = TRUTH[rows] + moved
    metric.update([{"keypoints": answer} for answer in answers], {"keypoints": TRUTH[rows], "boxes": BOXES[rows]})
    return metric


def test_distance_is_judged_by_the_larger_side() -> None:
    assert scored(torch.zeros(3)).compute() == {"PCK@0.1": 1.0}
    assert scored(torch.tensor([1.0, 0.0, 0.0])).compute() == {"PCK@0.1": 1.0}
    # Two pixels are within a tenth of the large object, whose third joint is not labelled, and not of the small one.
    two = scored(torch.tensor([0.0, 2.0, 0.0]))
    assert two.compute() == {"PCK@0.1": pytest.approx(2 / 5)}
    assert two.per_joint() == {"head": 0.5, "left": 0.5, "right": 0.0}
    assert scored(torch.tensor([8.0, 8.0, 0.0])).compute() == {"PCK@0.1": 0.0}


def test_parts_merge_to_the_whole() -> None:
    moved = torch.tensor([0.0, 2.0, 0.0])
    first = scored(moved, slice(0, 1))
    assert first.per_joint()["right"] is None
    first.merge(scored(moved, slice(1, 2)))
    assert first.compute() == scored(moved).compute()


def test_what_is_refused() -> None:
    with pytest.raises(InputError, match="none of its keypoints is labelled"):
        PCK(JOINTS).compute()
    with pytest.raises(InputError, match="threshold=0 given"):
        PCK(JOINTS, 0)
    with pytest.raises(InputError, match="3 keypoints predicted and 3 labelled; this metric has 2 joints"):
        PCK(JOINTS[:2]).update([{"keypoints": TRUTH[0]}], {"keypoints": TRUTH[:1], "boxes": BOXES[:1]})
    with pytest.raises(InputError, match="1 predictions for 2 targets"):
        PCK(JOINTS).update([{"keypoints": TRUTH[0]}], {"keypoints": TRUTH, "boxes": BOXES})
