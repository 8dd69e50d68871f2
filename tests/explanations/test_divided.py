"""`score` and `atlas` on two processes: the files of one, whose images they divide."""

import json

import pytest

from tests.support.ranks import Ranks
from tests.support.tiny_model import save_tiny_model
from vitreous.attribution.method import Needs
from vitreous.explanations.dataset import own_part
from vitreous.faithfulness.scoring import MethodScores, joined_scores
from vitreous.runtime.distributed import World

SCORE = ["shapes", "--limit", "2", "--batch-size", "1", "--method", "grad_cam", "--device", "cpu"]
ATLAS = ["shapes", "--limit", "9", "--batch-size", "2", "--like", "shapes:val:3", "--device", "cpu"]


def rounded(value):
    """Where sums come in another order, their last digits differ."""
    if isinstance(value, dict):
        return {name: rounded(part) for name, part in value.items()}
    if isinstance(value, list):
        return [rounded(part) for part in value]
    return round(value, 4) if isinstance(value, float) else value


@pytest.mark.system
@pytest.mark.parametrize(
    ("verb", "words", "file"), [("score", SCORE, "faithfulness.json"), ("atlas", ATLAS, "atlas.json")]
)
def test_two_processes_write_what_one_does(tmp_path, verb, words, file):
    model, found = str(save_tiny_model(tmp_path / "tiny")), []
    for count in (1, 2):
        out = tmp_path / f"out-{count}"
        ranks = Ranks(count, [verb, model, *words, "--out", str(out)], tmp_path / f"logs-{count}")
        assert ranks.wait() == [0] * count, ranks.said_by_all()
        found.append(json.loads((out / file).read_text()))
    assert rounded(found[0]) == rounded(found[1])
    assert ranks.said(1) == "", "the first one speaks"


@pytest.mark.system
def test_a_mistake_is_told_once_and_leaves_nothing(tmp_path):
    model = str(save_tiny_model(tmp_path / "tiny"))
    ranks = Ranks(2, ["score", model, *SCORE[:-3], "no_such_map", "--out", str(tmp_path / "out")], tmp_path / "logs")
    assert all(code != 0 for code in ranks.wait())
    assert ranks.said_by_all().count("no_such_map") == 1
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("size", [1, 2, 3, 8])
def test_processes_take_whole_batches_and_leave_none_out(size):
    worlds = [World("cpu", rank=rank, size=size) for rank in range(size)]
    parts = [own_part(range(100, 123), world, 4) for world in worlds]
    assert [number for _, part in parts for number in part] == list(range(100, 123))
    assert all(len(part) % 4 == 0 for _, part in parts[:-1])
    assert [before for before, _ in parts] == [sum(len(part) for _, part in parts[:rank]) for rank in range(size)]


def test_scores_are_joined_in_order_and_a_part_may_be_empty():
    parts = [MethodScores(controls=("noise",)) for _ in range(3)]
    for part, numbers in ((parts[0], [1.0, 2.0]), (parts[2], [3.0])):
        part.values, part.constant = {"map": {"measure": numbers}}, {"map": 1}
        part.passes, part.summaries = {"map": Needs(passes=3).passes}, {"map": "a map"}
    whole = joined_scores(parts)
    assert whole.values == {"map": {"measure": [1.0, 2.0, 3.0]}}
    assert (whole.constant, whole.passes, whole.controls) == ({"map": 2}, {"map": 3}, ("noise",))
