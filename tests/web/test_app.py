"""What the page is told: predictions, maps, rankings and ablations, each equal to what the library computes."""

import asyncio
import base64
import io
import itertools
import re
import threading
from dataclasses import replace

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from tests.support.explorer import (
    HOST,
    REASON,
    application,
    as_inputs,
    exchange,
    png,
    save_chosen,
    save_lively_model,
    save_refinement,
    steps_of,
)
from tests.support.tiny_model import save_tiny_model
from vitreous.attribution.catalogue import find_method
from vitreous.attribution.method import find_trunk
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.gates import PartialForward, cluster_layer, gated, without
from vitreous.clusters.groups import ablate_groups
from vitreous.clusters.importance import RANKINGS
from vitreous.clusters.layer import stretch
from vitreous.clusters.load import causal_load
from vitreous.data.pictures import find_pictures
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.errors import InputError
from vitreous.explanations.default_method import NOT_MEASURED
from vitreous.explanations.explaining import Plan, explain_image
from vitreous.layers.tap import record
from vitreous.web.app import STATIC_FILES
from vitreous.web.guard import Limits

CLOSE = 1e-4  # log-odds of up to 100 in single precision; batches of another size add in another order


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    folder = save_lively_model(tmp_path_factory.mktemp("model") / "tiny")
    app, explorer = application(folder)
    with TestClient(app, base_url=HOST) as client:
        yield client, explorer, folder


@pytest.fixture(scope="module")
def client(served):
    return served[0]


@pytest.fixture(scope="module")
def explorer(served):
    return served[1]


@pytest.fixture(scope="module")
def example(client):
    return client.get("/api/model").json()["examples"][0]["id"]


@pytest.fixture(scope="module")
def inputs(explorer, client, example):
    return as_inputs(explorer, client.get(f"/api/images/{example}/picture.png").content)


def unpack(packed, count):
    content = np.frombuffer(base64.b64decode(packed["values"]), dtype=np.uint8)
    return content.reshape(count, packed["rows"], packed["columns"]) / 255


def predicted(model, inputs):
    return ClassTarget(labels=model(inputs).argmax(1))


def test_card_says_what_there_is(client):
    card = client.get("/api/model").json()
    assert [(row["stage"], row["name"], row["clusters"]) for row in card["stages"]] == [
        (1, "stage 1", 6),
        (2, "stage 2", 6),
        (3, "stage 3", 12),
    ]
    assert len(card["examples"]) == 10
    assert {"grad_cam", "occlusion", "token_gradient"} <= {method["name"] for method in card["methods"]}
    assert {"ablation", "logit_gate"} <= {ranking["name"] for ranking in card["rankings"]}
    assert "random" not in {ranking["name"] for ranking in card["rankings"]}


def test_the_page_is_small_and_complete(client):
    sizes = {address: len(client.get(address).content) for address in STATIC_FILES}
    assert sum(sizes.values()) < 150_000
    scripts = [client.get(address).text for address in STATIC_FILES if address.endswith((".js", "/"))]
    naming = re.compile(r'(?:from "\./|src="|rel="stylesheet" href=")([\w.]+)"')
    asked = {name for script in scripts for name in naming.findall(script)}
    assert asked == {address[1:] for address in STATIC_FILES if address != "/"}


def test_the_part_that_the_model_sees_is_known(client):
    wide = io.BytesIO()
    Image.new("RGB", (300, 100), "red").save(wide, "PNG")
    id = client.post("/api/images?name=wide.png", content=wide.getvalue()).json()["id"]
    assert client.get(f"/api/images/{id}").json()["window"] == pytest.approx([1 / 3, 0, 2 / 3, 1], abs=0.01)


def test_examples_are_there_as_sharp_as_they_are(client, example):
    sharp = Image.open(io.BytesIO(client.get(f"/api/images/{example}/sharp.jpg").content))
    seen = Image.open(io.BytesIO(client.get(f"/api/images/{example}/picture.png").content))
    assert sharp.width / sharp.height == seen.width / seen.height
    id = client.post("/api/images?name=mine.png", content=png(3)).json()["id"]
    assert client.get(f"/api/images/{id}/sharp.jpg").status_code == 404  # the browser has it itself


