"""docs/deploy.md: its commands and programs work, and its links are there."""

import runpy
import shlex
import sys
from pathlib import Path

import pytest

from tests.support.pages import ROOT, blocks, dead_links, read
from tests.support.tiny_model import save_tiny_model
from vitreous.data.pictures import find_pictures
from vitreous_command import main

pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
pytest.importorskip("openvino", reason="the extra `export` is not installed")
PAGE = "docs/deploy.md"
TINY = {
    "predict": "--device cpu",
    "evaluate": "--count 8 --workers 0 --device cpu",
    "explain": "--method occlusion --device cpu",
}


@pytest.mark.parametrize("shape", ["--static", pytest.param("", marks=pytest.mark.slow)])
def test_commands_and_programs_work(shape: str, tmp_path: Path, monkeypatch, capsys) -> None:
    """As they stand there; graphs of any size take longer to write, so that the quick test has them of one."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    save_tiny_model(tmp_path / "runs" / "demo" / "best")
    (one,) = find_pictures(["shapes:val:0"], size=(70, 90))
    one.load().save("photo.jpg")
    (script,) = blocks(PAGE, "bash")
    for line in script.splitlines()[1:]:
        words = shlex.split(line)
        if words[0] == "python":
            monkeypatch.setattr(sys, "argv", words[1:])
            runpy.run_path(words[1], run_name="__main__")
            assert "photo.jpg  " in capsys.readouterr().out
            continue
        added = f"{shape} --rounds 1" if words[1] == "export" else TINY[words[1]]
        assert main([*words[1:], *shlex.split(added)]) == 0, f"{line}\n{capsys.readouterr().err}"
    for code in blocks(PAGE, "python"):
        exec(code.replace("np.repeat(images, 4,", "np.repeat(images, 1,") if shape else code, {})
        assert capsys.readouterr().out
    sys.modules.pop("run", None)


def test_links_lead_somewhere() -> None:
    assert not dead_links(PAGE)


def test_the_page_is_found() -> None:
    assert "docs/deploy.md" in read("README.md")
    assert "deploy.md" in (ROOT / "mkdocs.yml").read_text()
