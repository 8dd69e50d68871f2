"""The page of a detector, a segmenter or a keypoint model: findings stand where classes do, and are explained alike."""

import io

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from tests.support.explorer import HOST, REASON, application, png, save_chosen
from tests.support.tiny_model import TASK_ARGS, save_tiny_dense
from vitreous.attribution.target import BoxTarget
from vitreous.clusters.gates import gated, without
from vitreous.data.coco_masks import decode_mask
from vitreous.heads.detect import DETECTORS
from vitreous.predict import predict
from vitreous.runs.model_folder import load_model
from vitreous.serve import check_answers, open_explorer
from vitreous.tasks.detect import CandidateBoxes, matched_scores

CLASSES = {"detect": ("disc", "box"), "segment": ("background", "disc", "box"), "keypoints": ("figure",)}
NAMES = {"detect": "box 1: ", "segment": "region 1: ", "keypoints": "joint 1: "}


@pytest.fixture(scope="module", params=CLASSES)
def served(request, tmp_path_factory):
    task = request.param
    app, explorer = application(save_tiny_dense(tmp_path_factory.mktemp("model") / task, task, CLASSES[task]))
    check_answers(explorer.trained)
    with TestClient(app, base_url=HOST) as client:
        yield client, explorer, upload(client)


def upload(client) -> str:
    sent = client.post("/api/images?name=a.png", content=png(1, side=80), headers={"Content-Type": "image/png"})
    assert sent.status_code == 201
    return sent.json()["id"]


def ask(client, path: str) -> dict:
    reply = client.get(f"/api/{path}")
    assert reply.status_code == 200, reply.text
    return reply.json()


def test_findings_stand_where_classes_do(served):
    client, explorer, id = served
    card = ask(client, "model")
    assert card["task"] == explorer.trained.task
    assert [stage["stage"] for stage in card["stages"]] == [1, 2, 3]
    found = ask(client, f"images/{id}")
    assert found["classes"][0]["name"].startswith(NAMES[card["task"]])
    assert [row["number"] for row in found["classes"]] == list(range(len(found["classes"])))
    assert all(0 <= row["probability"] <= 1 for row in found["classes"])
    assert all(("box" in row) == (card["task"] == "detect") for row in found["classes"])
    drawing, plain, marked = (
        Image.open(io.BytesIO(client.get(f"/api/images/{id}/{name}").content))
        for name in ("drawing.png", "picture.png", "picture.png?target=0")
    )
    assert drawing.width >= 320
    assert plain.size == (64, 64) or card["task"] != "keypoints"
    assert marked.width / marked.height == plain.width / plain.height
    assert marked.convert("RGB").tobytes() != plain.convert("RGB").resize(marked.size, 3).tobytes()


def test_a_hidden_part_takes_findings_their_scores(served):
    client, _, id = served
    found = ask(client, f"images/{id}/hidden?box=0,0,1,1&target=0")
    before = ask(client, f"images/{id}")["classes"]
    assert [row["before"] for row in found["classes"]] == [row["probability"] for row in before]
    assert any(row["probability"] != row["before"] for row in found["classes"])


def test_what_is_pointed_at_is_the_finding_there(served):
    client, explorer, id = served
    item = explorer.receive(png(1, side=80), "a.png")
    task, inspection = explorer.trained.task, item.inspection
    height, width = inspection.view.original
    for number, (finding, _) in enumerate(item.findings):
        if task == "detect":
            left, top, right, bottom = finding["box"]
            x, y = (left + right) / 2 / width, (top + bottom) / 2 / height
        elif task == "segment":
            rows, columns = (inspection.prediction["semantic"] == CLASSES[task].index(finding["class"])).nonzero().T
            x, y = (columns[0].item() + 0.5) / width, (rows[0].item() + 0.5) / height
        else:
            row, column = item.findings[number][1].places[0].tolist()
            rows, columns = inspection.prediction["grid"].tolist()
            x, y = (column + 0.5) / columns, (row + 0.5) / rows
        met = ask(client, f"images/{id}/pointed?x={x}&y={y}")["number"]
        if task == "segment":
            assert met == number
        elif task == "detect":  # another box may lie within this one, none around the point is smaller
            areas = [(b[2] - b[0]) * (b[3] - b[1]) for b in (one["box"] for one, _ in item.findings)]
            assert areas[met] <= areas[number] + 1e-3
        else:
            places = [tuple(target.places[0].tolist()) for _, target in item.findings]
            assert places[met] == places[number]


