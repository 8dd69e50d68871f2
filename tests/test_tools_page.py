"""docs/with-your-tools.md: its sweep runs, its links lead somewhere."""

import json
from importlib import import_module

import pytest
import yaml

from tests.support.pages import blocks, dead_links
from vitreous.runs.trackers import Tracker
from vitreous_command import VERBS, WITHOUT_RESULT, main, parse

PAGE = "docs/with-your-tools.md"


def test_its_sweep_runs(tmp_path, monkeypatch, capsys):
    """With less of everything: two rounds, of three trials and of one."""
    monkeypatch.chdir(tmp_path)
    content = yaml.safe_load(blocks(PAGE, "yaml")[0])
    content |= {"model": "test_convnext", "trials": 3}
    content["settings"] |= dict(size=32, epochs=3, train_count=16, val_count=10, batch_size=8, workers=0)
    (tmp_path / "sweep.yaml").write_text(yaml.dump(content))
    assert main(["sweep", "sweep.yaml", "--out", "runs/sweep", "--device", "cpu"]) == 0
    rows = json.loads((tmp_path / "runs" / "sweep" / "result" / "sweep.json").read_text())["rows"]
    assert [row["epochs"] for row in rows] == [3, 1, 1, 1]
    assert rows[0]["trial"] == rows[1]["trial"], "the best of the first round went on"
    assert (tmp_path / "runs" / "sweep" / "result" / "sweep.png").is_file()
    assert "again, for longer: vitreous train test_convnext shapes" in capsys.readouterr().out


@pytest.mark.parametrize("verb", [verb for verb in VERBS if verb not in WITHOUT_RESULT])
def test_verbs_with_a_result_take_json(verb, capsys):
    with pytest.raises(SystemExit):
        parse(getattr(import_module(f"vitreous.{verb}"), verb), f"vitreous {verb}", ["--help"])
    assert "--json" in capsys.readouterr().out


def test_a_tracker_has_two_methods():
    assert {name for name in vars(Tracker) if not name.startswith("_")} == {"log", "close"}


def test_links_lead_somewhere():
    assert not dead_links(PAGE)
