"""A place that the user marks: what hiding it does to the examples, and the mark as a region."""

import pytest
import torch
from starlette.testclient import TestClient

from tests.support.explorer import HOST, application, as_inputs, save_lively_model
from vitreous.data.regions import regions_from
from vitreous.suspects.changes import filled


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    app, explorer = application(save_lively_model(tmp_path_factory.mktemp("model") / "tiny"))
    with TestClient(app, base_url=HOST) as client:
        yield client, explorer, [one["id"] for one in client.get("/api/model").json()["examples"]]


def test_pictures_that_lose_most_without_a_place_come_first(served):
    client, explorer, ids = served
    found = client.get(f"/api/images/{ids[0]}/place", params={"box": "0,0,0.5,0.5"}).json()
    assert found["name"] == "upper left corner"
    assert {row["id"] for row in found["pictures"]} == set(ids[1:])
    lost = [row["before"] - row["after"] for row in found["pictures"]]
    assert lost == sorted(lost, reverse=True)
    assert found["changed"] == sum(row["becomes"] != row["answer"] for row in found["pictures"])
    row = found["pictures"][0]
    images = as_inputs(explorer, client.get(f"/api/images/{row['id']}/picture.png").content)
    mask = torch.zeros_like(images[:, :1])
    mask[..., : images.shape[2] // 2, : images.shape[3] // 2] = 1
    with torch.no_grad():
        number = explorer.trained.classes.index(row["answer"])
        after = explorer.model(filled(images, mask)).softmax(1)[0, number].item()
    assert row["after"] == pytest.approx(after, abs=1e-4)


def test_any_answer_without_a_part(served):
    client, explorer, ids = served
    images = as_inputs(explorer, client.get(f"/api/images/{ids[0]}/picture.png").content)
    mask = torch.zeros_like(images[:, :1])
    mask[..., images.shape[3] // 2 :] = 1
    with torch.no_grad():
        before, after = (explorer.model(seen).softmax(1)[0] for seen in (images, filled(images, mask)))
    found = client.get(f"/api/images/{ids[0]}/hidden", params={"box": "0.5,0,1,1", "target": 3}).json()
    assert found["name"] == "right edge"
    assert found["changed"] == bool(before.argmax() != after.argmax())
    for row in found["classes"]:
        assert row["before"] == pytest.approx(before[row["number"]].item(), abs=1e-4)
        assert row["probability"] == pytest.approx(after[row["number"]].item(), abs=1e-4)
    assert found["log_odds_before"] == pytest.approx(before[3].logit().item(), abs=1e-3)
    assert found["log_odds"] == pytest.approx(after[3].logit().item(), abs=1e-3)


def test_marks_are_regions_that_other_verbs_read(served):
    client, _, ids = served
    found = client.get(f"/api/images/{ids[0]}/place", params={"box": "0,0.25,1,0.75"}).json()
    place, look = regions_from({"regions": [found["region"], found["look"]]})
    assert (place.match, look.match) == ("place", "look")
    assert place.box == look.box == (0, 0.25, 1, 0.75)


@pytest.mark.parametrize("box", ["", "0,0,1", "a,b,c,d", "0,0,2,1", "nan,0,1,1", "0.5,0.5,0.5,0.9", "0.9,0,0.1,1"])
@pytest.mark.parametrize("address", ["place", "hidden"])
def test_boxes_that_hide_nothing_are_refused(served, address, box):
    client, _, ids = served
    answer = client.get(f"/api/images/{ids[0]}/{address}", params={"box": box})
    assert answer.status_code == 422
    assert box in answer.json()["error"]