def test_upload_is_predicted(client, explorer):
    sent = client.post("/api/images", params={"name": "mine.png"}, content=png(3))
    assert sent.status_code == 201
    answer = client.get(f"/api/images/{sent.json()['id']}").json()
    assert answer["name"] == "mine.png"
    assert answer["true"] is None
    with torch.no_grad():
        probabilities = explorer.model(as_inputs(explorer, png(3)))[0].softmax(0)
    assert [row["number"] for row in answer["classes"]] == probabilities.topk(5).indices.tolist()
    for row in answer["classes"]:
        assert row["name"] == CATEGORIES[row["number"]]
        assert row["probability"] == pytest.approx(probabilities[row["number"]].item(), abs=CLOSE)


def test_the_same_upload_has_the_same_id(client):
    sent = [client.post("/api/images", content=png(i)).json()["id"] for i in (1, 2, 1)]
    assert sent[0] == sent[2] != sent[1]


def test_true_class_is_always_among_the_shown(client):
    for item in client.get("/api/model").json()["examples"]:
        answer = client.get(f"/api/images/{item['id']}").json()
        assert answer["true"] in [row["name"] for row in answer["classes"]]


def test_stage_gives_maps_attention_and_quick_scores(client, explorer, example, inputs):
    answer = client.get(f"/api/images/{example}/stages/2").json()
    layer = cluster_layer(explorer.model, 2)
    with torch.no_grad(), record(find_trunk(explorer.model), layer.tap, "stages.1.blocks.*.attention.map") as maps:
        explorer.model(inputs)
    step = 0.5 / 255 + 1e-6  # rounding to bytes
    np.testing.assert_allclose(unpack(answer["maps"], 6), stretch(maps[layer.tap][0]).numpy(), atol=step)
    (attention,) = [tensor for tap, tensor in maps.items() if tap != layer.tap]  # one block: (1, h, M, H, W)
    read = unpack(answer["attention"], 6) * answer["attention"]["highest"]
    np.testing.assert_allclose(read, attention[0].mean(0).numpy(), atol=step)
    np.testing.assert_allclose(read.sum(0), 1, atol=6 * step)  # every patch spreads all its attention
    quick = RANKINGS["logit_gate"](explorer.model, inputs, predicted(explorer.model, inputs), layer)[0]
    np.testing.assert_allclose(answer["importance"]["values"], quick.numpy(), atol=CLOSE)


@pytest.mark.parametrize("by", ["ablation", "masking", "integrated", "attention_mass"])
def test_rankings_are_those_of_the_library(client, explorer, example, inputs, by):
    answer = client.get(f"/api/images/{example}/stages/3/importance", params={"by": by}).json()
    layer, target = cluster_layer(explorer.model, 3), predicted(explorer.model, inputs)
    expected = RANKINGS[by](explorer.model, inputs, target, layer)[0]
    np.testing.assert_allclose(answer["values"], expected.detach().numpy(), atol=CLOSE)
    label = torch.tensor(client.get(f"/api/images/{example}/stages/3").json()["groups"])
    if by == "ablation":
        joint = ablate_groups(PartialForward(explorer.model, inputs, layer), target, label)[0]
        np.testing.assert_allclose(answer["groups"], joint.numpy(), atol=CLOSE)
    elif by == "masking":
        assert "groups" not in answer
    else:
        sums = [expected[label == group].sum().item() for group in range(int(label.max()) + 1)]
        np.testing.assert_allclose(answer["groups"], sums, atol=CLOSE)


def test_live_ablation_is_exact(client, explorer, example, inputs):
    """What the page shows for one cluster switched off is that cluster's place in the exact ranking."""
    ranking = client.get(f"/api/images/{example}/stages/3/importance", params={"by": "ablation"}).json()["values"]
    target = predicted(explorer.model, inputs)
    for off in [(m,) for m in range(12)] + [(0, 5), (1, 2, 3, 4)]:
        answer = client.get(f"/api/images/{example}/stages/3/ablation", params={"off": ",".join(map(str, off))}).json()
        with torch.no_grad(), gated(explorer.model, 3, logit_gate=without(off, 12)):
            output = explorer.model(inputs)
        assert answer["off"] == list(off)
        assert answer["log_odds"] == pytest.approx(target(output).item(), abs=CLOSE)
        probabilities = output[0].softmax(0)
        for row in answer["classes"]:
            assert row["probability"] == pytest.approx(probabilities[row["number"]].item(), abs=CLOSE)
        if len(off) == 1:
            lost = answer["log_odds_before"] - answer["log_odds"]
            assert lost == pytest.approx(ranking[off[0]], abs=CLOSE)
    assert max(abs(value) for value in ranking) > 10 * CLOSE  # or the comparison would say nothing


