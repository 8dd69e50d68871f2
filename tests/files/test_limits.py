"""Every limit is told to the user."""

import re
from pathlib import Path

import pytest

from vitreous.files import limits

PAGE = (Path(__file__).parents[2] / "docs" / "data.md").read_text(encoding="utf-8")
LIMITS = {name: value for name, value in vars(limits).items() if name.isupper()}


@pytest.mark.parametrize("name", LIMITS)
def test_limits_are_whole_numbers_on_the_page(name):
    table = PAGE[PAGE.index("Small files cannot ask for much") : PAGE.index("## What a picture is")]
    assert re.search(rf"(\\| |; ){int(LIMITS[name]):,}[ ;]", table), (
        f"{name} = {int(LIMITS[name]):,} is not in docs/data.md"
    )


def test_every_limit_has_a_reason_and_a_use():
    package = Path(limits.__file__).parents[1]
    source = Path(limits.__file__).read_text()
    others = "".join(path.read_text() for path in package.rglob("*.py") if path.name != "limits.py")
    for name in LIMITS:
        assert re.search(rf"^{name} = .*  # .+", source, re.M), f"{name} needs a reason"
        assert name in others, f"{name} is used nowhere"
