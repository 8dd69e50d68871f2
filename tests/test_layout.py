"""Imports point one way, and every room says what belongs into it."""

import ast
import importlib
import itertools
import re
import runpy
from pathlib import Path

import pytest

PACKAGE, TESTS = Path(__file__).parents[1] / "vitreous", Path(__file__).parent
TRUNK = {"layers", "models", "registry", "files"}
ALLOWED = {  # room -> what of ours its files may import, besides errors, version and its own room
    "errors": set(),
    "version": set(),
    "registry": {"files"},
    "runtime": set(),
    "files": {"runtime"},
    "layers": {"runtime"},
    "models": {"layers", "registry", "files", "runtime"},
    "heads": {"layers", "models", "registry", "runtime"},
    "data": {"files"},
    "metrics": {"files"},
    "drawing": set(),
    "tasks": {"data", "metrics", "heads", "drawing", "attribution", *TRUNK},
    "runs": {"data", "tasks", "exports", "runtime", "attribution", *TRUNK},
    "training": {"data", "metrics", "heads", "tasks", "runs", "runtime", "attribution", *TRUNK},
    "attribution": {"layers", "models", "files"},
    "clusters": {"layers", "attribution", "runtime"},
    "faithfulness": {"attribution", "clusters"},
    "reports": {
        "drawing",
        "metrics",
        "clusters",
        "faithfulness",
        "measurements",
        "files",
    },  # result objects, never how they are made
    "explanations": {
        *("attribution", "clusters", "faithfulness", "reports", "drawing"),
        *("data", "tasks", "runs", "exports", "runtime", "files"),
    },
    "suspects": {
        *("attribution", "clusters", "faithfulness", "reports", "explanations"),
        *("data", "tasks", "runs", "runtime", "files"),
    },
    "web": {
        "drawing",
        "layers",
        "data",
        "tasks",
        "attribution",
        "clusters",
        "faithfulness",
        "explanations",
        "reports",
        "runs",
        "runtime",
        "suspects",
    },
    "exports": {"heads", "attribution", "data", "runtime", *TRUNK},
    "measurements": {"exports", "figures", "heads", "tasks", "runs", "training", "runtime", *TRUNK},
    "figures": {"layers", "models", "registry", "files", "runtime"},
    "evaluations": {
        *("data", "metrics", "tasks", "runs", "training", "reports", "files", "runtime"),
    },  # what `evaluate` measures
    "investigations": {
        *("attribution", "clusters", "explanations", "evaluations", "measurements", "reports", "drawing"),
        *("data", "runs", "runtime", "layers", "figures", "registry", "files"),
    },
}
FILES = sorted(path for path in PACKAGE.rglob("*.py") if path.name not in ("__init__.py", "__main__.py"))


def imported(path: Path) -> set[str]:
    """Second parts of `vitreous.x…` imports in a file."""
    found = set()
    for node in ast.walk(ast.parse(path.read_text())):
        names = [node.module or ""] if isinstance(node, ast.ImportFrom) else []
        names += [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom) and node.module == "vitreous":
            names += [f"vitreous.{alias.name}" for alias in node.names]
        found |= {name.split(".")[1] for name in names if name.startswith("vitreous.")}
    return found


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_one_way(path: Path) -> None:
    inside = path.relative_to(PACKAGE)
    place = inside.parts[0].removesuffix(".py")
    if place not in ALLOWED:
        assert len(inside.parts) == 1, f"the room {place} has no row in ALLOWED"
        return  # a verb may import everything
    wrong = imported(path) - ALLOWED[place] - {place, "errors", "version"}
    assert not wrong, f"{place} must not import {sorted(wrong)}"


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_nouns_do_not_import_the_whole_package(path: Path) -> None:
    """`import vitreous` brings all verbs; in a noun that would hide any direction."""
    if len(path.relative_to(PACKAGE).parts) > 1:
        names = [a.name for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.Import) for a in n.names]
        assert "vitreous" not in names


@pytest.mark.parametrize("room", sorted(ALLOWED))
def test_rooms_are_not_crowded_and_say_what_belongs_into_them(room: str) -> None:
    folder = PACKAGE / room
    if folder.is_dir():
        assert importlib.import_module(f"vitreous.{room}").__doc__, f"{room} has no docstring"
        assert len(list(folder.glob("*.py"))) <= 25


def test_there_is_no_drawer_for_everything() -> None:
    assert not [path for path in FILES if path.stem in {"utils", "misc", "helpers", "common"}]


def test_tests_share_through_support_only() -> None:
    """What two test modules need is in tests/support or a fixture."""
    found = []
    for path in sorted(TESTS.rglob("*.py")):
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import | ast.ImportFrom):
                names = [getattr(node, "module", None) or "", *(alias.name for alias in node.names)]
                modules = [part for name in names for part in name.split(".") if part.startswith("test_")]
                found += [f"{path.relative_to(TESTS)} imports {module}" for module in modules]
    assert not found


CONTRACTS = {
    "CONTROLS",
    "HEADS",
    "INVESTIGATION",
    "LAYOUT",
    "METHODS",
    "RUNNER",
    "TASK",
    "VARIANTS",
}  # what a file must have to be found


def public_names(path: Path) -> set[str]:
    names = set()
    for node in ast.parse(path.read_text()).body:
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        for target in getattr(node, "targets", [getattr(node, "target", None)]):
            names |= (
                {part.id for part in ast.walk(target) if isinstance(part, ast.Name)} if target is not None else set()
            )
    return {name for name in names if not name.startswith("_")}


def test_no_public_name_stands_in_two_modules() -> None:
    homes: dict[str, list[str]] = {}
    for path in FILES:
        for name in public_names(path) - CONTRACTS:
            homes.setdefault(name, []).append(str(path.relative_to(PACKAGE)))
    assert {name: found for name, found in homes.items() if len(found) > 1} == {}


def test_functions_can_be_read_at_once() -> None:
    """At most 80 lines; at most 15 parameters, but for verbs, whose parameters are their command line."""
    for path in FILES:
        verb = path.parent == PACKAGE
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                where = f"{path.relative_to(PACKAGE)}: {node.name}"
                assert (node.end_lineno or 0) - node.lineno < 80, f"{where} is too long"
                taken = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
                assert verb or len(taken) <= 15, f"{where} has {len(taken)} parameters"


@pytest.mark.parametrize("path", sorted((PACKAGE.parent / "benchmarks").glob("*.py")), ids=lambda path: path.stem)
def test_benchmarks_find_what_they_import(path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """They run for minutes, so no test runs them; a name that moved would else be noticed too late."""
    monkeypatch.syspath_prepend(str(path.parent))  # as Python does for a script
    assert callable(runpy.run_path(str(path), run_name="imported")["main"])


def test_walks_are_short_and_never_turn_back() -> None:
    page = (PACKAGE.parent / "CONTRIBUTING.md").read_text()
    walks = [part for part in page.split("## Four walks")[1].split("\n## ")[0].split("\n\n") if part.startswith("**")]
    assert len(walks) == 4
    for walk in walks:
        stations = re.findall(r"`([\w/]+\.(?:py|js))`", walk)
        assert len(stations) <= 12
        for station in stations:
            assert (PACKAGE / station).is_file() or (PACKAGE.parent / station).is_file(), f"{station} is not there"
        rooms = [
            room for room, _ in itertools.groupby(station.rpartition("/")[0].split("/")[0] for station in stations)
        ]
        assert len(rooms) == len(set(rooms)), f"a walk comes back: {rooms}"