def test_another_class_can_be_explained(client, example):
    numbers = [row["number"] for row in client.get(f"/api/images/{example}").json()["classes"]]
    first, second = (
        client.get(f"/api/images/{example}/stages/3/ablation", params={"off": "0", "target": number}).json()
        for number in numbers[:2]
    )
    assert first["log_odds_before"] > second["log_odds_before"]


def test_load_is_that_of_the_library(client, explorer, example, inputs):
    answer = client.get(f"/api/images/{example}/load").json()["stages"]
    loads = causal_load(explorer.model, inputs, predicted(explorer.model, inputs))
    assert [row["stage"] for row in answer] == [1, 2, 3]
    for row, load in zip(answer, loads, strict=True):
        assert row["uniform"] == pytest.approx(load.drop("uniform").item(), abs=CLOSE)
        assert row["carries"] == bool(load.carries)


def test_every_offered_method_answers(client, example):
    for method in client.get("/api/model").json()["methods"]:
        if method["passes"] > 20:
            continue  # the same code at a higher price
        answer = client.get(f"/api/images/{example}/heat", params={"method": method["name"], "stage": 2})
        assert answer.status_code == 200, answer.text
        heat = unpack(answer.json()["map"], 1)
        assert heat.max() == 1 or answer.json()["high"] <= answer.json()["low"]


def test_method_at_a_stage(client, example):
    coarse, fine = (
        client.get(f"/api/images/{example}/heat", params={"method": "grad_cam", "stage": stage}).json()["map"]
        for stage in (4, 1)
    )
    assert (coarse["rows"], fine["rows"]) == (2, 16)


def test_report_is_that_of_the_library(client, explorer, example, inputs):
    answer = client.get(f"/api/images/{example}/report.html", params={"top_k": 2, "stage": 2, "target": 3})
    assert answer.headers["content-disposition"] == 'attachment; filename="report.html"'
    (picture,) = find_pictures(["shapes:val:0"], size=(64, 64))
    explained = explain_image(
        explorer.model,
        picture.load(),
        preprocess=explorer.trained.preprocess,
        classes=explorer.trained.classes,
        name="shapes:val:0",
        true=picture.label,
        target=3,
        plan=NOT_MEASURED.applied(Plan(stage=2)),
    )
    assert answer.text == replace(explained, facts={"model": "paca_tiny"}).html(top_k=2)


@pytest.mark.parametrize(
    ("path", "status", "words"),
    [
        ("/api/images/nobody", 404, "upload it again"),
        ("/api/images/nobody/picture.png", 404, "upload it again"),
        ("/api/images/nobody/stages/1", 404, "upload it again"),
        ("/api/nothing", 404, "nothing at this address"),
        ("/api/images", 405, "GET is not possible"),
        ("/api/images/ID/stages/4", 422, "stages with clusters: 1, 2, 3"),
        ("/api/images/ID/stages/0", 422, "stage: input should be greater"),
        ("/api/images/ID/stages/x", 422, "given: 'x'"),
        ("/api/images/ID/stages/3?target=10", 422, "classes 0 to 9"),
        ("/api/images/ID/stages/3?target=1e9", 422, "target"),
        ("/api/images/ID/stages/3/importance?by=magic", 422, "known: masking"),
        ("/api/images/ID/stages/3/importance", 422, "by: field required"),
        ("/api/images/ID/stages/3/ablation?off=12", 422, "clusters 0 to 11"),
        ("/api/images/ID/stages/3/ablation?off=1,x", 422, "off=3,7"),
        ("/api/images/ID/stages/3/ablation?off=0,1,2,3,4,5,6,7,8,9,10,11", 422, "keep at least one"),
        ("/api/images/ID/pointed?x=0.5&y=0.5", 422, "choose one of its classes"),
        ("/api/images/ID/pointed?x=2&y=0.5", 422, "x: input should be less"),
        ("/api/images/ID/hidden?box=0,0,1,1&target=10", 422, "classes 0 to 9"),
        ("/api/images/ID/heat?method=grad_camera", 422, "nearest: grad_cam"),
        ("/api/images/ID/heat?method=class_attention", 422, "cannot be used here"),
        ("/api/images/ID/heat?method=grad_cam&stage=9", 422, "stages 1 to 4"),
        ("/api/images/ID/report.html?top_k=0", 422, "top_k"),
    ],
)
def test_bad_questions_get_one_sentence(client, example, path, status, words):
    answer = client.get(path.replace("ID", example))
    assert answer.status_code == status
    assert list(answer.json()) == ["error"]
    assert words in answer.json()["error"]


