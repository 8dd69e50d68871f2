"""Connections that cannot be held for ever: time limits for everything the client has to do, and room for new ones.

uvicorn waits without limit for the headers of a request, for a body that nobody reads and for a client to read its
answer. Each such connection costs a file descriptor, and when none is left the server answers nobody.
"""

import asyncio
import os
import socket
from enum import Enum
from functools import partial
from pathlib import Path
from typing import Any

import h11
import uvicorn
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from vitreous.web.guard import BUSY, Limits, RefusedRequest, refusal_body, refusal_headers

ACCEPT_QUEUE = 2048  # connections that wait to be accepted
ACCEPTED_AT_ONCE = 4  # few, so that older ones are closed before the descriptors run out
SPARE_DESCRIPTORS = 32  # for connections between being accepted and being known, and for files
BODY_GRACE_SECONDS = 5.0  # the application has the better error message, so it may answer first


class Phase(Enum):
    """Whose turn it is."""

    HEADERS = "headers"  # the client's: nothing or a part of them has arrived
    BODY = "body"  # the client's
    ANSWER = "answer"  # ours
    CLOSING = "closing"  # the client's, which has to read the rest of the answer


class Connection(H11Protocol):
    """HTTP on one connection, with a deadline for every phase that is the client's."""

    def __init__(self, *arguments: Any, limits: Limits, most: int, **more: Any) -> None:
        super().__init__(*arguments, **more)
        self.limits, self.most = limits, most
        self.seconds = {Phase.HEADERS: limits.header_seconds, Phase.BODY: limits.upload_seconds + BODY_GRACE_SECONDS}
        self.entered: tuple[Phase | None, Any] = (None, None)  # the phase, and the request it belongs to
        self.since = 0.0
        self.deadline: asyncio.TimerHandle | None = None
        self.sending: asyncio.TimerHandle | None = None  # whether the client reads its answer
        self.unsent = 0  # bytes, at the last check
        self.aborted = False

    # What happens on the connection -----------------------------------------------------------------

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self.note_phase()
        self.make_room()

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        self.note_phase()

    def on_response_complete(self) -> None:
        super().on_response_complete()
        self.note_phase()
        self.watch_sending()

    def pause_writing(self) -> None:
        super().pause_writing()
        self.watch_sending()

    def connection_lost(self, exc: Exception | None) -> None:
        super().connection_lost(exc)
        self._unset_keepalive_if_required()  # uvicorn forgets it where the connection broke
        for timer in (self.deadline, self.sending):
            if timer is not None:
                timer.cancel()

    def shutdown(self) -> None:
        """The server ends: requests in work are finished, and no client is waited for."""
        if self.phase() is Phase.BODY:
            self.refuse(RefusedRequest(503, "the server is shutting down"))
        else:
            super().shutdown()

    # Time limits ------------------------------------------------------------------------------------

    def phase(self) -> Phase:
        if self.transport.is_closing():
            return Phase.CLOSING
        states = {h11.IDLE: Phase.HEADERS, h11.SEND_BODY: Phase.BODY}
        return states.get(self.conn.their_state, Phase.ANSWER)

    def note_phase(self) -> None:
        entered = (self.phase(), self.cycle)
        if entered == self.entered:
            return
        self.entered, self.since = entered, self.loop.time()
        if self.deadline is not None:
            self.deadline.cancel()
        seconds = self.seconds.get(entered[0])
        self.deadline = None if seconds is None else self.loop.call_later(seconds, self.overdue)

    def overdue(self) -> None:
        phase = self.phase()
        if phase is Phase.HEADERS and not self.conn.trailing_data[0]:
            self.transport.close()  # nothing was asked, so nothing is answered
        elif phase in self.seconds:
            arrived = f"the {phase.value} of the request did not arrive within {self.seconds[phase]:g} seconds"
            self.refuse(RefusedRequest(408, arrived))
        self.watch_sending()

    def watch_sending(self) -> None:
        """Check that the answer is being read: some of what waits to be sent must go within the time."""
        left = self.transport.get_write_buffer_size()
        if left and self.sending is None:
            self.unsent = left
            self.sending = self.loop.call_later(self.limits.taking_seconds, self.check_sending)

    def check_sending(self) -> None:
        self.sending = None
        if self.transport.get_write_buffer_size() >= self.unsent:
            self.abort()
        else:
            self.watch_sending()

    # Room -------------------------------------------------------------------------------------------

    def make_room(self) -> None:
        """Close those who keep us waiting, the longest first; if nobody does, the new one has to try again."""
        others = [one for one in self.connections if isinstance(one, Connection) and not one.aborted]
        for _ in range(len(others) - self.most):
            idle = [one for one in others if one is not self and one.phase() is not Phase.ANSWER and not one.aborted]
            if not idle:
                self.refuse(RefusedRequest(503, BUSY, retry=True))
                return
            min(idle, key=lambda one: (one.phase() is not Phase.CLOSING, one.since)).abort()

    def abort(self) -> None:
        self.aborted = True
        self.transport.abort()

    def _should_upgrade(self) -> bool:
        """Never: the request is answered as HTTP. uvicorn would otherwise advise to install WebSockets."""
        return False

    # Answers without the application ----------------------------------------------------------------

    def send_400_response(self, msg: str) -> None:
        self.refuse(RefusedRequest(400, "this is not a valid HTTP request"))

    def refuse(self, refusal: RefusedRequest) -> None:
        """Answer, unless an answer has begun, and close."""
        if self.conn.our_state in (h11.IDLE, h11.SEND_RESPONSE):
            body = refusal_body(refusal)
            headers = [*refusal_headers(refusal, body).items(), ("Connection", "close")]
            start = h11.Response(status_code=refusal.status, headers=headers)
            for event in (start, h11.Data(data=body), h11.EndOfMessage()):
                self.transport.write(self.conn.send(event) or b"")
        if self.cycle is not None and not self.cycle.response_complete:
            self.cycle.disconnected = True  # what the application still sends is dropped
            self.cycle.message_event.set()
        self.transport.close()


class Server(uvicorn.Server):
    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        await super().startup(sockets)
        for listener in sockets or ():
            # asyncio has one number for the queue's length and for how many connections it accepts at once
            listener.listen(ACCEPT_QUEUE)


def make_server(app: ASGIApp, limits: Limits) -> Server:
    connection: Any = partial(Connection, limits=limits, most=most_connections(limits))
    config = uvicorn.Config(
        app,
        http=connection,
        loop="asyncio",
        ws="none",
        backlog=ACCEPTED_AT_ONCE,
        log_level="warning",
        server_header=False,
    )
    return Server(config)


def most_connections(limits: Limits) -> int:
    """As many as the process has file descriptors for."""
    try:
        import resource
    except ImportError:  # Windows, which has no such limit
        return limits.connections
    most, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    if most == resource.RLIM_INFINITY:
        return limits.connections
    return max(1, min(limits.connections, most - descriptors_in_use() - SPARE_DESCRIPTORS))


def descriptors_in_use() -> int:
    folder = Path("/proc/self/fd" if Path("/proc/self/fd").is_dir() else "/dev/fd")
    return len(os.listdir(folder)) if folder.is_dir() else SPARE_DESCRIPTORS
