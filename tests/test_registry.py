"""Names, tags and weights that cannot be fetched."""

import pytest
import timm

import vitreous
from vitreous.errors import InputError
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
    with pytest.raises(InputError, match=r"resnet18 cannot be fetched \(ConnectionError: no route to the hub\)"):
        vitreous.create_model("resnet18", pretrained=True)
    with pytest.raises(ConnectionError):
        vitreous.create_model("resnet18")  # without weights nothing of the kind can be the reason
