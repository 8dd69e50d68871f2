"""The guard around readers, and what it lets through."""

import errno
import json
import os
import resource
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.files.reading import (
    PlainLoader,
    excerpt,
    parse_json,
    problem_of_path,
    read_json,
    read_names,
    reading,
    reason_of,
)


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (KeyError("x"), "a file cannot be read: KeyError: 'x'; mend it"),
        (ValueError("two\nlines"), "a file cannot be read: two lines; mend it"),
        (RecursionError(), "it is nested too deeply; mend it"),
        (MemoryError(), "it asks for more memory than there is; mend it"),
        (
            OSError(errno.EMFILE, "Too many open files"),
            r"Too many open files; raise the limit of open files \(ulimit -n\)",
        ),
        (OSError(errno.ENAMETOOLONG, "File name too long"), "File name too long; mend it"),
        (ValueError("a" * 5_000), "a{200}…; mend it"),
    ],
)
def test_every_failure_is_one_line(error, message):
    with pytest.raises(InputError, match=message) as caught, reading("a file", remedy="mend it"):
        raise error
    assert "\n" not in str(caught.value)
    assert caught.value.__cause__ is error, "for those who look for the cause"


@pytest.mark.parametrize("error", [InputError("said already"), ImportError("no such package"), KeyboardInterrupt()])
def test_what_is_no_matter_of_the_file_passes(error):
    with pytest.raises(type(error)) as caught, reading("a file"):
        raise error
    assert caught.value is error


def test_values_are_shown_briefly():
    assert excerpt("\x1b[31m") == r"'\x1b[31m'"
    assert len(excerpt("a" * 10_000)) < 250
    assert excerpt([0] * 10_000) == "a list of 10000"
    assert excerpt(10**6_000) == "a int too long to show"


def test_json_yaml_and_lists(tmp_path):
    file = tmp_path / "a.json"
    file.write_bytes(b"\xef\xbb\xbf" + json.dumps({"a": [1]}).encode())
    assert read_json(file, 1_000) == {"a": [1]}
    with pytest.raises(InputError, match=r"a\.json has 13 bytes; at most 10 are read"):
        read_json(file, 10)
    for text in (b"", b"\0\0\0", b"<html>"):
        file.write_bytes(text)
        with pytest.raises(InputError, match=r"a\.json cannot be read: it does not begin as JSON does"):
            read_json(file, 10)
    with pytest.raises(ValueError, match="nested too deeply"):
        parse_json("[" * 100_000)
    with pytest.raises(ValueError, match=r"line 2 has a reference"):
        yaml.load("a: &a [1]\nb: *a", PlainLoader)
    plain = yaml.load("{no: 1, y: off, a: 1e-3, b: 010, c: true, d: , e: 2024-01-31, f: 1:30}", PlainLoader)
    assert plain == {"no": 1, "y": "off", "a": 0.001, "b": 10, "c": True, "d": None, "e": "2024-01-31", "f": "1:30"}
    (tmp_path / "names.txt").write_text("\ufeff# pets\ncat\n dog \n\n", encoding="utf-8")
    assert read_names(tmp_path / "names.txt") == ["cat", "dog"]
    (tmp_path / "names.txt").write_bytes(b"caf\xe9")
    with pytest.raises(InputError, match=r"names\.txt cannot be read: .*save it as UTF-8"):
        read_names(tmp_path / "names.txt")


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("cat\n\ndog\n", "line 2 is empty"),
        ("# pets\n \ncat\n", "line 2 is empty"),
        ("cat,dog,cow\n", "its only line is 'cat,dog,cow'; write each name on a line of its own"),
        ("cat\tdog\n", "its only line is"),
    ],
)
def test_lists_that_leave_the_place_of_a_name_in_doubt_are_refused(tmp_path, text, reason):
    (tmp_path / "names.txt").write_text(text)
    with pytest.raises(InputError, match=rf"names\.txt cannot be read: {reason}"):
        read_names(tmp_path / "names.txt")


@pytest.mark.parametrize("name", ["0.png", "a/b/0.png", "a b.png", "..png", "a..b/0.png", "日本.png", "1:2.png"])
def test_ordinary_names_are_in_order(name):
    assert problem_of_path(name, follow=False) == ""


@pytest.mark.parametrize("name", ["../0.png", "a/../../0.png", "/0.png", "a/..", "..", "..\\0.png"])
def test_names_that_lead_elsewhere(name):
    assert "--follow" in problem_of_path(name, follow=False)
    assert problem_of_path(name, follow=True) == ""


@pytest.mark.parametrize("name", ["a" * 10_000, "a/" * 5_000, "a\0b"])
@pytest.mark.parametrize("targets", ["labels", "boxes", "semantic"])
def test_data_by_impossible_names(name, targets):
    with pytest.raises(InputError, match=r"data '|there is no such folder"):
        open_data(name, "train", size=(8, 8), targets=targets)


def test_reasons():
    assert reason_of(KeyError("a")) == "KeyError: 'a'"
    assert reason_of(AssertionError()) == "AssertionError"


FEW_FILES = """
import resource, sys
from vitreous.data.source import open_data
from vitreous.errors import InputError
images = open_data(sys.argv[1], "train", size=(8, 8))
images[0]
here = []
try:
    while True:
        here.append(open("/dev/null"))
except OSError:
    pass
try:
    images[1]
except InputError as error:
    for file in here: file.close()
    print(type(error).__name__, error)
"""


@pytest.mark.system
def test_a_lack_of_open_files_is_no_fault_of_a_picture(tmp_path):
    """It must not count as a picture that cannot be read, or figures would be those of other pictures."""
    from tests.support.tiny_data import picture

    for name in ("a/0.png", "a/1.png", "b/2.png"):
        picture(tmp_path / "train" / name)
    limit = min(256, resource.getrlimit(resource.RLIMIT_NOFILE)[0])
    command = ["bash", "-c", f'ulimit -n {limit}; exec {sys.executable} -c "$1" "$2"', "x", FEW_FILES, str(tmp_path)]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, env=environment)
    assert done.stdout.startswith("InputError image "), done.stdout + done.stderr
    assert "Too many open files; raise the limit of open files" in done.stdout
