"""Weights from the network: kept by address, complete or not at all, and the same bytes at every use.

    <torch's hub folder>/checkpoints/<first digits of the address's sha256>/
      weights.pth        the file under its own name
      weights.pth.json   where it came from, its size and its sha256

A checksum that the publisher gives, in the registry or in the file's name (`name-0123abcd.pth`), must be right. Where
there is none, that of the first use is recorded, if the file can be read, and any other is refused later.
"""

import hashlib
import http.client
import json
import re
import secrets
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPRedirectHandler, Request, build_opener

import torch

from vitreous.errors import InputError
from vitreous.files.manifest import read_json, sha256
from vitreous.files.writing import open_own, replace_content

SECONDS = 30.0  # without a byte
PIECE = 1 << 20
# As torch's hub has it, but not dates, nor words that could be anything: eight digits or more with a letter among them.
DIGEST_IN_NAME = re.compile(r"-(?=[0-9]*[a-f])([0-9a-f]{8,64})\.[A-Za-z]+$")
PAGE = re.compile(rb"\s*<(!doctype|html|head|\?xml)", re.IGNORECASE)


def is_address(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def fetch(url: str, digest: str | None = None, *, check: Callable[[Path], object] | None = None) -> Path:
    """The file at an address, downloaded unless it was before.

    Args:
        url: The address.
        digest: The file's sha256, or how that begins.
        check: Raises an InputError if a file is unreadable. One without a published checksum has to pass it at its
            first use: a server that tells no length may have sent a part of it.
    """
    place = cached_at(url)
    in_name = DIGEST_IN_NAME.search(place.name)
    digest = digest or (in_name[1] if in_name else "")
    fresh = not place.is_file()
    if fresh:
        download(url, place, digest)
    found = sha256(place)
    check_digest(found, digest, f"{place} is damaged: ", f"delete it, and it is downloaded again from {shown(url)}")
    recorded = recorded_digest(place)
    if recorded is None:
        if check is not None and not digest:
            _check_first_use(url, place, check, fresh=fresh)
        record(url, place, found)
    else:
        check_digest(
            found,
            recorded,
            f"{place} is not the file of its first use: ",
            f"delete it, and it is downloaded again; if {shown(url)} itself has changed and you trust the new file, "
            f"delete {note_of(place)} too",
        )
    return place


def _check_first_use(url: str, place: Path, check: Callable[[Path], object], *, fresh: bool) -> None:
    """A file that cannot be read is not recorded as the right one, and not kept if it was downloaded just now."""
    try:
        check(place)
    except InputError as error:
        if not fresh:
            raise InputError(f"{error}; delete {place}, and it is downloaded again from {shown(url)}") from error
        place.unlink(missing_ok=True)
        raise InputError(
            f"what {shown(url)} sent cannot be read and was not kept; if the transfer was cut short, try again. {error}"
        ) from error


def cached_at(url: str) -> Path:
    """Where the file at an address is kept: two of the same name, from two places, are two files."""
    try:
        path = unquote(urlsplit(url).path)
    except ValueError as reason:
        raise InputError(f"{url} cannot be read as an address ({reason})") from reason
    name = re.sub(r"[^\w.+-]", "_", path.rpartition("/")[2])[-100:].lstrip(".") or "weights"
    return Path(torch.hub.get_dir()) / "checkpoints" / hashlib.sha256(url.encode()).hexdigest()[:16] / name


def note_of(place: Path) -> Path:
    return place.with_name(f"{place.name}.json")


def part_of(place: Path) -> Path:
    """A name aside that no other process takes."""
    return place.with_name(f"{place.name}.{secrets.token_hex(4)}.part")


def recorded_digest(place: Path) -> str | None:
    if not note_of(place).exists():
        return None
    note = read_json(note_of(place))
    if not isinstance(note, dict) or not re.fullmatch("[0-9a-f]{64}", str(note.get("sha256"))):
        raise InputError(f"{note_of(place)} holds no sha256; delete it and {place}, and the file is downloaded again")
    return note["sha256"]


def record(url: str, place: Path, digest: str) -> None:
    note = {"url": shown(url), "size": place.stat().st_size, "sha256": digest}
    replace_content(note_of(place), json.dumps(note, indent=1).encode())


def shown(url: str) -> str:
    """Without what may be secret: a name with a password before the host, and a signature behind the path."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_digest(found: str, expected: str, what: str, advice: str) -> None:
    if not found.startswith(expected):
        raise InputError(f"{what}its sha256 is {found[:16]}…, and should be {expected[:16]}…; {advice}")


def download(url: str, place: Path, digest: str) -> None:
    """Into a file aside, which gets its name when it is whole."""
    try:
        place.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as cleanup:
            part = part_of(place)
            cleanup.callback(part.unlink, missing_ok=True)
            with open_own(part, "x", binary=True) as file:
                found = receive(url, file)
            check_digest(found, digest, f"{shown(url)} did not send the file that its publisher means: ", "try again")
            part.replace(place)
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot download {shown(url)} ({str(error) or type(error).__name__}). Fetch it by other means and name "
            "the file, as in: vitreous predict FILE IMAGES --model NAME, or: vitreous train NAME DATA --weights FILE; "
            f"or put it at {place}"
        ) from error


class HttpRedirects(HTTPRedirectHandler):
    """Redirects stay with http and https, and what was asked for with https never comes without it."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        scheme = urlsplit(newurl).scheme.lower()
        accepted = ("https",) if req.type == "https" else ("http", "https")
        if scheme not in accepted:
            raise InputError(
                f"{shown(req.full_url)} leads on to {shown(newurl)}; from {req.type}, only {' or '.join(accepted)} is "
                "followed. If you trust it, fetch that file yourself and give its path"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def receive(url: str, file: Any) -> str:
    """Write what an address sends, and return its sha256."""
    request = Request(url, headers={"User-Agent": "vitreous"})  # noqa: S310 (http only)
    with build_opener(HttpRedirects).open(request, timeout=SECONDS) as answer:
        length = answer.headers.get("Content-Length", "")
        size = int(length) if length.isdecimal() else None
        digest, received = hashlib.sha256(), 0
        for piece in shown_pieces(answer, shown(url), size):
            if not received and (answer.headers.get_content_type() == "text/html" or PAGE.match(piece)):
                raise InputError(
                    f"{shown(url)} is a web page and no file of weights; give the address behind its download button"
                )
            file.write(piece)
            digest.update(piece)
            received += len(piece)
    if received != (received if size is None else size):
        raise OSError(f"the transfer ended after {received:,} of {size:,} bytes")
    return digest.hexdigest()


def shown_pieces(answer: Any, name: str, size: int | None) -> Iterator[bytes]:
    """What arrives, with a word about it and, on a terminal, a bar."""
    known = "of unknown size" if size is None else f"{size / 1e6:,.1f} MB"
    print(f"downloading {name}, {known}", file=sys.stderr, flush=True)
    if not sys.stderr.isatty():
        while piece := answer.read(PIECE):
            yield piece
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=size)
        while piece := answer.read(PIECE):
            yield piece
            progress.advance(task, len(piece))
