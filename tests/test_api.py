"""What `import vitreous` gives, and what it leaves unloaded until somebody asks."""

import ast
import inspect
import subprocess
import sys
from pathlib import Path

import pytest

import vitreous

PACKAGE = Path(vitreous.__file__).parent
LOADED_AT_ONCE = {"errors", "files", "layers", "models", "registry", "runtime", "version"}


def in_a_new_process(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.strip()


@pytest.mark.system
def test_importing_loads_models_and_registry_only():
    code = "import sys, vitreous; print(*{m.split('.')[1] for m in sys.modules if m.startswith('vitreous.')})"
    assert set(in_a_new_process(code).split()) == LOADED_AT_ONCE


@pytest.mark.system
def test_a_verb_stays_a_function_when_its_module_is_imported_first():
    code = "import vitreous, vitreous.train; from vitreous.plot import plot; print(vitreous.train, vitreous.plot)"
    assert in_a_new_process(code).count("<function") == 2


@pytest.mark.parametrize("name", vitreous.__all__)
def test_every_public_name_is_there_and_documented(name):
    value = getattr(vitreous, name)
    assert name in dir(vitreous)
    assert isinstance(value, str) or inspect.getdoc(value)


def test_an_unknown_name_is_refused_as_of_any_module():
    with pytest.raises(AttributeError, match="no attribute 'trian'"):
        _ = vitreous.trian


def test_type_checkers_see_what_is_loaded_later():
    """Names that load later are imported for type checkers from the same modules."""
    tree = ast.parse((PACKAGE / "__init__.py").read_text())
    block = next(node for node in tree.body if isinstance(node, ast.If))
    seen = {alias.name: node.module for node in block.body if isinstance(node, ast.ImportFrom) for alias in node.names}
    assert seen == vitreous.HOMES | {verb: f"vitreous.{verb}" for verb in vitreous.VERBS}
    assert {*vitreous.VERBS, *vitreous.HOMES} <= {*vitreous.__all__}
    assert (PACKAGE / "py.typed").is_file()
