"""Web pages that need nothing from elsewhere.

Pictures are data URIs or files beside the page; style and script are inline and allowed by their hash alone, so a page
can neither load nor run anything that was not there when it was written.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files


def fill(package: str, name: str, parts: Mapping[str, str], *, styles: Sequence[str] = ()) -> str:
    """The template `name`.html of a package with `name`.css and `name`.js, and each @PART@ replaced by its text.

    Texts are put in as they are: what came from outside must have been escaped.
    `styles` names further style sheets of the package, which come before the page's own.
    """

    def text(file: str) -> str:
        return files(package).joinpath(file).read_text(encoding="utf-8")

    template, script = text(f"{name}.html"), text(f"{name}.js")
    style = "".join(text(f"{sheet}.css") for sheet in (*styles, name))
    inline = {"STYLE": style, "SCRIPT": script, "STYLE_HASH": csp_hash(style), "SCRIPT_HASH": csp_hash(script)}
    known = {**parts, **inline}
    # One pass over the template: text that came from a file name is never searched for placeholders.
    pieces = template.split("@")
    return "".join(known[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def csp_hash(text: str) -> str:
    """How a Content-Security-Policy names the one inline text it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
