"""What stands between the network and the application: who may ask, how many at once, and what every answer carries."""

import asyncio
import ipaddress
import json
from collections.abc import Collection
from dataclasses import dataclass
from urllib.parse import urlsplit

from starlette.datastructures import Headers, MutableHeaders
from starlette.requests import ClientDisconnect, Request
from starlette.types import ASGIApp, Message, Receive, Scope, Send

HEADERS = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
}
RETRY_AFTER = 1  # seconds


@dataclass(frozen=True)
class Limits:
    """Beyond these a request is refused: memory and time stay bounded whatever is sent."""

    upload_bytes: int = 20_000_000
    upload_seconds: float = 30.0  # for the whole body to arrive
    uploads: int = 8  # bodies read at once
    concurrent: int = 64  # requests in work at once
    waiting: int = 16  # questions waiting for the model
    picture_bytes: int = 64_000_000  # uploaded pictures kept
    answer_bytes: int = 64_000_000  # answers kept


class Refusal(Exception):
    """A request that is not answered, with the status and the message for the person who asked."""

    def __init__(self, status: int, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {"Retry-After": str(RETRY_AFTER)} if retry else {}


BUSY = "the server is busy; try again in a moment"


class Guard:
    """Outermost layer of the application.

    A page of another site may be able to make a browser ask this server, under a name of its own that leads here. So
    only names known to be ours are accepted; numeric addresses are, as no foreign name is behind them.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], concurrent: int) -> None:
        self.app, self.hosts, self.concurrent = app, {host.lower() for host in hosts}, concurrent
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return

        async def send_with_headers(message: Message) -> None:
            if message["type"] == "http.response.start":
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self.check(Headers(scope=scope))
        except Refusal as refusal:
            await refuse(refusal, send_with_headers)
            return
        self.running += 1
        try:
            await self.app(scope, receive, send_with_headers)
        finally:
            self.running -= 1

    def check(self, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.ours(host):
            raise Refusal(
                421, f"this server does not answer for {host[:100]!r}; start it with --allow-host if it should"
            )
        if origin is not None and urlsplit(origin).netloc != host:
            raise Refusal(403, "this server answers to its own page only, not to that of another site")
        if self.running >= self.concurrent:
            raise Refusal(503, BUSY, retry=True)

    def ours(self, host: str) -> bool:
        try:
            name = urlsplit(f"//{host}").hostname or ""
        except ValueError:
            return False
        if name in self.hosts:
            return True
        try:
            ipaddress.ip_address(name)
        except ValueError:
            return False
        return True


async def refuse(refusal: Refusal, send: Send) -> None:
    """Answer without the application: it may be the one that is busy."""
    body = json.dumps({"error": refusal.message}).encode()
    headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
    raw = [(name.lower().encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


class Uploads:
    """Reads bodies, a few at a time, each within its size and time."""

    def __init__(self, limits: Limits) -> None:
        self.limits, self.reading = limits, 0

    async def read(self, request: Request) -> bytes:
        if self.reading >= self.limits.uploads:
            raise Refusal(503, BUSY, retry=True)
        self.reading += 1
        try:
            async with asyncio.timeout(self.limits.upload_seconds):
                return await self.body(request)
        except TimeoutError:
            raise Refusal(408, f"the file did not arrive within {self.limits.upload_seconds:g} seconds") from None
        except ClientDisconnect:
            raise Refusal(400, "the connection ended before the file did") from None
        finally:
            self.reading -= 1

    async def body(self, request: Request) -> bytes:
        """The body. One that is too large is still read to its end, without being kept: a browser shows an answer only
        after it has sent everything."""
        limit, size, parts = self.limits.upload_bytes, 0, []
        async for part in request.stream():
            size += len(part)
            if size <= limit:
                parts.append(part)
            else:
                parts.clear()
        if size > limit:
            raise Refusal(413, f"the file has {size:,} bytes; at most {limit:,} are accepted: scale the picture down")
        return b"".join(parts)
