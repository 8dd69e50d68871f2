from tests.interop.families import FAMILIES
from vitreous.registry import ENTRIES


def test_no_family_is_left_out() -> None:
    assert {ENTRIES[name].family for name in FAMILIES} == {entry.family for entry in ENTRIES.values()}
