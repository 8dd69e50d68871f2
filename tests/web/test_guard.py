"""What the network may not do: leave the table of addresses, come under a foreign name, send too much or too slowly."""

import itertools
import random
import struct
import tempfile
import threading
import zlib

import pytest
from starlette.testclient import TestClient

from tests.support.explorer import HOST, application, png, post
from tests.support.tiny_model import save_tiny_model
from vitreous.web.guard import HEADERS, Limits

LIMITS = Limits(upload_bytes=200_000, upload_seconds=0.5)


@pytest.fixture(scope="module")
def app(tmp_path_factory):
    return application(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"), limits=LIMITS)[0]


@pytest.fixture(scope="module")
def client(app):
    with TestClient(app, base_url=HOST) as client:
        yield client


def traversals() -> list[str]:
    steps = ["../", "..%2f", "%2e%2e/", "%2e%2e%2f", "..%5c", "..\\", "....//", "%252e%252e%252f", "..%c0%af", ".%00./"]
    files = ["etc/passwd", "vitreous/web/app.py", "pyproject.toml", "static/index.html%00.png"]
    starts = ["/", "/static/", "/api/images/", "/api/images/x/../"]
    forms = [start + step * 4 + file for start, step, file in itertools.product(starts, steps, files)]
    absolute = ["//etc/passwd", "/%2fetc%2fpasswd", "/file:///etc/passwd", "/api/images//etc/passwd/picture.png"]
    names = [
        "/app.py",
        "/__init__.py",
        "/static/app.js",
        "/app.js/",
        "/app.js%00",
        "/.git/config",
        "/style.css/../app.py",
    ]
    return [*forms, *absolute, *(f"{start}{name}" for start in ("", "/api", "/.", "/static") for name in names)]


def test_nothing_but_the_table_of_addresses_is_served(client):
    forms = traversals()
    assert len(forms) >= 190
    pages = {
        client.get(address).content
        for address in ("/", "/app.js", "/style.css", "/page.css", "/draw.js", "/api.js", "/clusters.js")
    }
    for form in forms:
        answer = client.send(client.build_request("GET", f"{HOST}{form}"))
        served = answer.status_code == 200 and answer.content not in pages
        assert not served, f"{form}: {answer.text[:80]}"
        assert answer.status_code in (200, 404, 405), form
        assert b"root:" not in answer.content


@pytest.mark.parametrize("host", ["localhost", "localhost:8000", "127.0.0.1:8000", "[::1]:8000", "192.168.0.7"])
def test_our_names(client, host):
    assert client.get("/api/health", headers={"host": host}).status_code == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "localhost.evil.example:80", "127.0.0.1.evil.example", "", "[::1", "a b"]
)
def test_foreign_names(client, host):
    answer = client.get("/api/health", headers={"host": host})
    assert answer.status_code == 421
    assert "--allow-host" in answer.json()["error"]


def test_another_sites_page_may_not_ask(client):
    own = {"host": "localhost", "origin": "http://localhost"}
    assert client.post("/api/images", content=png(), headers=own).status_code == 201
    for origin in ("http://evil.example", "null", "http://localhost:9999"):
        answer = client.post("/api/images", content=png(), headers={"host": "localhost", "origin": origin})
        assert answer.status_code == 403


@pytest.mark.parametrize("path", ["/", "/app.js", "/api/model", "/api/nothing", "/api/images/x"])
def test_every_answer_carries_the_rules_for_the_browser(client, path):
    answer = client.get(path)
    for name, value in HEADERS.items():
        assert answer.headers[name] == value
    assert "unsafe" not in answer.headers["content-security-policy"]
    assert answer.headers["cache-control"] in ("no-store", "no-cache")


def test_the_page_names_nothing_outside(client):
    for address in ("/", "/app.js", "/style.css", "/page.css", "/draw.js", "/api.js", "/clusters.js"):
        text = client.get(address).text
        assert "http://" not in text
        assert "https://" not in text


