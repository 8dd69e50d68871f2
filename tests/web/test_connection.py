"""Clients that hold connections: half a request, a body that never ends, an answer that nobody takes."""

import resource
import socket
import subprocess
import sys
import threading
import time
from contextlib import ExitStack, closing, contextmanager
from http.client import HTTPConnection, HTTPResponse
from typing import NamedTuple

import pytest
from starlette.requests import Request
from starlette.responses import Response

from tests.support.explorer import Reply
from tests.support.tiny_model import save_tiny_model
from vitreous.web import connection
from vitreous.web.connection import make_server, most_connections
from vitreous.web.guard import HEADERS, Guard, Limits, Uploads

LARGE = bytes(30_000_000)  # more than the kernel takes off our hands
PATIENCE = 60.0  # seconds: against hanging, not a measure
QUICK = Limits(header_seconds=0.5, taking_seconds=0.5, upload_seconds=0.5)


class Running(NamedTuple):
    port: int
    server: connection.Server

    def connect(self, sent: bytes = b"") -> socket.socket:
        client = socket.create_connection(("127.0.0.1", self.port), timeout=PATIENCE)
        client.sendall(sent)
        return client

    def ask(self, method: str = "GET", path: str = "/", body: bytes | None = None, **headers: str):
        client = HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE)
        with closing(client):
            client.request(method, path, body, headers)
            answer = client.getresponse()
            return Reply(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())

    @property
    def open(self) -> int:
        return len(self.server.server_state.connections)


@contextmanager
def running(limits: Limits, monkeypatch=None, most: int | None = None):
    """A server in a thread, around an application that reads bodies as the real one does."""
    uploads = Uploads(limits)

    async def app(scope, receive, send):
        if scope["type"] != "http":
            return
        request = Request(scope, receive)
        if scope["path"] == "/broken":
            raise RuntimeError("a fault of ours")
        content = LARGE if scope["path"] == "/large" else b"hello"
        if scope["path"] == "/upload":
            content = str(len(await uploads.read(request))).encode()
        await Response(content)(scope, receive, send)

    if most is not None:
        monkeypatch.setattr(connection, "most_connections", lambda _limits: most)
    server = make_server(Guard(app, hosts=["localhost"], concurrent=limits.concurrent), limits)
    with socket.create_server(("127.0.0.1", 0)) as listener:
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield Running(listener.getsockname()[1], server)
        finally:
            server.should_exit = True
            thread.join(PATIENCE)
    assert not thread.is_alive(), "the server does not end"


def until(true) -> bool:
    limit = time.monotonic() + PATIENCE
    while not true() and time.monotonic() < limit:
        time.sleep(0.02)
    return true()


def has_ended(client: socket.socket) -> bool:
    try:
        return client.recv(10) == b""
    except ConnectionError:
        return True


def reply(client: socket.socket) -> Reply:
    answer = HTTPResponse(client)
    answer.begin()
    return Reply(answer.status, {name.lower(): value for name, value in answer.getheaders()}, answer.read())


def carries_the_rules(answer: Reply) -> bool:
    return {name.lower(): value for name, value in HEADERS.items()}.items() <= answer.headers.items()


