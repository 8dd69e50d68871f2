"""Every `vitreous` command in a block of the documentation is one that the command line takes; none of them is run."""

import re
import shlex
from importlib import import_module
from itertools import takewhile

import pytest

import vitreous_command
from tests.support.pages import ROOT, read
from vitreous_command import VERBS

PAGES = [
    "README.md",
    *sorted(f"docs/{file.name}" for file in (ROOT / "docs").glob("*.md")),
    "docs/examples/train.sbatch",
]
OPERATORS = set(";&|()<>") | {"&&", "||", ">>", "2>"}
FENCE = re.compile(r"^( *)```(\w*)$")
SHELL = ("", "bash", "sh", "console", "text")
LEAST = 150  # as many commands as were documented when this was written, nearly


def shell_lines(page: str) -> list[str]:
    """Lines of blocks that may hold commands, fenced or indented by four spaces, with continued ones in one."""
    if not page.endswith(".md"):
        return read(page).replace("\\\n", " ").splitlines()
    lines, fence = [], None
    for line in read(page).splitlines():
        if found := FENCE.match(line):
            fence = None if fence is not None else found[2]
        elif fence in SHELL or (fence is None and line.startswith("    ")):
            lines.append(line.strip())
    return "\n".join(lines).replace("\\\n", " ").splitlines()


def words_of(line: str, variables: dict[str, str]) -> list[str]:
    """As a shell reads it; nothing of a line that no shell could read."""
    given = re.sub(r"\$(\w+)", lambda name: variables.get(name[1], name[0]), line.removeprefix("$ "))
    words = shlex.shlex(given, posix=True, punctuation_chars=True)
    words.whitespace_split = True
    try:
        return list(words)
    except ValueError:  # no closing quotation: not a command
        return []


def commands(page: str) -> list[list[str]]:
    """Arguments of `vitreous`, started by itself, by another program or in a container."""
    found = []
    variables = {name: value for name, _, value in re.findall(r"\b([A-Z_]+)=([\"'])(.*?)\2", read(page))}
    for words in (words_of(line, variables) for line in shell_lines(page)):
        for place, word in enumerate(words):
            before = words[place - 1] if place else ";"
            starts = before in OPERATORS | {"do", "then", "time", "-m"} or re.match(r"[A-Z_]+=", before)
            contained = words[:2] == ["docker", "run"] and re.fullmatch(r"vitreous(:\w+)?", word)
            if (word == "vitreous" and starts) or contained:
                found.append(list(takewhile(lambda one: one not in OPERATORS, words[place + 1 :])))
    return found


DOCUMENTED = [(page, command) for page in PAGES for command in commands(page)]


@pytest.mark.parametrize(
    ("page", "command"), DOCUMENTED, ids=lambda value: value if isinstance(value, str) else " ".join(value)[:60]
)
def test_the_command_line_takes_it(page: str, command: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    verb, *arguments = command
    if verb == "help":
        verb, arguments = arguments[0], []
    assert verb in VERBS, f"{page} speaks of vitreous {verb}"
    if "--help" in arguments or command[0] == "help":
        return
    function = getattr(import_module(f"vitreous.{verb}"), verb)
    try:
        vitreous_command.parse(
            function, f"vitreous {verb}", arguments, without_result=verb in vitreous_command.WITHOUT_RESULT
        )
    except SystemExit:
        pytest.fail(f"{page}: vitreous {shlex.join(command)}\n{capsys.readouterr().err}")


def test_commands_are_found() -> None:
    assert len(DOCUMENTED) > LEAST
    assert {page for page, _ in DOCUMENTED} >= {"README.md", "docs/train.md", "docs/shortcuts.md", "docs/benchmarks.md"}
    assert words_of("vitreous train $A 'b c' # said", {"A": "a d"}) == ["vitreous", "train", "a", "d", "b c"]
