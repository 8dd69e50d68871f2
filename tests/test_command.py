"""The command line: a quick table of verbs, help by example, exit codes and messages."""

import inspect
import json
import os
import subprocess
import sys
from importlib import import_module, util
from pathlib import Path

import pytest

import vitreous_command
from vitreous.errors import InputError, to_install_extra
from vitreous_command import VERBS, main

WRITTEN = [verb for verb in VERBS if util.find_spec(f"vitreous.{verb}")]


def run_code(code: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=60)


@pytest.fixture
def verb(monkeypatch):
    """Put a function in the place of `vitreous info`."""

    def put(function):
        module = type(sys)("vitreous.info")
        module.info = function
        monkeypatch.setitem(sys.modules, "vitreous.info", module)

    return put


@pytest.mark.system
@pytest.mark.parametrize("arguments", [[], ["--help"], ["--version"], ["no-such-verb"]])
def test_table_of_verbs_needs_no_torch(arguments):
    code = (
        "import sys, vitreous_command\n"
        f"code = vitreous_command.main({arguments!r})\n"
        "loaded = {'torch', 'timm', 'numpy', 'vitreous'} & set(sys.modules)\n"
        "assert not loaded, loaded\n"
        "sys.exit(code)"
    )
    done = run_code(code)
    assert done.returncode == (2 if arguments == ["no-such-verb"] else 0), done.stderr
    if arguments != ["--version"]:
        shown = done.stderr if done.returncode else done.stdout
        assert all(f"  {verb}" in shown for verb in VERBS)


@pytest.mark.system
def test_python_dash_m_is_the_same_command():
    done = subprocess.run([sys.executable, "-m", "vitreous", "--version"], capture_output=True, text=True, timeout=60)
    assert done.returncode == 0
    assert done.stdout.startswith("vitreous 0.")


def test_unknown_verb_names_the_nearest(capsys):
    assert main(["explian"]) == 2
    out, err = capsys.readouterr()
    assert out == ""
    assert "unknown verb 'explian'; nearest: explain" in err


