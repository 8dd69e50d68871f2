"""Between the network and the application: who may ask, how many at once, and the headers of every answer."""

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
RETRY_AFTER_SECONDS = 1
HEAD_START_BYTES = 1_000_000  # in the measured speed of an upload


@dataclass(frozen=True)
class Limits:
    """Beyond these a request is refused: memory and time stay bounded whatever is sent."""

    upload_bytes: int = 20_000_000
    upload_seconds: float = 30.0  # for the whole body to arrive
    arriving_bytes: int = 160_000_000  # of all bodies that are arriving
    header_seconds: float = 10.0  # for the headers of a request to arrive
    taking_seconds: float = 30.0  # for the client to read some of its answer
    connections: int = 2000  # open at once, and fewer where there are fewer file descriptors
    concurrent: int = 64  # requests in work at once
    waiting: int = 16  # questions waiting for the model
    picture_bytes: int = 64_000_000  # uploaded pictures kept
    answer_bytes: int = 64_000_000  # answers kept


class RefusedRequest(Exception):
    """A request that is refused, with the status and the message for the person who sent it."""

    def __init__(self, status: int, message: str, *, retry: bool = False) -> None:
        super().__init__(message)
        self.status, self.message = status, message
        self.headers = {"Retry-After": str(RETRY_AFTER_SECONDS)} if retry else {}


BUSY = "the server is busy; try again in a moment"
BROKEN = "something went wrong inside the server; its console says what"


class Guard:
    """Outermost layer of the application.

    A page of another site can make a browser ask this server, under a host name of its own that leads here. So only
    names known to be ours are accepted, and numeric addresses, as no foreign name is behind them.
    """

    def __init__(self, app: ASGIApp, *, hosts: Collection[str], concurrent: int) -> None:
        self.app, self.hosts, self.concurrent = app, {host.lower() for host in hosts}, concurrent
        self.running = 0

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = False

        async def send_with_headers(message: Message) -> None:
            nonlocal started
            if message["type"] == "http.response.start":
                started = True
                headers = MutableHeaders(scope=message)
                for name, value in HEADERS.items():
                    headers[name] = value
                headers.setdefault("Cache-Control", "no-store")
            await send(message)

        try:
            self.check(Headers(scope=scope))
            await self.run(scope, receive, send_with_headers)
        except RefusedRequest as refusal:
            await send_refusal(refusal, send_with_headers)
        except Exception:
            if not started:
                await send_refusal(RefusedRequest(500, BROKEN), send_with_headers)
            raise  # so that the console shows it

    async def run(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def receive_uncounted() -> Message:
            """A request whose body is still arriving is not counted: slow ones must not keep others out."""
            self.running -= 1
            try:
                return await receive()
            finally:
                self.running += 1

        self.running += 1
        try:
            await self.app(scope, receive_uncounted, send)
        finally:
            self.running -= 1

    def check(self, headers: Headers) -> None:
        host, origin = headers.get("host", ""), headers.get("origin")
        if not self.ours(host):
            raise RefusedRequest(
                421, f"this server does not answer for {host[:100]!r}; start it with --allow-host if it should"
            )
        if origin is not None and site(origin) != host:
            raise RefusedRequest(403, "this server answers its own page only, not the page of another site")
        if self.running >= self.concurrent:
            raise RefusedRequest(503, BUSY, retry=True)

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


def site(origin: str) -> str | None:
    """The host and port that an origin names; None if it is not an address."""
    try:
        return urlsplit(origin).netloc
    except ValueError:
        return None


async def send_refusal(refusal: RefusedRequest, send: Send) -> None:
    """Answer without the application, which may be what is busy."""
    body = refusal_body(refusal)
    raw = [(name.lower().encode(), value.encode()) for name, value in refusal_headers(refusal, body).items()]
    await send({"type": "http.response.start", "status": refusal.status, "headers": raw})
    await send({"type": "http.response.body", "body": body})


def refusal_body(refusal: RefusedRequest) -> bytes:
    return json.dumps({"error": refusal.message}).encode()


def refusal_headers(refusal: RefusedRequest, body: bytes) -> dict[str, str]:
    own = {"Content-Type": "application/json", "Content-Length": str(len(body)), "Cache-Control": "no-store"}
    return HEADERS | own | refusal.headers


@dataclass(eq=False)
class Arriving:
    """A body of which some has arrived."""

    begun: float
    deadline: asyncio.Timeout
    size: int = 0  # what is kept of it
    given_up: bool = False

    def speed(self, now: float) -> float:
        """Bytes per second, with a head start so that a body that has just begun counts as fast."""
        return (self.size + HEAD_START_BYTES) / max(now - self.begun, 1e-9)


class Uploads:
    """Reads bodies side by side, each within its size and time.

    A slow one takes nothing from the others: not their number is limited but the sum of their bytes, and where that is
    used up, the slowest is given up.
    """

    def __init__(self, limits: Limits) -> None:
        self.limits = limits
        self.most_bytes = max(limits.arriving_bytes, limits.upload_bytes)
        self.arriving: set[Arriving] = set()

    async def read(self, request: Request) -> bytes:
        seconds, one = self.limits.upload_seconds, None
        try:
            async with asyncio.timeout(seconds) as deadline:
                one = Arriving(asyncio.get_running_loop().time(), deadline)
                self.arriving.add(one)
                return await self.body(request, one)
        except TimeoutError:
            if one is not None and one.given_up:
                raise RefusedRequest(503, BUSY, retry=True) from None
            raise RefusedRequest(408, f"the file did not arrive within {seconds:g} seconds") from None
        except ClientDisconnect:
            raise RefusedRequest(400, "the connection ended before the file did") from None
        finally:
            if one is not None:
                self.arriving.discard(one)

    async def body(self, request: Request, one: Arriving) -> bytes:
        """The body. One that is too large is still read to its end, without being kept: a browser shows an answer only
        after it has sent everything."""
        limit, size, parts = self.limits.upload_bytes, 0, []
        async for part in request.stream():
            size += len(part)
            if size <= limit:
                parts.append(part)
                one.size = size
                self.make_room()
            else:
                parts.clear()
                one.size = 0
        if size > limit:
            raise RefusedRequest(
                413, f"the file has {size:,} bytes; at most {limit:,} are accepted: scale the picture down"
            )
        return b"".join(parts)

    def make_room(self) -> None:
        now = asyncio.get_running_loop().time()
        while sum(one.size for one in self.arriving) > self.most_bytes:
            slowest = min((one for one in self.arriving if one.size), key=lambda one: one.speed(now))
            slowest.given_up = True
            self.arriving.discard(slowest)
            if not slowest.deadline.expired():
                slowest.deadline.reschedule(now)
