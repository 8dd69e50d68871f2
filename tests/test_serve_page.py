"""docs/serve.md says what is true: its commands are understood, its addresses and defaults exist."""

import inspect
import re
import shlex

import pytest
from starlette.testclient import TestClient

from tests.support.explorer import HOST, application, png
from tests.support.pages import blocks, dead_links, read
from tests.support.tiny_model import save_tiny_model
from vitreous.serve import serve
from vitreous.web.guard import Limits
from vitreous_command import parse

PAGE = "docs/serve.md"


def test_links_lead_somewhere():
    assert dead_links(PAGE) == []


def test_commands_are_understood():
    commands = [
        line for block in blocks(PAGE, "bash") for line in block.splitlines() if line.startswith("vitreous serve")
    ]
    assert len(commands) == 4
    for command in commands:
        assert parse(serve, "vitreous serve", shlex.split(command)[2:]).args[0].func is serve


def test_addresses_answer(tmp_path):
    app, _ = application(save_tiny_model(tmp_path / "tiny", clusters=(6, 6, 20, 0)))
    with TestClient(app, base_url=HOST) as client:
        id = client.post("/api/images?name=photo.jpg", content=png(), headers={"Content-Type": "image/jpeg"}).json()[
            "id"
        ]
        addresses = re.findall(r"localhost:8000(/\S*?)\"?[\s]", "\n".join(blocks(PAGE, "bash")))
        asked = [address.replace("$id", id) for address in addresses if "?name=" not in address]
        assert len(asked) == 7
        for address in asked:
            assert client.get(address).status_code == 200, address


@pytest.mark.parametrize(
    ("row", "value"),
    [
        ("size of an upload", f"{inspect.signature(serve).parameters['max_upload_mb'].default} MB"),
        ("time for it to arrive", f"{Limits().upload_seconds:g} s"),
        ("time for the headers of a request to arrive", f"{Limits().header_seconds:g} s"),
        ("time in which a client reads nothing of its answer", f"{Limits().taking_seconds:g} s"),
        ("bytes of uploads that are arriving", f"{Limits().arriving_bytes // 1_000_000} MB"),
        ("open connections", str(Limits().connections)),
        ("requests in work", str(inspect.signature(serve).parameters["concurrent"].default)),
        ("questions waiting for the model", str(inspect.signature(serve).parameters["waiting"].default)),
    ],
)
def test_limits_are_the_real_ones(row, value):
    assert f"| {row} | {value}" in read(PAGE)