def test_without_a_measurement_the_page_says_so(client):
    card = client.get("/api/model").json()
    assert card["chosen"]["method"] is None
    assert "was not measured on a data set; vitreous score RUN DATA does that" in card["chosen"]["reason"]
    assert {tuple(method["labels"]) for method in card["methods"]} == {()}


def test_the_measured_method_comes_first_and_doubtful_ones_are_labelled(tmp_path):
    folder = save_chosen(save_tiny_model(tmp_path / "tiny"), "token_gradient", beaten="grad_cam")
    app, _ = application(folder)
    with TestClient(app, base_url=HOST) as client:
        card = client.get("/api/model").json()
        assert card["chosen"] == {
            "method": "token_gradient",
            "reason": REASON,
            "measured_on": "9 images of photos (val)",
        }
        assert card["refinement"] == []  # the file does not tell what methods cost
        first, *others = card["methods"]
        assert (first["name"], first["labels"]) == ("token_gradient", ["most faithful on photos (val)"])
        labels = {method["name"]: method["labels"] for method in others}
        assert labels.pop("grad_cam") == ["no better than its controls"]
        assert set(map(tuple, labels.values())) == {()}
        page = client.get(f"/api/images/{card['examples'][0]['id']}/report.html").text
        assert REASON in page
        assert '<b class="name">token_gradient</b><span class="label mark">default</span>' in page


def test_defaults_of_growing_budgets_follow_each_other(tmp_path):
    found = {1: "learned", 3: "gradient_contrast", 10: "gradient_contrast", 50: "grad_cam stage 2", 81: "occlusion"}
    app, _ = application(save_refinement(save_tiny_model(tmp_path / "tiny"), found | {300: "rise"}))
    with TestClient(app, base_url=HOST) as client:
        card = client.get("/api/model").json()
        # One that was learned is there no more; one of more than a hundred passes waits until it is chosen.
        assert card["refinement"] == ["gradient_contrast", "grad_cam stage 2", "occlusion"]
        assert card["chosen"]["method"] == card["methods"][0]["name"] == "rise"
        known = {method["name"]: method for method in card["methods"]}
        assert known["gradient_contrast"]["measured"] == pytest.approx({"mean": 0.2, "low": 0.15, "high": 0.25})
        assert known["input_gradient"]["measured"] is None
        asked = {"method": "grad_cam stage 2", "background": True}
        assert client.get(f"/api/images/{card['examples'][0]['id']}/heat", params=asked).status_code == 200


def test_a_map_in_turns_is_that_of_its_method(explorer):
    steps, answer = steps_of(explorer.heat(explorer.receive(png(), "mine.png"), "score_cam", None, None))
    assert steps > 1  # others may ask in between
    images = as_inputs(explorer, png())
    heat = find_method("score_cam", explorer.model)(explorer.model, images, predicted(explorer.model, images))
    assert (answer["low"], answer["high"]) == pytest.approx((heat.min().item(), heat.max().item()), abs=CLOSE)


def test_a_map_in_the_background_is_abandoned_when_nobody_waits(client, explorer, example, monkeypatch):
    begun, ended = threading.Event(), threading.Event()

    def endless(*_):
        try:
            while True:
                begun.set()
                yield
        finally:
            ended.set()

    async def receive():
        await asyncio.to_thread(begun.wait, 30)
        return {"type": "http.disconnect"}

    monkeypatch.setattr(explorer, "heat", endless)
    reply = exchange(client.app, f"/api/images/{example}/heat", receive, query=b"method=rise&background=true")
    assert ended.wait(30)
    assert reply.status == 204
    assert client.get("/api/health").json()["unfinished"] == 0


def test_a_measured_method_that_does_not_fit_is_refused_before_there_is_a_page(tmp_path):
    folder = save_chosen(save_tiny_model(tmp_path / "plain", clusters=(0, 0, 0, 0)), "token_gradient")
    with pytest.raises(InputError, match="cannot be used here: PaCa has no clusters"):
        application(folder)


def test_model_without_clusters_says_what_it_has(tmp_path):
    app, _ = application(save_tiny_model(tmp_path / "plain", clusters=(0, 0, 0, 0)))
    with TestClient(app, base_url=HOST) as client:
        card = client.get("/api/model").json()
        assert card["stages"] == []
        assert "has no clusters" in card["inside"]
        assert "patch to patch" in card["inside"]
        id = card["examples"][0]["id"]
        answer = client.get(f"/api/images/{id}/stages/1")
        assert answer.status_code == 422
        assert "no clusters to explain; it has" in answer.json()["error"]
        assert "shapes:val:0" in client.get(f"/api/images/{id}/report.html").text
        assert client.get(f"/api/images/{id}/load").json() == {"stages": []}
        assert client.get(f"/api/images/{id}/heat", params={"method": "grad_cam"}).status_code == 200


