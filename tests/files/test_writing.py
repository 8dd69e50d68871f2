"""Nothing is written through a link that somebody has prepared, whatever kind of file it stands for."""

import ast
import os
import stat
from pathlib import Path

import pytest
from PIL import Image

from tests.support.tiny_runs import PLAIN
from vitreous.check import check
from vitreous.data.loader import Unreadable
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.files.storage import publish_folder, recover_folders, replace_file, write_json
from vitreous.files.writing import open_for_writing, replace_content, write_output, write_text
from vitreous.runs.checkpoint import save_checkpoint
from vitreous.runs.results import result_folder
from vitreous.runs.run_folder import RUN_FILES, RunFolder
from vitreous.shapes import shapes
from vitreous.train import train
from vitreous.training.bad_images import BadImages

PACKAGE = Path(__file__).parents[2] / "vitreous"
PRECIOUS = "not yours\n"


@pytest.fixture
def victim(tmp_path):
    """A file outside; however a test ends, it must be as it was."""
    file = tmp_path / "victim"
    file.write_text(PRECIOUS)
    yield file
    assert file.read_text() == PRECIOUS
    assert not file.is_symlink()


@pytest.fixture
def outside(tmp_path):
    """A folder outside into which nothing may be written, and from which nothing may vanish."""
    folder = tmp_path / "outside"
    folder.mkdir()
    (folder / "file").write_text(PRECIOUS)
    yield folder
    assert [path.name for path in folder.iterdir()] == ["file"]


@pytest.mark.parametrize("name", RUN_FILES)
@pytest.mark.parametrize("kind", ["file", "folder", "nothing"])
def test_links_in_a_run_folder_are_refused_at_once(tmp_path, victim, outside, name, kind):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to({"file": victim, "folder": outside, "nothing": tmp_path / "absent"}[kind])
    with pytest.raises(InputError, match=f"{name} is a symbolic link"):
        train(**PLAIN, out=run)
    assert not (tmp_path / "absent").exists()
    assert [path.name for path in run.iterdir()] == [name]


def test_everything_a_run_writes_is_watched(tmp_path):
    out = train(**PLAIN | dict(train_count=16, tensorboard=True), out=tmp_path / "run")
    assert {path.name for path in out.iterdir()} <= set(RUN_FILES)


@pytest.mark.parametrize("name", [".run.json.tmp", ".metrics.jsonl.tmp", ".best.tmp", ".best.old", ".step.old"])
@pytest.mark.parametrize("kind", ["file", "folder"])
def test_links_in_place_of_temporary_files_are_removed(tmp_path, victim, outside, name, kind):
    run = tmp_path / "run"
    run.mkdir()
    (run / name).symlink_to(victim if kind == "file" else outside)
    train(**PLAIN | dict(train_count=16), out=run)
    assert not os.path.lexists(run / name)
    assert (run / "final" / "model.safetensors").is_file()


def test_links_that_appear_during_a_run(tmp_path, victim):
    with RunFolder(tmp_path / "run") as run:
        (run.path / "metrics.jsonl").symlink_to(victim)
        with pytest.raises(InputError, match="symbolic link"):
            run.log(step=1)
        (run.path / "run.json").symlink_to(victim)
        run.begin({}, {})
        assert (run.path / "run.json").is_file()
        assert not (run.path / "run.json").is_symlink()
        images = {"train": open_data("shapes", "train", size=(16, 16), count=50)}
        (run.path / "bad_images.jsonl").symlink_to(victim)
        bad = BadImages(run.path, images, 1.0)
        bad.note("train", [Unreadable(1, "why")])
        with pytest.raises(InputError, match="symbolic link"):
            bad.settle()


def test_links_among_checkpoints(tmp_path, victim, outside):
    folder = tmp_path / "checkpoints"
    folder.mkdir()
    for name in ("LATEST", ".LATEST.tmp"):
        (folder / name).symlink_to(victim)
    for name in ("step-00000001", ".step-00000001.tmp", ".step-00000001.old"):
        (folder / name).symlink_to(outside)
    save_checkpoint(folder, 1, {}, {})
    recover_folders(folder)
    assert not [path for path in folder.iterdir() if path.is_symlink()]


def test_a_folder_takes_the_place_of_a_link(tmp_path, outside):
    for target in (outside, tmp_path / "absent"):
        (tmp_path / "model").symlink_to(target)

        def write(staging: Path) -> list[str]:
            write_json(staging / "file.json", 1)
            return ["file.json"]

        publish_folder(tmp_path / "model", write)
        assert (tmp_path / "model" / "file.json").is_file()
        (tmp_path / "model" / "file.json").unlink()
        (tmp_path / "model" / "manifest.json").unlink()
        (tmp_path / "model").rmdir()


def test_links_in_a_folder_of_results(tmp_path, victim, outside):
    out = tmp_path / "out"
    out.mkdir()
    (out / "result.json").symlink_to(victim)  # looks like an earlier result
    (out / "page.html").symlink_to(victim)
    (out / ".unfinished").symlink_to(outside)
    with result_folder(out, "result.json") as staging:
        write_text(staging / "page.html", "new")
        write_json(staging / "result.json", {"files": ["page.html"]})
    assert sorted(path.name for path in out.iterdir()) == ["page.html", "result.json"]
    assert not [path for path in out.iterdir() if path.is_symlink()]


