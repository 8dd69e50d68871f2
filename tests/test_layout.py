"""Imports point one way: layers <- models <- heads <- tasks <- training <- verbs; data and metrics are leaves."""

import ast
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "vitreous"
ALLOWED = {  # folder -> what of ours its files may import, besides EVERYWHERE and its own folder
    "layers": set(),
    "models": {"layers", "registry", "manifest"},
    "heads": {"layers", "models", "registry"},
    "data": set(),
    "metrics": set(),
    "tasks": {"layers", "models", "heads", "data", "metrics", "registry"},
    "training": {"layers", "models", "heads", "tasks", "data", "metrics", "registry", "manifest"},
    "maps": {"layers", "models", "data"},
    "charts": {"maps", "metrics"},
    "explanations": {"layers", "models", "heads", "tasks", "data", "maps", "charts", "training", "manifest"},
    "web": {"layers", "models", "data", "maps", "tasks", "explanations", "training"},
    "figures": {"layers", "models", "registry"},
    "registry": set(),
    "manifest": set(),
    "writing": set(),
    "errors": set(),
    "limits": set(),
    "reading": {"limits"},
    "calling": set(),
}
EVERYWHERE = {"errors", "limits", "reading", "writing"}  # small files that every folder may import
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
    place = path.relative_to(PACKAGE).parts[0].removesuffix(".py")
    if place not in ALLOWED:
        return  # a verb may import everything
    wrong = imported(path) - ALLOWED[place] - {place} - ({"errors"} if place in EVERYWHERE else EVERYWHERE)
    assert not wrong, f"{place} must not import {sorted(wrong)}"


def test_there_is_no_drawer_for_everything() -> None:
    assert not [path for path in FILES if path.stem in {"utils", "misc", "helpers", "common"}]
