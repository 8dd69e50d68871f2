"""Several metrics as one: figures behind their prefixes, parts merged one by one."""

from typing import Any

from vitreous.metrics.figures import MetricCollection


class Count:
    def __init__(self, key: str) -> None:
        self.key, self.total = key, 0

    def update(self, predictions: list[dict[str, Any]], targets: dict[str, Any]) -> None:
        self.total += sum(prediction[self.key] for prediction in predictions)

    def merge(self, other: "Count") -> None:
        self.total += other.total

    def compute(self) -> dict[str, float]:
        return {"sum": float(self.total)}


def both() -> MetricCollection:
    return MetricCollection({"": Count("a"), "other_": Count("b")})


def test_figures_have_their_prefixes_and_parts_add_up():
    answers = [{"a": 1, "b": 10}, {"a": 2, "b": 20}, {"a": 4, "b": 40}]
    whole, one, two = both(), both(), both()
    whole.update(answers, {})
    one.update(answers[:1], {})
    two.update(answers[1:], {})
    one.merge(two)
    assert whole.compute() == one.compute() == {"sum": 7.0, "other_sum": 70.0}
