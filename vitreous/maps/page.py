"""Web pages of one file that needs nothing else.

Pictures are data URIs, style and script are inline and allowed by their hash alone, so a page can neither load nor
run anything that was not in it when it was written.
"""

import base64
import hashlib
from collections.abc import Mapping
from importlib.resources import files


def fill(package: str, name: str, parts: Mapping[str, str]) -> str:
    """The template `name`.html of a package with `name`.css and `name`.js, and each @PART@ replaced by its text.

    Texts are put in as they are: what came from outside must have been escaped.
    """
    template, style, script = (
        files(package).joinpath(f"{name}.{suffix}").read_text(encoding="utf-8") for suffix in ("html", "css", "js")
    )
    inline = {"STYLE": style, "SCRIPT": script, "STYLE_HASH": csp_hash(style), "SCRIPT_HASH": csp_hash(script)}
    known = {**parts, **inline}
    # One pass over the template: text that came from a file name is never searched for placeholders.
    pieces = template.split("@")
    return "".join(known[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def csp_hash(text: str) -> str:
    """How a Content-Security-Policy names the one inline text it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