@pytest.mark.parametrize(
    ("content", "status", "words"),
    [
        (b"", 422, "empty"),
        (b"<html>not found</html>", 422, "HTML"),
        (png()[:500], 422, "cannot be decoded"),
        (b"GIF89a" + bytes(100), 422, "GIF"),
        (bytes(200_001), 413, "200,001 bytes; at most 200,000"),
    ],
)
def test_bad_uploads(client, content, status, words):
    answer = client.post("/api/images", params={"name": "x.png"}, content=content)
    assert answer.status_code == status
    assert words in answer.json()["error"]


def test_a_bomb_is_refused_before_it_is_decoded(client):
    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    head = struct.pack(">IIBBBBB", 100_000, 100_000, 8, 2, 0, 0, 0)
    bomb = (
        b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(bytes(1000))) + chunk(b"IEND", b"")
    )
    answer = client.post("/api/images", content=bomb)
    assert answer.status_code == 422
    assert "10000000000 pixels" in answer.json()["error"]


def test_forms_are_not_taken(client):
    answer = client.post("/api/images", files={"file": ("x.png", png())})
    assert answer.status_code == 415
    assert "send the bytes of the picture itself" in answer.json()["error"]


def test_names_are_made_harmless(client):
    name = "<img src=x onerror=alert(1)>\n\0" + "a" * 500
    sent = client.post("/api/images", params={"name": name}, content=png()).json()
    assert sent["name"].startswith("<img src=x onerror=alert(1)>  aaa")  # shown as text by the page
    assert len(sent["name"]) == 200


def test_body_without_length_is_counted(app):
    reply = post(app, "/api/images", [bytes(50_000)] * 5)
    assert reply.status == 413
    assert post(app, "/api/images", [png()[:3000], png()[3000:]]).status == 201


def test_slow_body_is_given_up(app):
    reply = post(app, "/api/images", itertools.repeat(b"x"), pause=0.05)
    assert reply.status == 408
    assert "within 0.5 seconds" in reply.error


@pytest.mark.parametrize("count", [100, pytest.param(1000, marks=pytest.mark.slow)])
def test_garbage_leaves_nothing_behind(client, count, tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    rng, good = random.Random(0), png()
    for number in range(count):
        content = bytearray(good if number % 2 else rng.randbytes(200))
        if number % 2:
            for _ in range(20):
                content[rng.randrange(8, len(content))] = rng.randrange(256)
        status = client.post("/api/images", content=bytes(content)).status_code
        assert status in (201, 422), number  # a changed byte may leave a picture
    assert client.get("/api/health").json() == {"status": "ok", "unfinished": 0}
    assert list(tmp_path.iterdir()) == []


def test_beyond_the_limits_the_answer_is_try_again(tmp_path):
    app, _ = application(save_tiny_model(tmp_path / "tiny"), limits=Limits(concurrent=1))
    with TestClient(app, base_url=HOST) as client:
        app.running = 1
        answer = client.get("/api/health")
        app.running = 0
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "busy" in answer.json()["error"]
        assert client.get("/api/health").status_code == 200


def test_a_full_queue_is_try_again(tmp_path):
    app, explorer = application(save_tiny_model(tmp_path / "tiny"), limits=Limits(waiting=1))
    go, begun = threading.Event(), threading.Event()

    def held(*_):
        begun.set()
        assert go.wait(30)
        return {}

    with TestClient(app, base_url=HOST) as client:
        ids = [item["id"] for item in client.get("/api/model").json()["examples"]]
        explorer.predict = held
        waiting = [threading.Thread(target=client.get, args=(f"/api/images/{id}",)) for id in ids[:2]]
        waiting[0].start()
        assert begun.wait(30)
        waiting[1].start()
        while client.get("/api/health").json()["unfinished"] < 2:
            pass
        answer = client.get(f"/api/images/{ids[2]}")
        go.set()
        for thread in waiting:
            thread.join()
    assert answer.status_code == 503
    assert answer.headers["retry-after"] == "1"
