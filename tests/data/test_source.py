"""A layout is found by being there, and what it offers is open to everybody who needs that kind of targets."""

import subprocess
import sys

import pytest

import vitreous.data.layouts
from tests.support.pages import blocks
from vitreous.data.layouts.base import TARGET_KINDS
from vitreous.data.source import describe, load_layouts, open_data, recognise
from vitreous.errors import InputError

(LAYOUT,) = [block for block in blocks("CONTRIBUTING.md", "python") if "LAYOUT =" in block]


@pytest.fixture
def boxed_pictures(tmp_path, monkeypatch):
    (tmp_path / "more").mkdir()
    (tmp_path / "more" / "boxed_pictures.py").write_text(LAYOUT)
    monkeypatch.setattr(vitreous.data.layouts, "__path__", [*vitreous.data.layouts.__path__, str(tmp_path / "more")])
    yield
    sys.modules.pop("vitreous.data.layouts.boxed_pictures", None)


def test_a_file_in_a_folder_of_layouts_is_a_layout(boxed_pictures, tmp_path):
    data = tmp_path / "data"
    data.mkdir()
    (data / "boxed").touch()
    for number in range(9):
        (data / f"{number}.jpg").write_bytes(bytes([number]))
    assert recognise(str(data), "boxes").name == "boxed pictures"
    splits = {split: open_data(str(data), split, size=(8, 8), targets="boxes") for split in ("train", "val")}
    assert sum(map(len, splits.values())) == 9
    assert "(boxed pictures): " in describe(str(data), "boxes", **splits)
    with pytest.raises(InputError, match=r"to get labels: it looks like boxed pictures; use targets boxes; accepted:"):
        recognise(str(data))


def test_layouts_are_asked_in_a_fixed_order_and_offer_known_kinds():
    layouts = load_layouts()
    assert [layout.name for layout in layouts][-4:] == [
        *("class folders without splits", "class folders", "class folders that share pictures"),
        "pictures without labels",
    ]
    assert len({layout.order for layout in layouts}) == len(layouts)
    assert all(set(layout.targets) <= set(TARGET_KINDS) for layout in layouts)


@pytest.mark.system
def test_optional_packages_are_not_imported():
    code = "import sys; from vitreous.data.source import load_layouts; load_layouts(); print('datasets' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True).stdout == "False\n"
