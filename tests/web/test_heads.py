"""What heads read, as the page is told it: equal to what the library records."""

import base64

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from tests.support.explorer import HOST, application, as_inputs
from tests.support.families import ONE_OF_EACH, save_small
from tests.support.tiny_model import save_tiny_model
from vitreous.attribution.looking import read_from
from vitreous.clusters.layer import stretch
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.layers.tap import record
from vitreous.web.explorer import reduced

LAYER = "stages.3.blocks.0.attention.map"  # of plain attention, between all places


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    app, explorer = application(save_tiny_model(tmp_path_factory.mktemp("model") / "tiny"))
    with TestClient(app, base_url=HOST) as client:
        card = client.get("/api/model").json()
        yield client, explorer, card["attention"], card["examples"][0]["id"]


def maps_of(answer):
    packed = answer["map"]
    content = np.frombuffer(base64.b64decode(packed["values"]), dtype=np.uint8)
    return content.reshape(answer["heads"], packed["rows"], packed["columns"]) / 255


def test_heads_read_what_the_library_records(served):
    client, explorer, layers, id = served
    number = [layer["name"] for layer in layers].index(LAYER)
    assert layers[number]["places"]
    images = as_inputs(explorer, client.get(f"/api/images/{id}/picture.png").content)
    with torch.no_grad(), record(explorer.model, LAYER) as recorded:
        explorer.model(images)
    weights = recorded[LAYER][0]  # (h, keys, H, W of queries)
    rows, columns = weights.shape[2:]
    whole = client.get(f"/api/images/{id}/heads", params={"view": number}).json()
    read = stretch(weights.mean((2, 3)).unflatten(1, (rows, columns)))
    assert np.allclose(maps_of(whole), read, atol=0.01)
    corner = client.get(f"/api/images/{id}/heads", params={"view": number, "x": 1, "y": 0}).json()
    assert np.allclose(maps_of(corner), stretch(weights[:, :, 0, -1].unflatten(1, (rows, columns))), atol=0.01)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_every_family_shows_what_heads_read_and_nothing_that_is_no_picture(name, tmp_path):
    save_small(tmp_path / "small", name, classes=tuple(CATEGORIES))
    app, explorer = application(str(tmp_path / "small"))
    with TestClient(app, base_url=HOST) as client:
        card = client.get("/api/model").json()
        id = card["examples"][0]["id"]
        layers = [layer["name"] for layer in card["attention"]]
        assert layers
        assert not [layer for layer in layers if layer.endswith(("channel_attention", "unmixed"))]
        images = as_inputs(explorer, client.get(f"/api/images/{id}/picture.png").content)
        for query, point in (({}, None), ({"x": 0.9, "y": 0.2}, (0.9, 0.2))):
            expected = read_from(explorer.model, images, point)
            for number in (0, len(layers) // 2, len(layers) - 1):
                answer = client.get(f"/api/images/{id}/heads", params={"view": number, **query}).json()
                maps = expected[layers[number]][0]
                assert answer["heads"] == len(maps)
                assert answer["map"]["rows"] == answer["map"]["columns"]  # as of the picture
                assert np.allclose(maps_of(answer), stretch(reduced(maps)), atol=0.02), layers[number]


@pytest.mark.parametrize(("query", "words"), [("view=99", "view=99"), ("view=0&x=2&y=0", "x: "), ("", "view: ")])
def test_bad_questions_get_one_sentence(served, query, words):
    client, _, _, id = served
    answer = client.get(f"/api/images/{id}/heads?{query}")
    assert answer.status_code == 422
    assert words in answer.json()["error"]