def test_a_fault_inside_is_not_shown(served, monkeypatch, example):
    client, explorer, _ = served
    quiet = TestClient(client.app, base_url=HOST, raise_server_exceptions=False)

    def broken(*_):
        raise RuntimeError("secret detail")

    monkeypatch.setattr(explorer, "predict", broken)
    fresh = client.post("/api/images", content=png(7)).json()["id"]
    answer = quiet.get(f"/api/images/{fresh}")
    assert answer.status_code == 500
    assert "secret" not in answer.text
    assert "its console says what" in answer.json()["error"]


def test_numbers_that_are_none_are_refused(served, monkeypatch):
    client, explorer, _ = served
    fresh = client.post("/api/images", content=png(8)).json()["id"]
    monkeypatch.setattr(explorer.model.head, "bias", torch.nn.Parameter(torch.full((10,), torch.nan)))
    for path in ("", "/stages/3", "/heat?method=grad_cam", "/stages/3/ablation?off=1"):
        answer = client.get(f"/api/images/{fresh}{path}")
        assert answer.status_code == 422, path
        assert "NaN" in answer.json()["error"]


def test_uploads_make_room_for_later_ones(tmp_path):
    app, _ = application(save_tiny_model(tmp_path / "tiny"), limits=Limits(picture_bytes=60_000))
    with TestClient(app, base_url=HOST) as client:
        ids = [client.post("/api/images", content=png(i)).json()["id"] for i in range(12)]
        alive = [client.get(f"/api/images/{id}/picture.png").status_code for id in ids]
        assert alive[-1] == 200
        assert alive[0] == 404
        assert [key for key, _ in itertools.groupby(alive)] == [404, 200]  # the oldest went first


def test_faithfulness_is_that_of_the_report(tmp_path):
    app, explorer = application(save_tiny_model(tmp_path / "plain", clusters=(0, 0, 0, 0)))
    trained = explorer.trained
    with TestClient(app, base_url=HOST) as client:
        id = client.get("/api/model").json()["examples"][0]["id"]
        picture = trained.preprocess.picture(find_pictures(["shapes:val:0"], size=(64, 64))[0].load())
        plan = Plan(methods=("grad_cam", "input_gradient"))
        whole = explain_image(trained.model, picture, preprocess=trained.preprocess, classes=trained.classes, plan=plan)
        number = trained.classes.index(whole.watched)
        for method in whole.methods:
            found = client.get(f"/api/images/{id}/faithfulness?method={method.name}&target={number}").json()
            assert found == {"method": method.name, "difference": pytest.approx(method.difference, abs=1e-5)}
        assert client.get(f"/api/images/{id}/faithfulness?method=nonsense").status_code == 422


def test_what_the_classifier_reads_adds_up_to_the_logit_and_switching_off_takes_its_part(tmp_path):
    app, _ = application(save_lively_model(tmp_path / "reads", readout="clusters", readout_clusters=4))
    with TestClient(app, base_url=HOST) as client:
        card = client.get("/api/model").json()
        assert card["stages"][-1] == {"stage": 5, "name": "readout of stage 4", "readout": True, "clusters": 4}
        id = client.post("/api/images", content=png()).json()["id"]
        answer = client.get(f"/api/images/{id}/stages/5").json()
        parts, by = answer["parts"], answer["importance"]
        assert by["by"] == "contribution"
        assert by["values"] == parts["values"]
        assert parts["bias"] + sum(parts["values"]) == pytest.approx(parts["logit"], abs=CLOSE)
        for off in ("1", "0,3", "0,1,2,3"):
            left = client.get(f"/api/images/{id}/stages/5/ablation", params={"off": off}).json()
            lost = sum(parts["values"][int(m)] for m in off.split(","))
            assert left["logit"] == pytest.approx(parts["logit"] - lost, abs=CLOSE)
        assert client.get(f"/api/images/{id}/stages/5/importance", params={"by": "contribution"}).json()["values"]
        refused = client.get(f"/api/images/{id}/stages/3/importance", params={"by": "contribution"})
        assert "cannot be ranked by 'contribution'" in refused.json()["error"]
        loads = client.get(f"/api/images/{id}/load").json()["stages"]
        assert loads[-1]["name"] == "readout of stage 4"
