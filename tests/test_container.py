"""The Dockerfile and the devcontainer, read as their tools read them; nothing is built, and no network is needed."""

import json
import re
import shlex
import shutil
import subprocess
import tomllib
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
INSTRUCTIONS = {"ARG", "FROM", "RUN", "ENV", "COPY", "USER", "WORKDIR", "ENTRYPOINT", "CMD"}


def instructions() -> list[tuple[str, str]]:
    """Word and rest of every instruction; a backslash continues a line, comments are left out."""
    text = "\n".join(line for line in (ROOT / "Dockerfile").read_text().splitlines() if not line.startswith("#"))
    lines = [line for line in re.sub(r"\\\n\s*", "", text).splitlines() if line.strip()]
    return [(word, rest) for word, _, rest in (line.partition(" ") for line in lines)]


def test_every_instruction_is_known_and_the_base_is_an_argument():
    words = [word for word, _ in instructions()]
    assert set(words) <= INSTRUCTIONS
    assert words[:2] == ["ARG", "FROM"]
    assert instructions()[1] == ("FROM", "${BASE}")
    assert dict(instructions())["USER"] != "root"


def test_commands_in_brackets_are_lists_of_texts():
    lists = [json.loads(rest) for word, rest in instructions() if word in ("ENTRYPOINT", "CMD")]
    assert lists == [["vitreous"], ["--help"]]


def test_what_is_copied_is_there_and_is_not_left_out():
    kept = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    copied = [word for name, rest in instructions() if name == "COPY" for word in rest.split()[:-1]]
    assert copied
    assert {name for name in copied if (ROOT / name).exists()} == set(copied) == kept


def test_extras_are_those_of_the_package():
    known = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    (asked,) = [rest.partition("=")[2] for word, rest in instructions() if rest.startswith("EXTRAS=")]
    assert set(asked.split(",")) <= set(known)
    content = json.loads((ROOT / ".devcontainer" / "devcontainer.json").read_text())
    (extra,) = re.findall(r"\[(\w+)\]", content["postCreateCommand"])
    assert extra in known


@pytest.mark.parametrize("variable", re.findall(r"\$\{(\w+)\}", (ROOT / "Dockerfile").read_text()))
def test_every_variable_is_an_argument(variable):
    assert any(rest.startswith(f"{variable}=") for word, rest in instructions() if word == "ARG")


def test_commands_of_the_image_and_of_continuous_integration_are_those_of_a_shell():
    scripts = [rest for word, rest in instructions() if word == "RUN"] + [(ROOT / ".ci" / "run").read_text()]
    for script in scripts:
        done = subprocess.run(["bash", "-n"], input=script, capture_output=True, text=True)
        assert done.returncode == 0, done.stderr


@pytest.mark.skipif(shutil.which("make") is None, reason="no make on this machine (Debian: make)")
@pytest.mark.parametrize(
    ("given", "asked"),
    [
        ([], []),
        (
            ["BASE=nvidia/cuda:12", "EXTRAS=web,video"],
            ["--build-arg", "BASE=nvidia/cuda:12", "--build-arg", "EXTRAS=web,video"],
        ),
    ],
)
def test_make_image_builds_it_with_its_arguments(given, asked):
    done = subprocess.run(
        ["make", "-n", "--no-print-directory", "image", *given], cwd=ROOT, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr
    assert shlex.split(done.stdout) == ["docker", "build", "--tag", "vitreous", *asked, "."]
    arguments = {rest.partition("=")[0] for word, rest in instructions() if word == "ARG"}
    assert {"BASE", "EXTRAS", "PIP_EXTRA_INDEX_URL"} <= arguments
