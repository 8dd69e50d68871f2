"""docs/many.md: its commands and snippets work in order."""

import re
import shlex
from pathlib import Path

import pytest

import vitreous_command
from tests.support.pages import dead_links, read
from tests.support.ranks import Ranks

PAGE = "docs/many.md"
QUICK = {  # what makes a command quick enough for a test
    "train": "--size 32 --epochs 1 --batch-size 8 --train-count 16 --val-count 9 --workers 0 --device cpu "
    "--model-args dims=(8,16,24,32) depths=(1,1,1,1) heads=(1,2,3,4)",
    "shapes": "--size 32",
    "predict": "--device cpu",
    "embed": "--device cpu",
}


@pytest.mark.system
def test_commands_and_snippets_work_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for language, text in re.findall(r"```(bash|python)\n(.*?)```", read(PAGE), re.S):
        if language == "python":
            exec(text, {})
            continue
        for line in text.splitlines():
            words = shlex.split(line.replace("--count 200", "--count 40"))
            if words[0] == "vitreous":
                assert vitreous_command.main([*words[1:], *QUICK[words[1]].split()]) == 0, line
                continue
            assert words[:6] == ["torchrun", "--standalone", "--nproc-per-node", "2", "-m", "vitreous"]
            ranks = Ranks(2, [*words[6:], *QUICK[words[6]].split()], tmp_path / "logs")
            assert ranks.wait() == [0, 0], ranks.said_by_all()
            assert "complete: " in ranks.said_by_all()
    answers = [path.read_text() for path in sorted(Path("answers").glob("*.jsonl"))]
    shared = [path.read_text() for path in sorted(Path("shared").glob("*.jsonl"))]
    assert "".join(answers).count("\n") == "".join(shared).count("\n") == 50
    assert Path("tables/features-00000.parquet").is_file()


def test_links() -> None:
    assert not dead_links(PAGE)
