"""Names, tags and weights that cannot be fetched."""

import socket
import time
from pathlib import Path

import pytest
import timm
from huggingface_hub import constants

import vitreous
from vitreous.errors import InputError
from vitreous.files import hub
from vitreous.registry import resolve_name


def test_names_of_ours_of_the_original_and_of_timm() -> None:
    assert resolve_name("pacavit_tiny_p2cconv_100_0.ivmcl_in1k") == "paca_tiny.ivmcl_in1k"
    assert resolve_name("resnet18") == "resnet18"
    with pytest.raises(InputError, match="nearest: paca_small"):
        resolve_name("paca_smal")


def test_weights_that_cannot_be_had_say_where_they_come_from(monkeypatch: pytest.MonkeyPatch) -> None:
    def offline(*_args, **_kwargs):
        raise ConnectionError("no route to the hub\nwith many more lines")

    monkeypatch.setattr(timm, "create_model", offline)
    monkeypatch.setattr(hub, "no_connection", lambda: None)
    with pytest.raises(InputError, match=r"resnet18 cannot be fetched \(ConnectionError: no route to the hub\)"):
        vitreous.create_model("resnet18", pretrained=True)
    with pytest.raises(ConnectionError):
        vitreous.create_model("resnet18")  # without weights nothing of the kind can be the reason


class ConnectTimeout(Exception):
    """As the hub's client calls it."""


class Session:
    def __init__(self, error: Exception | None) -> None:
        self.error = error

    def head(self, address: str, *, timeout: float) -> str:
        assert address == constants.ENDPOINT
        assert timeout <= 5
        if self.error is not None:
            raise self.error
        return "any answer"


def test_without_a_network_the_hub_is_asked_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(hub, "get_session", lambda: Session(ConnectTimeout("no route to the hub")))
    monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: pytest.fail("the hub was asked again"))
    monkeypatch.setattr(constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(time, "sleep", lambda _: pytest.fail("waited"))
    words = r"test_resnet cannot be fetched \(no connection to https://\S+: no route to the hub\)"
    with pytest.raises(InputError, match=words):
        vitreous.create_model("test_resnet", pretrained=True)
    assert not constants.HF_HUB_OFFLINE


@pytest.mark.parametrize("error", [None, TimeoutError("it answers slowly")])
def test_a_slow_hub_is_not_given_up(monkeypatch: pytest.MonkeyPatch, error: Exception | None) -> None:
    monkeypatch.setattr(hub, "get_session", lambda: Session(error))
    with hub.hub_or_cache() as reason:
        assert reason is None
        assert not constants.HF_HUB_OFFLINE


def test_what_was_fetched_before_is_used_without_a_network(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "get_session", lambda: Session(ConnectTimeout()))

    def cached(name: str, **_options: object) -> str:
        assert constants.HF_HUB_OFFLINE
        return name

    monkeypatch.setattr(timm, "create_model", cached)
    assert vitreous.create_model("resnet18", pretrained=True) == "resnet18"


def test_only_the_hubs_models_ask_the_hub(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hub, "no_connection", lambda: pytest.fail("the hub was asked"))
    monkeypatch.setattr(timm, "create_model", lambda name, **_: name)
    vitreous.create_model("resnet18")
    vitreous.create_model("resnet18", pretrained=True, pretrained_cfg_overlay={"file": "mine.pth"})
    vitreous.create_model("paca_tiny", pretrained=True)  # a file at another address
