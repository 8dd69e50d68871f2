"""The program beside a graph, which answers about pictures without torch and without vitreous."""

import math
import re
from pathlib import Path
from typing import Any

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vitreous.data.transforms import Preprocess, resampling
from vitreous.errors import InputError
from vitreous.heads.regions import LEAST_PROPOSAL, PROPOSAL_OVERLAP
from vitreous.version import __version__

LONGEST_TITLED = 40  # of a model in the first line
TITLES = {
    "classify": "What {name} says about pictures.",
    **dict.fromkeys(("detect", "propose", "refine"), "Objects that {name} finds in pictures."),
    "segment": "The class of every pixel of pictures, by {name}.",
    "keypoints": "Joints that {name} finds in pictures, each of one object.",
    "features": "Features of pictures, by {name}.",
}


def run_script(
    name: str, to: str, kind: str, preprocess: Preprocess, *, levels: bool = False, masks: bool = False
) -> str:
    """The text of run.py; it needs no vitreous, so it must be able to do all that the preprocessing asks for.

    Args:
        levels: A detector chooses the best of each of its levels, not of all places at once.
        masks: It finds the places of objects besides their boxes.
    """
    if any(region.match == "look" for region in preprocess.hidden):
        raise InputError(
            "this model hides regions that are found by their look (vitreous mend --hide), which an exported model "
            "cannot do; hide them by their place, or export the run before it was mended"
        )
    # What is generated is Python: nothing is escaped, and nothing of the model's but its name and numbers gets into it.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )
    plain = re.sub(r"[^\w.-]", "_", name)[:LONGEST_TITLED]
    made = environment.get_template("run.py.jinja").render(
        title=f"{TITLES[kind].format(name=plain)} Written by vitreous {__version__}.",
        to=to,
        kind=kind,
        levels=levels,
        masks=masks,
        overlap=PROPOSAL_OVERLAP,
        least_side=LEAST_PROPOSAL,
        **view_numbers(preprocess),
    )
    return re.sub(r"\n{4,}", "\n\n\n", made).strip() + "\n"


def view_numbers(preprocess: Preprocess) -> dict[str, Any]:
    """What the program does to pictures, as it stands in its text."""
    return {
        "size": list(preprocess.size),
        "least": [math.floor(side / preprocess.crop_ratio) for side in preprocess.size],
        "squash": preprocess.squash,
        "crop_ratio": float(preprocess.crop_ratio),
        "scaling": resampling(preprocess.interpolation).name,
        "mean": [float(value) for value in preprocess.mean],
        "std": [float(value) for value in preprocess.std],
        "hidden": bool(preprocess.hidden),
    }
