"""Web pages that need nothing from elsewhere.

Pictures are data URIs or files beside the page; style and script are inline and allowed by their hash alone, so a page
can neither load nor run anything that was not there when it was written. Whatever a template is given is escaped.
"""

import base64
import hashlib
import io
import re
from collections.abc import Sequence
from functools import cache
from importlib.resources import files
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from PIL import Image


def render_page(template: str, *, styles: Sequence[str], scripts: Sequence[str], **content: Any) -> str:
    """The page `template`.html, with style sheets and scripts of templates/ inside it, each kind joined in order."""
    folder = files("vitreous.reports") / "templates"
    style, script = (
        "".join((folder / name).read_text(encoding="utf-8") for name in names) for names in (styles, scripts)
    )
    return environment().get_template(f"{template}.html").render(style=style, script=script, **content)


@cache
def environment() -> Environment:
    made = Environment(
        loader=PackageLoader("vitreous.reports"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    made.policies["json.dumps_kwargs"] = {"separators": (",", ":")}
    made.filters |= {
        "address": lambda text: re.sub(r"\W+", "-", text.lower()).strip("-"),
        "csp_hash": csp_hash,
        "ending": ending,
        "fixed": lambda value, digits: f"{value:.{digits}f}",
        "percent": percent,
        "share": lambda value: f"{value:.1%}",
        "signed": signed,
        "words": lambda name: name.replace("_", " "),
    }
    return made


def csp_hash(text: str) -> str:
    """How a Content-Security-Policy names the one inline text it allows."""
    return f"sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}"


def ending(name: str, most: int = 42) -> str:
    """The end of a long name, which tells two pictures of a folder apart."""
    return name if len(name) <= most else f"…{name[1 - most :]}"


def percent(value: float | None) -> str:
    return "–" if value is None else f"{100 * value:.0f} %"


def signed(value: float, digits: int = 2) -> str:
    """With its sign, and a proper minus."""
    return f"{value:+.{digits}f}".replace("-", "−")


def jpeg_uri(image: Image.Image, quality: int = 85) -> str:
    return _data_uri(image.convert("RGB"), "JPEG", quality=quality)


def png_uri(image: Image.Image) -> str:
    return _data_uri(image, "PNG")


def _data_uri(image: Image.Image, form: str, **options: Any) -> str:
    buffer = io.BytesIO()
    image.save(buffer, form, optimize=True, **options)
    return f"data:image/{form.lower()};base64,{base64.b64encode(buffer.getvalue()).decode()}"