def test_a_finding_is_explained_as_a_class_is(served):
    client, explorer, id = served
    last = len(ask(client, f"images/{id}")["classes"]) - 1
    stage = ask(client, f"images/{id}/stages/3?target={last}")
    assert len(stage["importance"]["values"]) == 6
    exact = ask(client, f"images/{id}/stages/3/importance?by=ablation&target={last}")["values"]
    removed = ask(client, f"images/{id}/stages/3/ablation?off=2&target={last}")
    assert removed["log_odds_before"] - removed["log_odds"] == pytest.approx(exact[2], abs=1e-4)
    assert len(ask(client, f"images/{id}/load?target={last}")["stages"]) == 3
    heat = ask(client, f"images/{id}/heat?method=token_gradient&target={last}")
    assert heat["map"]["rows"] > 1
    if explorer.trained.task == "keypoints":  # the quickest
        page = client.get(f"/api/images/{id}/report.html?target={last}").text
        assert f"explained: <b>joint {last + 1}: " in page


def test_scores_without_a_cluster_are_those_of_the_model(served):
    client, explorer, id = served
    before = ask(client, f"images/{id}")["classes"]
    rows = ask(client, f"images/{id}/stages/3/ablation?off=0,3")["classes"]
    assert [row["before"] for row in rows] == pytest.approx([row["probability"] for row in before], abs=1e-6)
    if explorer.trained.task != "keypoints":
        return
    picture = Image.open(io.BytesIO(client.get(f"/api/images/{id}/picture.png").content)).convert("RGB")
    pixels = torch.frombuffer(bytearray(picture.tobytes()), dtype=torch.uint8).view(64, 64, 3).permute(2, 0, 1)
    with torch.no_grad():
        whole = explorer.model(explorer.trained.preprocess.normalise_bytes(pixels)[None])[0].flatten(1)
        with gated(explorer.model, 3, logit_gate=without([0, 3], 6)):
            less = explorer.model(explorer.trained.preprocess.normalise_bytes(pixels)[None])[0].flatten(1)
    joint = TASK_ARGS["keypoints"]["names"].index(rows[0]["name"].removeprefix("joint 1: "))
    expected = less[joint, whole[joint].argmax()].clamp(0, 1).item()
    assert rows[0]["probability"] == pytest.approx(expected, abs=1e-5)


def test_unknown_findings_and_a_picture_without_any(served, tmp_path):
    client, explorer, id = served
    for path in ("picture.png?target=99", "stages/3?target=99", "heat?method=grad_cam&target=99"):
        reply = client.get(f"/api/images/{id}/{path}")
        assert reply.status_code == 422
        assert "finding 99 does not exist; this picture has findings 0 to" in reply.json()["error"]
    if explorer.trained.task != "detect":
        return
    strict = dict(TASK_ARGS["detect"]["head_args"], score_threshold=0.99)
    app, _ = application(save_tiny_dense(tmp_path / "strict", "detect", CLASSES["detect"], head_args=strict))
    with TestClient(app, base_url=HOST) as other:
        id = upload(other)
        found = ask(other, f"images/{id}")
        assert (found["classes"], found["nothing"]) == ([], "the model found no object")
        reply = other.get(f"/api/images/{id}/stages/3")
        assert reply.status_code == 422
        assert "there is nothing to explain: the model found no object" in reply.json()["error"]
        assert "nothing to explain: the model found no object" in other.get(f"/api/images/{id}/report.html").text


def test_a_detector_is_asked_for_the_classes_of_its_findings(tmp_path):
    trained = load_model(save_tiny_dense(tmp_path / "detect", "detect", CLASSES["detect"]))
    images = torch.rand(2, 3, 64, 64)
    both, second = (CandidateBoxes(trained.model, classes, (64, 64))(images) for classes in ((0, 1), (1,)))
    for many, few in zip(both, second, strict=True):
        assert many["labels"].unique().tolist() == [0, 1]
        for key in few:
            assert torch.equal(many[key][many["labels"] == 1], few[key])


