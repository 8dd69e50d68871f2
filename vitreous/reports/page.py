"""Web pages that need nothing from elsewhere.

Pictures are data URIs or files beside the page; style and script are inline and allowed by their hash alone, so a page
can neither load nor run anything that was not there when it was written.
"""

import base64
import hashlib
from collections.abc import Mapping, Sequence
from importlib.resources import files

HEAD = """<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src {images}; style-src '{style_hash}'; \
script-src '{script_hash}'; base-uri 'none'; form-action 'none'">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<link rel="icon" href="data:,">
<title>{title}</title>
<style>{style}</style>
</head>"""


def fill(
    package: str, name: str, parts: Mapping[str, str], *, styles: Sequence[str] = (), images: str = "data:"
) -> str:
    """The template `name`.html of a package with `name`.css and `name`.js, and each @PART@ replaced by its text.

    Texts are put in as they are: what came from outside must have been escaped. @HEAD@ is made of the part TITLE.
    `styles` names further style sheets of the package, which come before the page's own; `images` says where pictures
    may come from, as a Content-Security-Policy does.
    """

    def text(file: str) -> str:
        return files(package).joinpath(file).read_text(encoding="utf-8")

    template, script = text(f"{name}.html"), text(f"{name}.js")
    style = "".join(text(f"{sheet}.css") for sheet in (*styles, name))
    hashes = {"style_hash": csp_hash(style), "script_hash": csp_hash(script)}
    head = HEAD.format(title=parts["TITLE"], style=style, images=images, **hashes)
    known = {**parts, "HEAD": head, "SCRIPT": script}
    # One pass over the template: text that came from a file name is never searched for placeholders.
    pieces = template.split("@")
    return "".join(known[piece] if place % 2 else piece for place, piece in enumerate(pieces))


def csp_hash(text: str) -> str:
    """How a Content-Security-Policy names the one inline text it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"
