"""Pages of documentation taken apart, for the tests that run what they show."""

import json
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def read(page: str) -> str:
    return (ROOT / page).read_text()


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", read(page), re.S)


def notebook_code(notebook: str) -> list[str]:
    """The code of a notebook, cell by cell."""
    cells = json.loads(read(notebook))["cells"]
    return ["".join(cell["source"]) for cell in cells if cell["cell_type"] == "code"]


def dead_links(page: str) -> list[str]:
    """Targets within the repository that do not exist; a page's links start from its own folder."""
    targets = re.findall(r"\]\(([^)]+)\)", read(page))
    local = [target for target in targets if not target.startswith("https://")]
    return [target for target in local if not ((ROOT / page).parent / target).exists()]