@pytest.mark.parametrize("sent", [b"", b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "], ids=["silent", "half open"])
def test_two_hundred_half_open_sockets_are_closed_while_others_are_answered(sent):
    with running(QUICK) as here, ExitStack() as stack:
        clients = [stack.enter_context(here.connect(sent)) for _ in range(200)]
        assert here.ask().status == 200
        for client in clients:
            if sent:
                answer = reply(client)
                assert answer.status == 408
                assert answer.error == "the headers of the request did not arrive within 0.5 seconds"
                assert carries_the_rules(answer)
            assert client.recv(10) == b""
        assert until(lambda: here.open == 0)
        assert here.ask().status == 200


@pytest.mark.parametrize("protocol", ["websocket", "h2c"])
def test_other_protocols_are_answered_as_http_without_a_word_on_the_console(protocol, capfd, caplog):
    with running(QUICK) as here:
        assert here.ask(Connection="Upgrade", Upgrade=protocol).body == b"hello"
    assert "".join(capfd.readouterr()) == ""
    assert caplog.text == ""


def test_headers_that_drip_do_not_buy_time():
    with running(QUICK) as here, here.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\n") as client:
        client.settimeout(0.05)
        answer, limit = b"", time.monotonic() + PATIENCE
        while not answer and time.monotonic() < limit:
            try:
                client.sendall(b"X-Drip: 1\r\n")
                answer = client.recv(1000)
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408 ")


def test_the_time_begins_anew_with_every_request_of_a_connection():
    whole = b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with running(Limits(header_seconds=1.0)) as here, here.connect() as client:
        for _ in range(6):  # together longer than one request may take
            time.sleep(0.25)
            client.sendall(whole)
            assert reply(client).status == 200
        client.sendall(b"GET / HT")
        assert reply(client).status == 408


@pytest.mark.parametrize(
    "kind",
    [b"", b"GET / HTTP/1.1\r\n", b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\nx"],
    ids=["silent", "headers", "body"],
)
def test_newcomers_are_answered_when_no_connection_is_left(kind, monkeypatch):
    with running(Limits(), monkeypatch, most=20) as here, ExitStack() as stack:
        clients = [stack.enter_context(here.connect(kind)) for _ in range(60)]
        for _ in range(3):
            assert here.ask().status == 200
        assert here.ask("POST", "/upload", b"12345").body == b"5"
        assert until(lambda: here.open <= 20)
        assert all(has_ended(client) for client in clients[:40])  # those that came first


def test_slow_bodies_do_not_keep_others_out():
    head = b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\nxxxx"
    limits = Limits(upload_seconds=3.0, concurrent=4)
    with running(limits) as here, ExitStack() as stack:
        clients = [stack.enter_context(here.connect(head)) for _ in range(100)]
        for _ in range(5):
            assert here.ask("POST", "/upload", bytes(100_000)).body == b"100000"
            assert here.ask().status == 200
        for client in clients:
            answer = reply(client)
            assert answer.status == 408
            assert answer.error == "the file did not arrive within 3 seconds"
            assert carries_the_rules(answer)


def test_where_memory_is_short_the_slowest_body_is_given_up():
    limits = Limits(upload_bytes=1_000_000, arriving_bytes=2_000_000)
    head = b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 999999\r\n\r\n"
    with running(limits) as here, ExitStack() as stack:
        clients = [stack.enter_context(here.connect(head + bytes(900_000))) for _ in range(2)]
        time.sleep(0.5)
        for _ in range(2):
            assert here.ask("POST", "/upload", bytes(1_000_000)).body == b"1000000"
        answer = reply(clients[0])
        assert answer.status == 503
        assert answer.headers["retry-after"] == "1"


def test_a_body_that_nobody_reads_ends_too(monkeypatch):
    monkeypatch.setattr(connection, "BODY_GRACE_SECONDS", 0.1)
    with (
        running(QUICK) as here,
        here.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9999\r\n\r\n") as client,
    ):
        assert reply(client).status == 200
        client.settimeout(0.05)
        limit, ended = time.monotonic() + PATIENCE, False
        while not ended and time.monotonic() < limit:
            try:
                client.sendall(b"x")
                ended = client.recv(1000) == b""
            except TimeoutError:
                continue
            except ConnectionError:
                ended = True
        assert ended


def test_an_answer_that_nobody_takes_is_dropped():
    with running(QUICK) as here, ExitStack() as stack:
        ask = b"GET /large HTTP/1.1\r\nHost: localhost\r\n\r\n"
        for _ in range(3):
            stack.enter_context(here.connect(ask * 3))
        assert until(lambda: here.server.server_state.total_requests > 0)
        assert until(lambda: here.open == 0)
        assert not here.server.server_state.tasks


def test_an_answer_that_is_taken_slowly_arrives():
    with (
        running(QUICK) as here,
        here.connect(b"GET /large HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n") as client,
    ):
        size = 0
        while part := client.recv(4_000_000):
            size += len(part)
            time.sleep(0.1)
        assert size > len(LARGE)


@pytest.mark.parametrize(
    "request_",
    [
        b"\x16\x03\x01 hello, this is TLS\r\n\r\n",
        b"GET / HTTP/1.1\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: a\r\nHost: b\r\n\r\n",
        b"GET / HTTP/1.1\r\nHost: localhost\r\nX: " + bytes([65]) * 100_000,
        b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
        b"POST /upload HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\nno number\r\n",
    ],
    ids=["tls", "no host", "two hosts", "long header", "bad chunk", "bad chunk that is awaited"],
)
def test_what_is_no_request_is_refused_with_the_rules(request_, capfd):
    with running(QUICK) as here, here.connect(request_) as client:
        answer = reply(client)
        assert answer.status == 400
        assert answer.error == "this is not a valid HTTP request"
        assert carries_the_rules(answer)
        assert here.ask().status == 200
    assert "Traceback" not in capfd.readouterr().err


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "http://["}, 403),
        ({"Origin": "http://[::1"}, 403),
        ({"Origin": "http://a]b"}, 403),
        ({"Origin": "http://\u2100.example".encode().decode("latin-1")}, 403),
        ({"Host": "["}, 421),
        ({"Host": "localhost:99999"}, 200),
        ({"Host": "\xff\xfe"}, 421),
    ],
)
def test_addresses_that_are_none(headers, status):
    with running(QUICK) as here:
        answer = here.ask(**headers)
    assert answer.status == status
    assert carries_the_rules(answer)
    assert status == 200 or answer.error


def test_a_fault_of_ours_carries_the_rules_too():
    with running(QUICK) as here:
        answer = here.ask(path="/broken")
    assert answer.status == 500
    assert carries_the_rules(answer)
    assert "its console says what" in answer.error


def test_the_server_ends_while_clients_hold_on():
    head = b"POST /upload HTTP/1.1\r\nHost: localhost\r\nContent-Length: 9000\r\n\r\nx"
    begun = time.monotonic()
    with ExitStack() as stack:
        with running(Limits()) as here:
            for sent in (b"", b"GET / HT", head):
                stack.enter_context(here.connect(sent))
            assert until(lambda: here.open == 3)
    assert time.monotonic() - begun < Limits().upload_seconds


def test_connections_fit_the_descriptors():
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (512, hard))
    try:
        assert 1 <= most_connections(Limits()) < 512 - connection.SPARE_DESCRIPTORS
        assert most_connections(Limits(connections=5)) == 5
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.system
def test_the_command_answers_with_few_descriptors(tmp_path):
    """160 half-open sockets, and 128 descriptors."""
    folder = save_tiny_model(tmp_path / "tiny")
    command = [sys.executable, "-m", "vitreous", "serve", folder, "--port", "0", "--device", "cpu"]
    few = lambda: resource.setrlimit(resource.RLIMIT_NOFILE, (128, 128))  # noqa: E731
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, preexec_fn=few) as server:
        try:
            port = int(server.stdout.readline().split(" is at http://127.0.0.1:")[1].split()[0])
            here = Running(port, None)
            with ExitStack() as stack:
                for _ in range(160):
                    stack.enter_context(here.connect(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: "))
                for path in ("/", "/api/health", "/api/model"):
                    assert here.ask(path=path).status == 200
        finally:
            server.terminate()
            _, err = server.communicate(timeout=PATIENCE)
    assert "Too many open files" not in err
