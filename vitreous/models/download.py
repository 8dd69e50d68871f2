"""Downloaded weights: cached by URL, complete or absent, and the same bytes at every use.

    <torch's hub folder>/checkpoints/<first digits of the URL's sha256>/
      weights.pth        the file under its own name
      weights.pth.json   where it came from, its size and its sha256

A checksum that the publisher gives, in the registry or in the file name (`name-0123abcd.pth`), must match. Without one,
the checksum of the first use is recorded if the file is readable, and any other is refused later.
"""

import hashlib
import http.client
import json
import logging
import re
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import unquote, urlsplit
from urllib.request import HTTPHandler, HTTPRedirectHandler, HTTPSHandler, Request, build_opener

import torch

from vitreous.errors import InputError
from vitreous.files.storage import read_stored_json, sha256
from vitreous.files.writing import atomic_file, replace_content

CONNECTION_SECONDS = 8.0  # to each address of a server: a machine without a network is to say so soon
STALL_SECONDS = 30.0  # without a byte
CHUNK_BYTES = 1 << 20
REQUEST_HEADERS = {"User-Agent": "vitreous"}
NO_HEAD = (403, 405, 501)  # how servers say that they tell nothing about a file without sending it
# As torch's hub has it, except for dates and ordinary words: at least eight hexadecimal digits, one of them a letter.
DIGEST_IN_NAME = re.compile(r"-(?=[0-9]*[a-f])([0-9a-f]{8,64})\.[A-Za-z]+$")
HTML_START = re.compile(rb"\s*<(!doctype|html|head|\?xml)", re.IGNORECASE)

_logger = logging.getLogger(__name__)


def is_url(source: str) -> bool:
    return source.lower().startswith(("http://", "https://"))


def fetch(url: str, digest: str | None = None, *, check: Callable[[Path], object] | None = None) -> Path:
    """The file at a URL, downloaded unless it is cached.

    Args:
        url: Where the file is.
        digest: The file's sha256, or its first digits.
        check: Raises an InputError if a file is unreadable. A file without a published checksum must pass it at its
            first use: a server that sends no length may have sent only a part of it.
    """
    path, source = cache_path(url), public_url(url)
    in_name = DIGEST_IN_NAME.search(path.name)
    digest = digest or (in_name[1] if in_name else "")
    fresh = not path.is_file()
    if fresh:
        download(url, path, digest)
    found = sha256(path)
    check_digest(found, digest, f"{path} is damaged: ", f"delete it, and it is downloaded again from {source}")
    recorded = recorded_digest(path)
    if recorded is None:
        if check is not None and not digest:
            _check_first_use(source, path, check, fresh=fresh)
        record = {"url": source, "size": path.stat().st_size, "sha256": found}
        replace_content(record_path(path), json.dumps(record, indent=1).encode())
        checked = (
            "as its publisher says" if digest else "recorded, as its publisher gives none: any other is refused later"
        )
        _logger.info("kept at %s; sha256 %s…, %s", path, found[:16], checked)
    else:
        check_digest(
            found,
            recorded,
            f"{path} is not the file of its first use: ",
            f"delete it, and it is downloaded again; if {source} itself has changed and you trust the new file, "
            f"delete {record_path(path)} too",
        )
    return path


def why_unreachable(url: str) -> str:
    """Why the file at a URL cannot be had; empty if it is cached, or its server answers within seconds."""
    if cache_path(url).is_file():
        return ""
    try:
        _opened(Request(url, method="HEAD", headers=REQUEST_HEADERS), CONNECTION_SECONDS).close()  # noqa: S310 (http only)
    except HTTPError as error:
        return "" if error.code in NO_HEAD else str(error)
    except (OSError, ValueError, http.client.HTTPException) as error:
        return str(getattr(error, "reason", error)) or type(error).__name__
    return ""


def _opened(request: Request, timeout: float) -> Any:
    return build_opener(QuickHttp, QuickHttps, HttpRedirects).open(request, timeout=timeout)


def _check_first_use(source: str, path: Path, check: Callable[[Path], object], *, fresh: bool) -> None:
    """An unreadable file is not recorded, and is removed if it was just downloaded."""
    try:
        check(path)
    except InputError as error:
        if not fresh:
            raise InputError(f"{error}; delete {path}, and it is downloaded again from {source}") from error
        path.unlink(missing_ok=True)
        raise InputError(
            f"what {source} sent cannot be read and was not kept; if the transfer was cut short, try again. {error}"
        ) from error


def cache_path(url: str) -> Path:
    """Where the file at a URL is cached: files of the same name from two URLs stay apart."""
    try:
        path = unquote(urlsplit(url).path)
    except ValueError as reason:
        raise InputError(f"{url} cannot be read as a URL ({reason})") from reason
    name = re.sub(r"[^\w.+-]", "_", path.rpartition("/")[2])[-100:].lstrip(".") or "weights"
    return Path(torch.hub.get_dir()) / "checkpoints" / hashlib.sha256(url.encode()).hexdigest()[:16] / name


