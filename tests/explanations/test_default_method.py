"""A default for each number of passes: stored, read, and read from files that do not have it."""

import json

import pytest

from tests.support.explained_models import family
from tests.support.tiny_model import save_tiny_model
from vitreous.errors import InputError
from vitreous.explanations.default_method import DefaultMethod, most_faithful, read_default_method, store_default_method
from vitreous.explanations.explaining import Plan, chosen_methods
from vitreous.faithfulness.scoring import DECIDES, MethodScores

VALUES = {"cheap": 0.3, "middle": 0.5, "dear": 0.7, "poor": 0.1, "random_map": 0.0, "centre_blob": 0.2}
PASSES = {"cheap": 3, "middle": 9, "dear": 60, "poor": 30, "random_map": 0, "centre_blob": 0}


def scores(**changes) -> MethodScores:
    values = {name: {DECIDES: [mean, mean + 0.01]} for name, mean in VALUES.items()}
    return MethodScores(values, ("random_map", "centre_blob"), passes=PASSES, **changes)


def test_the_best_for_every_number_of_passes(tmp_path):
    chosen = most_faithful(scores(), data="somewhere/photos", images=2)
    assert chosen.method == "dear"
    assert {n: chosen.for_budget(n) for n in (3, 8, 9, 10, 50, 59, 60, 100, 5000)} == {
        3: "cheap", 8: "cheap", 9: "middle", 10: "middle", 50: "middle", 59: "middle", 60: "dear", 100: "dear",
        5000: "dear",
    }  # fmt: skip
    with pytest.raises(InputError, match="budget of 2 is below every method; the cheapest is cheap with 3 passes"):
        chosen.for_budget(2)
    model = save_tiny_model(tmp_path / "model")
    store_default_method(model, chosen)
    assert dict(read_default_method(model).by_budget) == dict(chosen.by_budget)
    assert read_default_method(model).measured == {
        name: (value + 0.005, value, value + 0.01) for name, value in VALUES.items() if PASSES[name]
    }
    assert chosen.refinement() == ("cheap", "middle", "dear")
    plan = read_default_method(model).applied(Plan(budget=10))
    assert plan.default == "middle"
    assert "at most 10 passes it is the most faithful on 2 images of photos: insertion − deletion 0.51" in plan.reason


def test_a_file_without_budgets_can_be_read(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    store_default_method(model, DefaultMethod("occlusion", "It is.", {"occlusion": True}, "photos", 40))
    file = tmp_path / "model" / "explain.json"
    content = json.loads(file.read_text())
    del content["by_budget"], content["measured"]
    file.write_text(json.dumps(content))
    older = read_default_method(model)
    assert older.method == "occlusion"
    assert older.for_budget(3) is None
    assert older.refinement() == ()
    assert older.applied(Plan(budget=3)).default is None  # what it costs is not known


def test_a_measured_number_that_is_none_is_refused(tmp_path):
    model = save_tiny_model(tmp_path / "model")
    store_default_method(model, most_faithful(scores(), data="photos", images=2))
    file = tmp_path / "model" / "explain.json"
    content = json.loads(file.read_text())
    content["measured"]["cheap"]["mean"] = float("nan")
    file.write_text(json.dumps(content))
    with pytest.raises(InputError, match="not written by vitreous score"):
        read_default_method(model)


def test_methods_that_show_no_place_are_no_default():
    assert scores(constant={"dear": 2}).best() == "middle"
    with pytest.raises(InputError, match="is constant and shows no place"):
        scores(constant=dict.fromkeys(PASSES, 2)).best()


def test_a_budget_chooses_among_methods():
    model = family()
    assert max(method.needs.passes for method in chosen_methods(model, Plan(budget=3))) <= 3
    assert chosen_methods(model, Plan(budget=3, methods=("gradient_contrast",)))[0].name == "gradient_contrast"
    with pytest.raises(InputError, match="occlusion takes 81 passes and the budget is 3"):
        chosen_methods(model, Plan(budget=3, methods=("occlusion",)))
    with pytest.raises(InputError, match="budget of 0 passes"):
        Plan(budget=0)
