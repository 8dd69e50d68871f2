"""The first command of all, on a photograph, with no model named: fetched once, then used without a network."""

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from timm.data import ImageNetInfo

import vitreous
import vitreous_command
from tests.support.released_weights import publish, released_file
from tests.support.site import Site, serving
from vitreous.errors import InputError
from vitreous.models.download import cache_path
from vitreous.runs.default_model import DEFAULT_MODEL, names_pictures
from vitreous.runs.model_folder import load_model
from vitreous.serve import serve
from vitreous.web import connection

QUICK = ("--size", "32", "--method", "centre_blob", "--ranking", "logit_gate", "--top-k", "2")


@pytest.fixture(scope="module")
def content() -> bytes:
    return released_file()


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    monkeypatch.chdir(tmp_path)
    pixels = np.random.default_rng(1).integers(0, 255, (90, 120, 3), dtype=np.uint8)
    Image.fromarray(pixels).save("photo.jpg")
    with serving() as site:
        yield site


def test_a_photograph_is_all_it_takes(
    site: Site, content: bytes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    url = publish(site, content, monkeypatch)
    assert vitreous_command.main(["predict", "photo.jpg", "--out", "found", "--size", "32"]) == 0
    said = capsys.readouterr()
    announced, fetching, kept, *_ = said.err.splitlines()
    assert announced.startswith(f"model: {DEFAULT_MODEL}, which knows ImageNet's 1,000 classes")
    assert fetching == f"downloading {url}, {len(content) / 1e6:,.1f} MB"
    assert str(cache_path(url)) in kept
    assert "sha256" in kept
    site.close()  # from here on there is no network

    (row,) = json.loads(Path("found/predictions.json").read_text())["images"]
    names = set(ImageNetInfo("imagenet-1k").label_descriptions(detailed=False))
    best = row["predictions"][0]["class"]
    assert best in said.out
    assert {entry["class"] for entry in row["predictions"]} <= names

    assert vitreous_command.main(["explain", "photo.jpg", *QUICK]) == 0
    (item,) = json.loads(Path("explanation/explanation.json").read_text())["images"]
    assert item["watched"] == best
    assert best.replace("'", "&#39;") in Path("explanation/report.html").read_text()
    assert "downloading" not in capsys.readouterr().err
    assert site.asked == [f"/released/{cache_path(url).name}"]

    assert vitreous.predict(images="photo.jpg", size=32)[0]["predictions"][0]["class"] == best  # and in Python


def test_the_explorer_opens_without_a_model(site: Site, content: bytes, monkeypatch, capsys) -> None:
    publish(site, content, monkeypatch)
    opened = []

    class Server:
        def run(self, sockets: list) -> None:
            opened.extend(sockets)

    monkeypatch.setattr(connection, "make_server", lambda app, limits: Server())
    serve(port=0, size=32)
    assert len(opened) == 1
    assert f"{DEFAULT_MODEL} is at http://127.0.0.1:" in capsys.readouterr().out


def test_without_a_network_one_line_says_where_the_file_goes(site: Site, content: bytes, monkeypatch, capsys) -> None:
    url = publish(site, content, monkeypatch)
    site.close()
    for verb in ("explain", "predict"):
        assert vitreous_command.main([verb, "photo.jpg", "--out", "found"]) == 2
        complaint = capsys.readouterr().err.splitlines()[-1]
        assert f"cannot download {url} (" in complaint
        assert complaint.endswith(f"or put it at {cache_path(url)}")
    assert sorted(path.name for path in Path().iterdir() if path.is_file()) == ["photo.jpg"]
    assert not Path("found").exists()
    Path(complaint.rpartition("or put it at ")[2]).write_bytes(content)
    assert load_model(DEFAULT_MODEL).classes[1].startswith("goldfish")


def test_no_picture_at_all_is_one_line() -> None:
    with pytest.raises(InputError, match=r"no images given; as in: vitreous predict photo\.jpg"):
        vitreous.predict()
    with pytest.raises(InputError, match=r"with a model: explain paca_b0 photo\.jpg"):
        vitreous.explain("paca_b0")


def test_pictures_are_told_from_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("photos/cat/1.jpg", "runs/demo/best/drawing.png", "empty/notes.txt", "weights.pth", "scan.gif"):
        Path(name).parent.mkdir(parents=True, exist_ok=True)
        Path(name).touch()
    pictures = ("photos", "photos/cat/1.jpg", "gone.JPG", "photos/*/*.jpg", "shapes:val:0-3", "shapes", "scan.gif")
    assert all(map(names_pictures, pictures))
    models = ("runs/demo", "empty", "weights.pth", "gone.pth", "paca_b0", DEFAULT_MODEL, "https://a.org/x.pth")
    assert not any(map(names_pictures, models))
