"""`vitreous push` and `hf:owner/name`, against a stand-in of the hub that is started here."""

import json

import numpy as np
import pytest
import timm
import torch
from PIL import Image

from tests.support.hub import TOKEN, stand_in_hub
from tests.support.tiny_model import save_tiny_model
from vitreous.errors import InputError
from vitreous.explanations.default_method import read_default_method
from vitreous.predict import predict
from vitreous.push import push
from vitreous.runs import hub as hub_module
from vitreous.runs.model_folder import load_model

MEASURED = {
    "method": "integrated_gradients", "reason": "It is the best.", "images": 40, "by_budget": {},
    "data": "/home/anna/secret/photos (val)",
    "beats_controls": {"integrated_gradients": True, "input_gradient": False},
    "measured": {
        "input_gradient": dict(mean=0.1, low=0.0, high=0.2), "integrated_gradients": dict(mean=0.4, low=0.3, high=0.5),
    },
}  # fmt: skip


@pytest.fixture
def hub(monkeypatch, tmp_path):
    hub_module._downloaded.cache_clear()
    with stand_in_hub() as started:
        monkeypatch.setenv("HF_ENDPOINT", started.address)
        monkeypatch.setenv("HF_TOKEN", TOKEN)
        monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
        yield started


@pytest.fixture
def folder(tmp_path):
    made = tmp_path / "m"
    save_tiny_model(made)
    (made / "explain.json").write_text(json.dumps(MEASURED))
    return made


def picture(file):
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (40, 40, 3), dtype=np.uint8)).save(file)
    return str(file)


def test_a_pushed_model_is_loaded_by_its_name(hub, folder, tmp_path, capsys):
    address = push(str(folder), "anna/my-cats", licence="apache-2.0", message="First", private=True)
    assert address == f"{hub.address}/anna/my-cats"
    assert "next: vitreous explain hf:anna/my-cats photo.jpg" in capsys.readouterr().out
    assert set(hub.files["anna/my-cats"]) == {
        "README.md", "config.json", "explain.json", "manifest.json", "model.safetensors",
    }  # fmt: skip
    assert hub.private == {"anna/my-cats"}
    assert hub.messages == ["First"]
    there, here = load_model("hf:anna/my-cats"), load_model(folder)
    assert there.classes == here.classes
    assert all(torch.equal(a, b) for a, b in zip(there.model.parameters(), here.model.parameters(), strict=True))
    photo = picture(tmp_path / "x.png")
    assert predict("hf:anna/my-cats", (photo,), device="cpu") == predict(str(folder), (photo,), device="cpu")
    assert read_default_method("hf:anna/my-cats").method == "integrated_gradients"


def test_the_card_tells_how_to_use_it_and_nothing_of_this_machine(hub, folder):
    push(str(folder), "anna/my-cats", licence="mit")
    card = hub.files["anna/my-cats"]["README.md"].decode()
    assert "license: mit" in card.split("---")[1]
    assert 'vitreous.load_model("hf:anna/my-cats")' in card
    assert 'timm.create_model("hf-hub:anna/my-cats", pretrained=True)' in card
    rows = [line for line in card.splitlines() if line.startswith("| ")]
    assert rows[-2:] == [
        "| integrated\\_gradients | 0.40 | 0.30 to 0.50 | yes |",
        "| input\\_gradient | 0.10 | 0.00 to 0.20 | no |",
    ]
    assert not [name for name, content in hub.files["anna/my-cats"].items() if b"/home/anna" in content]
    assert "FOLDER" not in card


def test_an_explained_picture_is_shown_on_the_card(hub, folder, tmp_path):
    push(str(folder), "anna/my-cats", picture=picture(tmp_path / "x.png"))
    assert hub.files["anna/my-cats"]["explanation.png"].startswith(b"\x89PNG")
    card = hub.files["anna/my-cats"]["README.md"].decode()
    assert "](explanation.png)" in card
    assert "None was given" in card, "no licence"


def test_a_dry_run_sends_nothing_and_needs_no_token(hub, folder, monkeypatch, capsys):
    monkeypatch.delenv("HF_TOKEN")
    assert push(str(folder), "anna/my-cats", dry_run=True) == "anna/my-cats"
    told = capsys.readouterr().out
    assert "model.safetensors" in told
    assert "nothing was sent" in told
    assert not hub.asked


def test_what_timm_itself_pushed_is_loaded_too(hub, tmp_path):
    model = timm.create_model("test_convnext", num_classes=3)
    from timm.models import save_for_hf

    save_for_hf(model, str(tmp_path / "t"), model_config={"label_names": ["a", "b", "c"]}, safe_serialization=True)
    hub.files["anna/of-timm"] = {file.name: file.read_bytes() for file in (tmp_path / "t").iterdir()}
    trained = load_model("hf-hub:anna/of-timm@main")
    assert trained.classes == ("a", "b", "c")
    assert torch.equal(trained.model.head.fc.weight, model.head.fc.weight)


def test_without_a_token_nothing_is_asked(hub, folder, monkeypatch):
    monkeypatch.delenv("HF_TOKEN")
    monkeypatch.setattr("huggingface_hub.get_token", lambda: None)
    with pytest.raises(InputError, match=r"no token of the hub is known.*set HF_TOKEN"):
        push(str(folder), "anna/my-cats")
    assert not hub.asked


def test_refusals_are_one_line(hub, folder, monkeypatch):
    for given, said in (
        ("my-cats", "give owner/name"),
        ("a/b/c", "give owner/name"),
        ("../x", "give owner/name"),
    ):
        with pytest.raises(InputError, match=said):
            push(str(folder), given)
    with pytest.raises(InputError, match="how the hub names one"):
        push(str(folder), "a/b", licence="My own\nlicence")
    with pytest.raises(InputError, match="is not a folder"):
        push("paca_tiny", "a/b")
    with pytest.raises(InputError, match="there is no repository nobody/nothing on the hub"):
        load_model("hf:nobody/nothing")
    with pytest.raises(InputError, match="give owner/name"):
        load_model("hf:nothing")
    hub.files["anna/pictures"] = {"README.md": b"hello"}
    with pytest.raises(InputError, match=r"anna/pictures of the hub has no config\.json"):
        load_model("hf:anna/pictures")
    with pytest.raises(InputError, match="has no revision 'v9'"):
        load_model("hf:anna/pictures@v9")
    monkeypatch.setenv("HF_TOKEN", "hf_of_somebody_else")
    with pytest.raises(InputError, match=r"refuses this token for a/b \(401\)"):
        push(str(folder), "a/b")


def test_a_hub_that_cannot_be_reached_is_one_line(folder, monkeypatch, tmp_path):
    hub_module._downloaded.cache_clear()
    monkeypatch.setenv("HF_ENDPOINT", "http://127.0.0.1:9")
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(tmp_path / "cache"))
    with pytest.raises(InputError, match="the hub cannot be reached for anna/my-cats"):
        load_model("hf:anna/my-cats")
