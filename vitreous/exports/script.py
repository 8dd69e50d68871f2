"""The program beside a graph, which answers about pictures without torch and without vitreous."""

import re
from pathlib import Path

from jinja2 import Environment, FileSystemLoader, StrictUndefined

from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.exports.session import PACKAGES_TOLD
from vitreous.heads.regions import LEAST_PROPOSAL, PROPOSAL_OVERLAP
from vitreous.version import __version__

TITLES = {
    "classify": "What {name} says about pictures.",
    **dict.fromkeys(("detect", "propose", "refine"), "Objects that {name} finds in pictures."),
    "segment": "The class of every pixel of pictures, by {name}.",
    "keypoints": "Joints that {name} finds in pictures, each of one object.",
    "features": "Features of pictures, by {name}.",
}


def run_script(name: str, to: str, kind: str, preprocess: Preprocess, *, masks: bool = False) -> str:
    """The text of run.py; it needs no vitreous, so it must be able to do all that the preprocessing asks for."""
    if any(region.match == "look" for region in preprocess.hidden):
        raise InputError(
            "this model hides regions that are found by their look (vitreous mend --hide), which an exported model "
            "cannot do; hide them by their place, or export the run before it was mended"
        )
    # What is generated is Python: nothing is escaped, and nothing of the model's but its name gets into it.
    environment = Environment(
        loader=FileSystemLoader(Path(__file__).parent / "templates"),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
        autoescape=False,  # noqa: S701
    )
    plain = re.sub(r"[^\w.-]", "_", name)
    title = f"{TITLES[kind].format(name=plain)} Written by vitreous {__version__}."
    made = environment.get_template("run.py.jinja").render(
        title=title,
        to=to,
        kind=kind,
        view=preprocess,
        package=PACKAGES_TOLD[to],
        masks=masks,
        overlap=PROPOSAL_OVERLAP,
        least=LEAST_PROPOSAL,
    )
    return re.sub(r"\n{4,}", "\n\n\n", made).rstrip() + "\n"
