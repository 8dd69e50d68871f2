"""`score` and `atlas` on two processes: the files of one, whose images they divide."""

import pytest

from tests.support.ranks import Ranks
from tests.support.tiny_model import save_tiny_model
from vitreous.attribution.method import Needs
from vitreous.faithfulness.scoring import MethodScores

SCORE = ["shapes", "--limit", "2", "--batch-size", "1", "--method", "grad_cam", "--device", "cpu"]
ATLAS = ["shapes", "--limit", "9", "--batch-size", "2", "--like", "shapes:val:3", "--device", "cpu"]


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
        found.append((out / file).read_bytes())
    assert found[0] == found[1]
    assert ranks.said(1) == "", "the first one speaks"


@pytest.mark.system
def test_a_mistake_is_told_once_and_leaves_nothing(tmp_path):
    model = str(save_tiny_model(tmp_path / "tiny"))
    ranks = Ranks(2, ["score", model, *SCORE[:-3], "no_such_map", "--out", str(tmp_path / "out")], tmp_path / "logs")
    assert all(code != 0 for code in ranks.wait())
    assert ranks.said_by_all().count("no_such_map") == 1
    assert not (tmp_path / "out").exists()


def test_scores_are_joined_in_order_and_a_part_may_be_empty():
    parts = [MethodScores(controls=("noise",)) for _ in range(3)]
    for part, numbers in ((parts[0], [1.0, 2.0]), (parts[2], [3.0])):
        part.values, part.constant = {"map": {"measure": numbers}}, {"map": 1}
        part.passes, part.summaries = {"map": Needs(passes=3).passes}, {"map": "a map"}
    whole = MethodScores()
    for part in parts:
        whole.join(MethodScores.restored(*part.stored()))
    assert whole.values == {"map": {"measure": [1.0, 2.0, 3.0]}}
    assert (whole.constant, whole.passes, whole.controls) == ({"map": 2}, {"map": 3}, ("noise",))
