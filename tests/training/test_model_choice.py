"""Which model is trained where none is named: by the data, the machine and the weights that can be had."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

import vitreous
from tests.support.released_weights import publish, released_file
from tests.support.site import Site, serving
from tests.support.tiny_data import picture
from vitreous.errors import InputError
from vitreous.models.download import cache_path
from vitreous.runs.default_model import DEFAULT_MODEL
from vitreous.training import model_choice
from vitreous.training.model_choice import LARGER_MODEL, QUICK_MODEL, fitting_model
from vitreous.training.recipe import with_recipe


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    with serving() as site:
        for name in (DEFAULT_MODEL, LARGER_MODEL, QUICK_MODEL):
            publish(site, b"", monkeypatch, name)
        yield site


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number in range(12):
        picture(tmp_path / "photos" / ("cat", "dog")[number % 2] / f"{number}.png", seed=number)
    return tmp_path / "photos"


@pytest.mark.parametrize(
    ("gpu", "pictures", "chosen"),
    [
        (False, 400, DEFAULT_MODEL),
        (False, 5_000, QUICK_MODEL),
        (True, 5_000, DEFAULT_MODEL),
        (True, 50_000, LARGER_MODEL),
    ],
)
def test_public_weights_come_first(site: Site, gpu: bool, pictures: int, chosen: str) -> None:
    choice = fitting_model("classify", pictures, gpu=gpu)
    assert choice.model == chosen
    assert choice.settings == {"pretrained": True, "recipe": "finetune"}
    assert f"it fits {pictures:,} pictures and {'a' if gpu else 'no'} GPU" in choice.reason
    assert fitting_model("detect", pictures, gpu=gpu).settings["recipe"] == "finetune_detect"
    assert site.asked == [], "nothing is fetched before it is needed"


def test_without_a_network_it_says_which_file_to_fetch(site: Site) -> None:
    site.close()
    choice = fitting_model("classify", 400, gpu=False)
    url = model_choice.weights_url(DEFAULT_MODEL)
    assert (choice.model, choice.settings) == ("paca_b0", {})
    assert f"fetch {url} elsewhere, put it at {cache_path(url)}, and give the same command" in choice.reason
    assert fitting_model("classify", 60_000, gpu=True).model == "paca_tiny"
    cache_path(url).parent.mkdir(parents=True)
    cache_path(url).touch()
    assert fitting_model("classify", 5_000, gpu=False).model == DEFAULT_MODEL, "what is here is better than nothing"


def test_a_file_that_is_gone_counts_as_out_of_reach(site: Site) -> None:
    site.files.clear()
    choice = fitting_model("classify", 400, gpu=False)
    assert choice.model == "paca_b0"
    assert "cannot be had (HTTP Error 404: Not Found)" in choice.reason


def test_data_alone_are_enough(site: Site, photos: Path) -> None:
    for settings in (with_recipe(str(photos)), with_recipe("auto", str(photos)), with_recipe(data=str(photos))):
        assert (settings.model, settings.data, settings.recipe) == (DEFAULT_MODEL, str(photos), "finetune")
        assert settings.pretrained
        assert settings.origins["model"] == settings.origins["pretrained"] == "chosen"
        assert "as none is named" in settings.notes[0]
    own = with_recipe(str(photos), recipe="quick", pretrained=False, epochs=2)
    assert (own.recipe, own.pretrained, own.epochs) == ("quick", False, 2)
    with pytest.raises(InputError, match=r"'paca_b0' is a model, and there are no data to train on; as in"):
        with_recipe("paca_b0")
    for nothing in ((), ("auto",), ("auto", "")):  # the last is what the command line gives
        with pytest.raises(InputError, match=r"^no data to train on; as in: vitreous train paca_b0 photos"):
            with_recipe(*nothing)
    assert with_recipe(str(photos), "").data == str(photos)
    with pytest.raises(InputError, match="cannot use data 'fotos' to classify: there is no such folder or file"):
        with_recipe("fotos")


def test_drawn_shapes_and_several_processes_ask_no_server(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(model_choice, "why_unreachable", lambda url: pytest.fail("a server was asked"))
    assert with_recipe("shapes").recipe == "quick"
    assert with_recipe("shapes", task="segment").recipe == "finetune_segment"
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(InputError, match="several processes might choose differently; name one"):
        with_recipe("shapes")


def test_it_learns_from_the_public_weights_and_continues_with_them(
    site: Site, photos: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    publish(site, released_file(), monkeypatch)
    quick = dict(out=photos.parent / "run", epochs=1, size=32, batch_size=4, workers=0, device="cpu")
    out = vitreous.train(str(photos), **quick)
    said = capsys.readouterr().out
    assert f"model: {DEFAULT_MODEL}, as none is named" in said
    assert f"weights: those of {DEFAULT_MODEL}; the classifier is new, for 2 classes instead of 1000" in said
    assert json.loads((out / "run.json").read_text())["arguments"]["model"] == DEFAULT_MODEL
    site.close()
    cache_path(model_choice.weights_url(DEFAULT_MODEL)).unlink()
    vitreous.train(str(photos), **quick)
    said = capsys.readouterr().out
    assert "is finished; nothing to do" in said
