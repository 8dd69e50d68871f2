"""What the data of a run must be."""

from types import SimpleNamespace

import pytest

from vitreous.errors import InputError
from vitreous.training.settings import TrainSettings
from vitreous.training.splits import require_choice


@pytest.mark.parametrize(("task", "needs"), [("classify", "a classifier needs two"), ("segment", "a segmenter needs")])
@pytest.mark.parametrize(("classes", "found"), [(("cat",), "'data' has one class, 'cat'"), ((), "there is no class")])
def test_there_must_be_something_to_choose_from(task, needs, classes, found):
    with pytest.raises(InputError, match=f"{found}, .*{needs}"):
        require_choice(TrainSettings("paca_b0", "data", task=task), SimpleNamespace(classes=classes))


@pytest.mark.parametrize(
    ("task", "classes"),
    [("classify", ("cat", "dog")), ("segment", ("road", "rest")), ("detect", ("cell",)), ("keypoints", ("person",))],
)
def test_objects_may_be_of_one_class(task, classes):
    require_choice(TrainSettings("paca_b0", "data", task=task), SimpleNamespace(classes=classes))