def test_files_that_options_name_take_the_place_of_links(tmp_path, victim):
    run = train(**PLAIN | dict(train_count=16), out=tmp_path / "run")
    for name in ("figures.json", "figures.md", ".figures.json.tmp"):
        (tmp_path / name).symlink_to(victim)
    places = dict(json=tmp_path / "figures.json", markdown=tmp_path / "figures.md")
    evaluate(str(run), "shapes", count=8, workers=0, device="cpu", **places)
    assert all(path.is_file() and not path.is_symlink() for path in places.values())


def test_lists_and_reports_of_check_take_the_place_of_links(tmp_path, victim):
    data = shapes(out=tmp_path / "data", count=10, size=16)
    sorted((data / "train").rglob("*.png"))[0].write_bytes(b"")
    for name in ("quarantine.txt", ".quarantine.txt.tmp", "report.json"):
        (data / name).symlink_to(victim)
    check(str(data), workers=0, json=data / "report.json")
    for name in ("quarantine.txt", "report.json"):
        assert (data / name).is_file()
        assert not (data / name).is_symlink()


# ---- the functions themselves ------------------------------------------------------------------------------------


@pytest.mark.timeout(20)
@pytest.mark.parametrize("mode", ["w", "a", "a+"])
def test_only_ordinary_files_are_opened(tmp_path, victim, mode):
    (tmp_path / "link").symlink_to(victim)
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(InputError, match="symbolic link"):
        open_for_writing(tmp_path / "link", mode)
    with pytest.raises((InputError, OSError)):  # at once: nobody reads from the pipe
        open_for_writing(tmp_path / "pipe", mode)


def test_a_link_made_in_the_last_moment(tmp_path, victim, monkeypatch):
    monkeypatch.setattr("vitreous.files.writing.refuse_link", lambda path: path.symlink_to(victim))
    with pytest.raises(OSError, match="symbolic link"):
        open_for_writing(tmp_path / "file", "w")


def test_permissions_are_the_usual_ones(tmp_path):
    (tmp_path / "usual").write_text("")
    replace_file(tmp_path / "ours", "text")
    write_text(tmp_path / "other", "text")
    modes = {stat.S_IMODE(path.stat().st_mode) for path in tmp_path.iterdir()}
    assert len(modes) == 1


def test_what_is_no_file_is_written_to_as_it_is(tmp_path, capfd):
    write_output(Path("/dev/null"), "nothing")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    reader, writer = os.pipe()
    write_output(Path(f"/dev/fd/{writer}"), "through a pipe")
    assert os.read(reader, 100) == b"through a pipe"


def test_a_write_that_fails_leaves_the_old_content(tmp_path, monkeypatch):
    (tmp_path / "file").write_text("old")

    def full(_: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("os.fsync", full)
    with pytest.raises(OSError, match="No space"):
        replace_content(tmp_path / "file", b"new")
    assert [path.name for path in tmp_path.iterdir()] == ["file"]
    assert (tmp_path / "file").read_text() == "old"


def test_explanations_take_the_place_of_links(tmp_path, victim, monkeypatch):
    from vitreous.reports import explanation

    monkeypatch.setattr(explanation.Explanation, "html", lambda self, *, top_k: "page")
    monkeypatch.setattr(explanation.Explanation, "to_dict", lambda self: {})
    monkeypatch.setattr("vitreous.reports.explanation_page.draw_sheet", lambda *_: Image.new("RGB", (4, 4)))
    found = object.__new__(explanation.Explanation)
    for suffix in ("html", "png", "json"):
        (tmp_path / f"e.{suffix}").symlink_to(victim)
        assert not found.save(tmp_path / f"e.{suffix}").is_symlink()
    with Image.open(tmp_path / "e.png") as sheet:
        assert sheet.size == (4, 4)


WRITES = {"write_text", "write_bytes", "touch"}


def raw_writes(path: Path) -> list[str]:
    """Calls that would follow a link: `open` for writing, and pathlib's."""
    found = []
    for node in ast.walk(ast.parse(path.read_text())):
        if not isinstance(node, ast.Call):
            continue
        method = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        name = node.func.id if isinstance(node.func, ast.Name) else method
        modes = [*node.args[:2], *(word.value for word in node.keywords if word.arg == "mode")]
        writing = any(isinstance(mode, ast.Constant) and set(str(mode.value)) & set("wax+") for mode in modes)
        if method in WRITES or (name == "open" and writing and "devnull" not in ast.unparse(node)):
            found.append(f"{path.relative_to(PACKAGE)}:{node.lineno}: {ast.unparse(node)}")
    return found


def test_files_are_written_by_one_module_only():
    found = [call for path in PACKAGE.rglob("*.py") if path.name != "writing.py" for call in raw_writes(path)]
    assert not found, "use vitreous.files.writing, or vitreous.files.storage"