def record_path(path: Path) -> Path:
    return path.with_name(f"{path.name}.json")


def recorded_digest(path: Path) -> str | None:
    file = record_path(path)
    if not file.exists():
        return None
    record = read_stored_json(file)
    if not isinstance(record, dict) or not re.fullmatch("[0-9a-f]{64}", str(record.get("sha256"))):
        raise InputError(f"{file} holds no sha256; delete it and {path}, and the file is downloaded again")
    return record["sha256"]


def public_url(url: str) -> str:
    """The URL without what may be secret: user name and password, and the query with its signature."""
    parts = urlsplit(url)
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"


def check_digest(found: str, expected: str, what: str, advice: str) -> None:
    if not found.startswith(expected):
        raise InputError(f"{what}its sha256 is {found[:16]}…, and should be {expected[:16]}…; {advice}")


def download(url: str, path: Path, digest: str) -> None:
    source = public_url(url)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with atomic_file(path, unique=True) as file:
            found = receive(url, file)
            check_digest(found, digest, f"{source} did not send the file that its publisher means: ", "try again")
    except (OSError, ValueError, http.client.HTTPException) as error:  # URLError is an OSError
        if isinstance(error, InputError):
            raise
        raise InputError(
            f"cannot download {source} ({str(error) or type(error).__name__}). Fetch it by other means and name "
            "the file, as in: vitreous predict FILE IMAGES --model NAME, or: vitreous train NAME DATA --weights FILE; "
            f"or put it at {path}"
        ) from error


class _QuickConnect(http.client.HTTPConnection):
    """Gives up soon where no connection comes about, and waits longer for bytes of one that has."""

    def connect(self) -> None:
        patience, self.timeout = self.timeout, CONNECTION_SECONDS
        super().connect()
        self.timeout = patience
        self.sock.settimeout(patience)


class _QuickConnectTLS(_QuickConnect, http.client.HTTPSConnection):
    pass


class QuickHttp(HTTPHandler):
    def http_open(self, req: Request) -> Any:
        return self.do_open(_QuickConnect, req)


class QuickHttps(HTTPSHandler):
    def https_open(self, req: Request) -> Any:
        return self.do_open(_QuickConnectTLS, req)


class HttpRedirects(HTTPRedirectHandler):
    """Redirects stay with http and https, and never go from https to http."""

    def redirect_request(self, req: Request, fp: Any, code: int, msg: str, headers: Any, newurl: str) -> Request | None:
        scheme = urlsplit(newurl).scheme.lower()
        accepted = ("https",) if req.type == "https" else ("http", "https")
        if scheme not in accepted:
            raise InputError(
                f"{public_url(req.full_url)} leads on to {public_url(newurl)}; from {req.type}, only "
                f"{' or '.join(accepted)} is followed. If you trust it, fetch that file yourself and give its path"
            )
        return super().redirect_request(req, fp, code, msg, headers, newurl)


def receive(url: str, file: Any) -> str:
    """Write what a URL sends to a file, and return its sha256."""
    request = Request(url, headers=REQUEST_HEADERS)  # noqa: S310 (http only)
    source = public_url(url)
    with _opened(request, STALL_SECONDS) as response:
        length = response.headers.get("Content-Length", "")
        size = int(length) if length.isdecimal() else None
        digest, received = hashlib.sha256(), 0
        for chunk in chunks_with_progress(response, source, size):
            if not received and (response.headers.get_content_type() == "text/html" or HTML_START.match(chunk)):
                raise InputError(
                    f"{source} is a web page and no file of weights; give the URL behind its download button"
                )
            file.write(chunk)
            digest.update(chunk)
            received += len(chunk)
    if received != (received if size is None else size):
        raise OSError(f"the transfer ended after {received:,} of {size:,} bytes")
    return digest.hexdigest()


def chunks_with_progress(response: Any, name: str, size: int | None) -> Iterator[bytes]:
    """What arrives, logged once and, on a terminal, with a progress bar."""
    _logger.info("downloading %s, %s", name, "of unknown size" if size is None else f"{size / 1e6:,.1f} MB")
    if not sys.stderr.isatty():
        while chunk := response.read(CHUNK_BYTES):
            yield chunk
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TimeRemainingColumn, TransferSpeedColumn

    columns = (BarColumn(), DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn())
    with Progress(*columns, console=Console(stderr=True)) as progress:
        task = progress.add_task("", total=size)
        while chunk := response.read(CHUNK_BYTES):
            yield chunk
            progress.advance(task, len(chunk))