@pytest.mark.parametrize("verb", ["score", "atlas"])
def test_what_became_a_verb_of_its_own_is_named(capsys, verb):
    assert main(["explain", "runs/demo", "--data", "shapes", f"--{verb}"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert (
        line == f"vitreous: --{verb} is a verb of its own now: vitreous {verb} RUN DATA (see: vitreous {verb} --help)"
    )


@pytest.mark.parametrize("verb", WRITTEN)
def test_help_of_a_verb_teaches_by_example(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([verb, "--help"])
    assert stop.value.code == 0
    out = capsys.readouterr().out
    examples = [line for line in out.splitlines() if line.startswith(f"    vitreous {verb}")]
    assert examples, f"no example command on a line of its own:\n{out}"
    assert "Args:" not in out


def test_help_names_a_verb_too(capsys):
    with pytest.raises(SystemExit):
        main(["help", "info"])
    assert "vitreous info --scaling" in capsys.readouterr().out
    assert main(["help", "infoo"]) == 2
    assert "nearest: info" in capsys.readouterr().err
    assert main(["help"]) == 0
    assert "vitreous help VERB" in capsys.readouterr().out


def test_a_shell_completes_verbs_and_options(capsys):
    script = import_module("vitreous.completion").completion("bash")
    assert script.strip() == capsys.readouterr().out.strip()
    for word in (*VERBS, "--batch-size", "--no-resume", "--dry-run"):
        assert word in script


@pytest.mark.parametrize("verb", WRITTEN)
def test_verb_is_a_function_of_the_same_name(verb):
    function = getattr(import_module(f"vitreous.{verb}"), verb)
    assert inspect.isfunction(function)


@pytest.mark.system
def test_every_verb_is_a_function_of_the_package_and_needs_no_extra():
    code = (
        "import sys, vitreous, vitreous_command\n"
        "assert set(vitreous_command.VERBS) <= set(vitreous.__all__)\n"
        "assert all(callable(getattr(vitreous, name)) for name in vitreous_command.VERBS)\n"
        "loaded = set(vitreous_command.EXTRAS) & set(sys.modules)\n"
        "assert not loaded, loaded"
    )
    assert run_code(code).stderr == ""


def test_signature_is_the_command_line(verb):
    seen = []

    def info(model: str, extra: int | None = None, *, out: Path, amp: bool = True, size: int | None = None) -> str:
        """Show.

        vitreous info paca_tiny
        """
        seen.append((model, extra, out, amp, size))
        return "not printed"

    verb(info)
    assert main(["info", "paca_tiny", "--out", "x", "--no-amp", "--size", "64"]) == 0
    assert main(["info", "paca_tiny", "7", "--out", "x"]) == 0
    assert seen == [("paca_tiny", None, Path("x"), False, 64), ("paca_tiny", 7, Path("x"), True, None)]


def test_return_values_are_not_printed(verb, capsys):
    def info() -> str:
        return "a return value"

    verb(info)
    assert main(["info"]) == 0
    assert capsys.readouterr().out == ""


class Figures:
    def to_dict(self):
        return {"right": 0.5}


@pytest.mark.parametrize(
    ("result", "written"),
    [({"right": 0.5}, {"right": 0.5}), (Figures(), {"right": 0.5}), (["a"], ["a"]), (None, None)],
)
def test_every_verb_writes_its_result_as_json(verb, result, written, capsys, tmp_path):
    def info(model: str, *, size: int = 3) -> object:
        print("a table for people")
        return result

    verb(info)
    file = tmp_path / "new" / "result.json"
    assert main(["info", "m", "--json", str(file)]) == 0
    assert json.loads(file.read_text()) == written
    assert capsys.readouterr().out == "a table for people\n"
    assert main(["info", "m", "--json", "-"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out) == written, "nothing else is on standard output"
    assert "a table for people" in shown.err


def test_a_path_is_followed_to_its_figures(tmp_path):
    for name, content in {"analysis.json": {"rows": [1]}, "curves.txt": None}.items():
        (tmp_path / name).write_text(json.dumps(content))
    report = tmp_path / "analysis.md"
    report.touch()
    assert vitreous_command.as_figures("analyze", report) == {"path": str(report), "rows": [1]}
    (tmp_path / "demo.json").write_text('{"figures": {"top1": 0.5}}')
    page = tmp_path / "explanation" / "report.html"
    page.parent.mkdir()
    page.touch()
    assert vitreous_command.as_figures("demo", page) == {"path": str(page), "figures": {"top1": 0.5}}
    assert vitreous_command.as_figures("shapes", tmp_path) == {"path": str(tmp_path)}
    assert vitreous_command.as_figures("train", tmp_path / "planned") == {"path": str(tmp_path / "planned")}
    (tmp_path / "metrics.jsonl").write_text('{"top1": 0.1}\n{"top1": 0.9}\n')
    assert vitreous_command.as_figures("train", tmp_path) == {"path": str(tmp_path), "top1": 0.9}


def test_the_names_of_files_with_figures_are_those_of_the_verbs():
    for verb, name in vitreous_command.FIGURES.items():
        modules = [import_module(f"vitreous.{verb}"), import_module("vitreous.explanations.folder")]
        modules.append(import_module("vitreous.explanations.model_card"))
        modules += [import_module(f"vitreous.{room}") for room in ("explanations.scores", "explanations.atlas_folder")]
        modules.append(import_module("vitreous.exports.folder"))
        known = {value for module in modules for value in vars(module).values() if isinstance(value, str)}
        assert Path(name).name in known


def test_json_that_cannot_be_written_is_refused_before_the_work(verb, capsys, tmp_path):
    def info() -> None:
        raise AssertionError("not called")

    verb(info)
    assert main(["info", "--json", str(tmp_path)]) == 2
    assert "is a folder" in capsys.readouterr().err


def test_many_positionals(verb):
    seen = []

    def info(model: str, images: tuple[str, ...], *, top_k: int = 5) -> None:
        seen.append((model, images, top_k))

    verb(info)
    assert main(["info", "m", "a", "b", "--top-k", "3"]) == 0
    assert seen == [("m", ("a", "b"), 3)]


def test_bad_arguments_exit_with_two(verb, capsys):
    def info(model: str, *, size: int = 3) -> None:
        raise AssertionError("must not be called")

    verb(info)
    for arguments in (["info"], ["info", "m", "--sise", "3"], ["info", "m", "--size", "many"]):
        with pytest.raises(SystemExit) as stop:
            main(arguments)
        assert stop.value.code == 2
    assert "--size" in capsys.readouterr().err


def test_input_error_is_one_message_without_traceback(verb, capsys):
    def info() -> None:
        raise InputError("unknown model 'paca_tny'; nearest: paca_tiny")

    verb(info)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == "vitreous: unknown model 'paca_tny'; nearest: paca_tiny\n"


def test_our_own_mistakes_keep_their_traceback(verb):
    def info() -> None:
        raise ValueError("a bug")

    verb(info)
    with pytest.raises(ValueError, match="a bug"):
        main(["info"])


def test_missing_extra_says_what_to_install(verb, capsys):
    def info() -> None:
        raise ModuleNotFoundError("No module named 'faster_coco_eval'", name="faster_coco_eval")

    verb(info)
    assert main(["info"]) == 2
    assert to_install_extra("det") in capsys.readouterr().err


def test_every_extra_package_is_declared():
    declared = (Path(vitreous_command.__file__).parent / "pyproject.toml").read_text()
    for extra in set(vitreous_command.EXTRAS.values()):
        assert f"\n{extra} = [" in declared


def test_full_or_forbidden_disk_is_a_message(verb, capsys):
    def info() -> None:
        raise PermissionError(13, "Permission denied", "/locked/run.json")

    verb(info)
    assert main(["info"]) == 2
    assert capsys.readouterr().err == "vitreous: Permission denied: /locked/run.json\n"


def test_interrupt_exits_with_130(verb, capsys):
    def info() -> None:
        raise KeyboardInterrupt

    verb(info)
    assert main(["info"]) == 130
    assert "Traceback" not in capsys.readouterr().err


@pytest.mark.system
def test_closed_pipe_is_quiet():
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", "import sys, vitreous_command; sys.exit(vitreous_command.main(['--help']))"]
    done = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, timeout=60)
    os.close(writer)
    assert done.returncode == 141
    assert done.stderr == ""


def test_a_place_that_does_not_exist_is_a_sentence(verb, capsys):
    def write() -> None:
        Path("/proc/nope/x").write_text("")

    verb(write)
    assert main(["info"]) == 2
    assert "No such file or directory: /proc/nope/x" in capsys.readouterr().err