def test_the_default_of_a_run_goes_first_here_too(tmp_path):
    folder = save_chosen(save_tiny_dense(tmp_path / "model", "keypoints", CLASSES["keypoints"]), "token_gradient")
    app, _ = application(folder)
    with TestClient(app, base_url=HOST) as client:
        card = ask(client, "model")
        assert (card["chosen"]["method"], card["chosen"]["reason"]) == ("token_gradient", REASON)
        assert card["methods"][0]["name"] == "token_gradient"
        page = client.get(f"/api/images/{upload(client)}/report.html").text
    assert '<b>Look first at <span class="name">token_gradient</span>.</b>' in page
    assert REASON in page


TWO_STAGES = dict(channels=16, hidden=32, proposals=50, score_threshold=0.0)
ONE_STAGE = dict(channels=16, convs=1, score_threshold=0.0)
HEADS = {
    "fcos": ONE_STAGE,
    "retinanet": ONE_STAGE,
    "atss": ONE_STAGE,
    "fasterrcnn": TWO_STAGES,
    "maskrcnn": TWO_STAGES,
    "sparsercnn": dict(channels=16, proposals=10, rounds=2, inner=8, hidden=32, score_threshold=0.0),
    "ssd": dict(size=64, score_threshold=0.0),
    "ssdlite": dict(size=64, score_threshold=0.0),
}


@pytest.mark.parametrize("kind", [*HEADS, "segment", "keypoints"])
def test_the_page_tells_the_numbers_of_predict_in_their_order(kind, tmp_path):
    """Of a picture that has to be scaled and filled up; with no cluster switched off the numbers stay."""
    assert set(HEADS) == set(DETECTORS)
    task = "detect" if kind in HEADS else kind
    head = dict(head=kind, head_args=HEADS[kind]) if kind in HEADS else {}
    folder = save_tiny_dense(tmp_path / kind, task, CLASSES[task], **head)
    noise = np.random.default_rng(3).integers(0, 255, (7, 13, 3), dtype=np.uint8)
    picture = Image.fromarray(noise).resize((91, 50), Image.Resampling.BICUBIC)
    picture.save(tmp_path / "photo.png")
    (answer,) = predict(folder, (str(tmp_path / "photo.png"),), device="cpu")
    said = answer["predictions"]
    if task == "keypoints":
        expected = sorted(said[0]["keypoints"][2::3], reverse=True)
    elif task == "segment":
        shares = {row["class"]: decode_mask(row["segmentation"], 50, 91).mean() for row in said}
        expected = [share for _, share in sorted(shares.items(), key=lambda one: (one[0] == "background", -one[1]))]
    else:
        expected = [row["score"] for row in said[:10]]
    explorer = open_explorer(folder)
    item = explorer.see(picture, "photo.png")
    rows = explorer.predict(item)["classes"]
    assert [row["probability"] for row in rows] == pytest.approx(expected, abs=1e-6)
    shown = [row["probability"] for row in rows if "background" not in row["name"]]
    assert shown == sorted(shown, reverse=True)
    if task == "detect":
        assert [row["name"].partition(": ")[2] for row in rows] == [row["class"] for row in said[:10]]
    same = explorer.ablate(item, 3, None, ())
    assert [row["before"] for row in same["classes"]] == pytest.approx(expected, abs=1e-6)
    assert [row["probability"] for row in same["classes"]] == pytest.approx(expected, abs=1e-4)


def test_a_box_that_is_gone_has_no_score_and_a_neighbour_does_not_answer_for_it():
    """The number behind a finding may be a better box's that overlaps; its score may not."""
    box = torch.tensor([[0.0, 0.0, 10.0, 10.0]])
    target = BoxTarget(labels=torch.tensor([0]), boxes=box)
    near = torch.tensor([[0.0, 0.0, 10.0, 19.0]])  # overlaps by more than half, and is much surer
    answers = {"boxes": torch.cat([near, box]), "labels": torch.tensor([0, 0]), "scores": torch.tensor([0.9, 0.3])}
    assert target.on("probability")([answers]).item() > 0.45
    assert matched_scores([target], answers) == pytest.approx([0.3])
    assert matched_scores([target], {key: value[:1] for key, value in answers.items()}) == pytest.approx(
        [0.9]
    )  # it has moved
    elsewhere = answers | {"boxes": answers["boxes"] + 50}
    assert matched_scores([target], elsewhere) == [0.0]
    assert matched_scores([target], answers | {"labels": torch.tensor([1, 1])}) == [0.0]
