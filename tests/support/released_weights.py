"""The release that the default model comes from, on a server of our own: its layout, with made-up weights."""

import io
from dataclasses import replace

import pytest
import timm
import torch
from timm.models import _registry

from tests.support.original_weights import paca_original
from tests.support.site import Site
from vitreous.runs.default_model import DEFAULT_MODEL


def released_file() -> bytes:
    """As the authors publish it: under their names, wrapped as their training script wraps it."""
    buffer = io.BytesIO()
    torch.manual_seed(5)
    model = timm.create_model(DEFAULT_MODEL.partition(".")[0])
    torch.nn.init.normal_(model.head.weight, std=0.5)  # so that answers differ between pictures
    torch.save({"state_dict": paca_original(model.state_dict()), "epoch": 299}, buffer)
    return buffer.getvalue()


def publish(site: Site, content: bytes, monkeypatch: pytest.MonkeyPatch, name: str = DEFAULT_MODEL) -> str:
    """Let the weights of a name be fetched from the site; returns the address."""
    known = _registry._model_pretrained_cfgs
    url = site.put(f"/released/{known[name].url.rpartition('/')[2]}", content)
    monkeypatch.setitem(known, name, replace(known[name], url=url))
    return url
