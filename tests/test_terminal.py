"""Names from strangers are shown, not obeyed."""

import sys

import numpy as np
import pytest
from PIL import Image

import vitreous_command
from tests.support.tiny_data import annotation, coco, picture
from tests.support.tiny_model import save_tiny_model
from vitreous.errors import InputError, printable

ESCAPE, OVERRIDE = "\x1b[2Jgone", "\u202egnp.txt"


@pytest.mark.parametrize(
    ("name", "shown"),
    [
        ("cat.png", "cat.png"),
        ("Größe 日本 👨‍👩‍👧 – [x].png", "Größe 日本 👨‍👩‍👧 – [x].png"),
        ("\x1b[31mred", r"\x1b[31mred"),
        ("a\r\nb\tc\x7f", r"a\x0d\x0ab\x09c\x7f"),
        ("\x9b31m", r"\x9b31m"),
        ("\u202ea\u2066b\u200f", r"\u202ea\u2066b\u200f"),
        ("a\u2028b", r"a\u2028b"),
        ("caf\udce9", r"caf\xe9"),
        ("\ud800", r"\ud800"),
    ],
)
def test_what_acts_on_a_terminal_is_written_out(name, shown):
    assert printable(name) == shown
    assert printable(shown) == shown
    printable(name).encode()


def test_messages_keep_their_own_lines():
    assert printable("a\nb\x1b", keep="\n") == "a\nb\\x1b"


def silent(text: str) -> bool:
    return not any(character in text for character in "\x1b\x9b\u202e\x07")


def run(*arguments: str) -> int:
    return vitreous_command.main(list(arguments))


def test_errors_on_the_command_line(capsys, tmp_path):
    assert run("check", str(tmp_path / ESCAPE)) == 2
    said = capsys.readouterr()
    assert silent(said.err)
    assert r"\x1b[2Jgone" in said.err


def test_check_shows_names_of_files_and_classes(capsys, tmp_path):
    root = tmp_path / OVERRIDE
    for split in ("train", "val"):
        picture(root / split / ESCAPE / "0.png", size=(40, 40), seed=len(split))
        picture(root / split / "b" / "1.png", size=(40, 40), seed=9 + len(split))
    (root / "train" / "b" / f"{ESCAPE}.png").write_bytes(b"no picture")
    (root / "train" / f"only{ESCAPE}").mkdir()
    assert run("check", str(root), "--workers", "0") == 1
    said = capsys.readouterr()
    assert silent(said.out + said.err)
    assert r"\x1b[2Jgone" in said.out
    assert r"\u202egnp.txt" in said.out


def test_check_shows_names_in_annotations(capsys, tmp_path):
    categories = [{"id": 7, "name": ESCAPE}, {"id": 3, "name": OVERRIDE}]
    for split in ("train", "val"):
        coco(tmp_path, [annotation(1), annotation(1), annotation(2, box=(1, 1, 0, 0))], split, categories)
    run("check", str(tmp_path), "--workers", "0")
    said = capsys.readouterr()
    assert silent(said.out + said.err)
    assert r"\x1b[2Jgone" in said.out


def test_predict_and_explain_show_names(capsys, tmp_path):
    model = save_tiny_model(tmp_path / "best")
    images = tmp_path / f"x{ESCAPE}"
    picture(images / f"{OVERRIDE}.png", size=(64, 64))
    (images / f"bad{OVERRIDE}.png").write_bytes(b"no picture")
    assert run("predict", model, str(images), "--out", str(tmp_path / f"out{ESCAPE}")) == 0
    assert run("explain", model, str(images), "--out", str(tmp_path / f"why{ESCAPE}"), "--method", "grad_cam") == 0
    said = capsys.readouterr()
    assert silent(said.out + said.err)
    assert r"\u202egnp.txt" in said.out
    assert r"\x1b[2Jgone" in said.out


def test_train_and_evaluate_show_names(capsys, tmp_path):
    root = tmp_path / f"data{ESCAPE}"
    rng = np.random.default_rng(0)
    for split in ("train", "val"):
        for place, name in enumerate((ESCAPE, OVERRIDE, "plain")):
            for number in range(2):
                file = root / split / name / f"{number}{OVERRIDE}.png"
                file.parent.mkdir(parents=True, exist_ok=True)
                Image.fromarray(rng.integers(0, 80 * place + 90, (32, 32, 3)).astype(np.uint8)).save(file)
    (root / "val" / "plain" / f"{ESCAPE}.png").write_bytes(b"no picture")
    out = str(tmp_path / f"run{ESCAPE}")
    few = ["--epochs", "1", "--batch-size", "4", "--size", "32", "--workers", "0", "--model-args", "depths=(1,1,1,1)"]
    assert run("train", "paca_b0", str(root), "--out", out, *few, "--warmup-epochs", "0", "--max-corrupt", "1") == 0
    assert run("evaluate", out, str(root), "--workers", "0", "--out", str(tmp_path / f"figures{ESCAPE}")) == 0
    said = capsys.readouterr()
    assert silent(said.out + said.err)
    assert r"\x1b[2Jgone" in said.out
    assert r"\u202egnp.txt" in said.out


@pytest.mark.parametrize("verb", ["check", "train", "predict", "explain", "evaluate", "info"])
def test_names_that_no_file_system_takes(verb, capsys):
    """A name of 10,000 letters as data, model or picture: one message, no traceback."""
    long = "a" * 10_000
    arguments = {"train": ("paca_b0", long), "check": (long,), "info": (f"./{long}",)}.get(verb, (f"./{long}", long))
    assert run(verb, *arguments) == 2
    assert "Traceback" not in capsys.readouterr().err


def test_memory_that_runs_out_is_a_sentence(capsys, monkeypatch):
    def greedy() -> None:
        raise MemoryError

    module = type(sys)("vitreous.info")
    module.info = greedy
    monkeypatch.setitem(sys.modules, "vitreous.info", module)
    assert run("info") == 2
    assert "not enough memory" in capsys.readouterr().err


def test_an_input_error_is_a_value_error():
    assert issubclass(InputError, ValueError)
