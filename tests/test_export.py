"""`vitreous export`: what is written answers as the model does, with vitreous and without; bad input is one line."""

import importlib.util
import json
import shutil
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import numpy as np
import pytest
import torch
from PIL import Image

from tests.support.full_disk import largest_file
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.attribution.catalogue import methods_for
from vitreous.bench import bench
from vitreous.clusters.cluster_map import ClusterMap
from vitreous.clusters.exported_maps import ExportedClusters
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.export import default_folder, export
from vitreous.exports import graph, writing
from vitreous.exports.writing import Compared
from vitreous.layers.tap import record, tap_names
from vitreous.mend import mend
from vitreous.predict import predict
from vitreous.runs.model_folder import load_model, save_model
from vitreous.runs.result_shards import model_fingerprint
from vitreous.serve import open_explorer

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
pytest.importorskip("openvino", reason="the extra `export` is not installed")
CLASSES = ("ball", "box")
VERB = sys.modules["vitreous.export"]  # the module; the package has the function under this name
FILES = {"config.json", "export.json", "manifest.json", "run.py"}


def picture(width: int = 90, height: int = 70) -> Image.Image:
    noise = np.random.default_rng(0).integers(0, 255, (7, 9, 3), np.uint8)
    return Image.fromarray(noise).resize((width, height), Image.Resampling.BICUBIC)


def program(folder: Path) -> ModuleType:
    """Its run.py, imported as a stranger would."""
    spec = importlib.util.spec_from_file_location("exported_program", folder / "run.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def refusal(*args, **kwargs) -> str:
    with pytest.raises(InputError) as refused:
        export(*args, **kwargs)
    assert "\n" not in str(refused.value)
    return str(refused.value)


@pytest.fixture(scope="module")
def tiny(tmp_path_factory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("tiny") / "model")


@pytest.fixture(scope="module")
def mended(tiny: str, tmp_path_factory) -> Path:
    """With a closed cluster and its border painted over, both of which a graph must keep to."""
    return mend(tiny, without_clusters=("1",), hide="border", out=tmp_path_factory.mktemp("mended") / "model")


@pytest.fixture(scope="module")
def onnx_folder(mended: Path, tmp_path_factory) -> Path:
    return export(str(mended), to="onnx", static=True, maps=True, rounds=1, out=tmp_path_factory.mktemp("onnx") / "out")


@pytest.fixture(scope="module")
def openvino_folder(tiny: str, tmp_path_factory) -> Path:
    return export(tiny, to="openvino", static=True, rounds=1, out=tmp_path_factory.mktemp("openvino") / "out")


@pytest.fixture(scope="module")
def dense_folders(tmp_path_factory):
    """For each task a model and its export as a program of torch for any size, which is the quickest to make."""

    def both(task: str) -> tuple[str, Path]:
        if task not in made:
            place = tmp_path_factory.mktemp(task)
            model = save_tiny_dense(place / "model", task, CLASSES, name="test_convnext", backbone={"in_chans": 3})
            if task == "segment":
                halve(model)
            made[task] = model, export(model, to="torch", static=task != "segment", rounds=1, out=place / "out")
        return made[task]

    def halve(model: str) -> None:
        """Give each of two classes about half of the pixels."""
        trained, images = load_model(model), torch.randn(1, 3, 64, 96)
        with torch.no_grad():
            logits = trained.model.output(images).logits
            trained.model.decoder.classifier.bias[0] -= (logits[:, 0] - logits[:, 1]).median()
        save_model(model, trained.model, name="test_convnext", model_args={"in_chans": 3}, task="segment",
                   classes=CLASSES, preprocess=trained.preprocess, task_args=trained.task_args)  # fmt: skip

    made: dict[str, tuple[str, Path]] = {}
    return both


# ---- the folder --------------------------------------------------------------------------------------------------


def test_the_folder_is_whole_and_says_what_was_found(onnx_folder: Path, mended: Path) -> None:
    assert {path.name for path in onnx_folder.iterdir()} == FILES | {"model.onnx"}
    content = json.loads((onnx_folder / "export.json").read_text())
    assert content["graph"]["shape"] == [1, 3, 64, 64]
    assert content["graph"]["outputs"] == ["logits", *content["graph"]["maps"]]
    assert all(one["relative"] < 1e-4 for one in content["compared"])
    assert content["speed"]["speed_up"]["middle"] > 0
    assert json.loads((onnx_folder / "config.json").read_text())["vitreous"]["preprocess"]["hidden"]
    assert not (onnx_folder.parent / ".unfinished").exists()


def test_a_graph_of_any_size_is_compared_at_three(dense_folders) -> None:
    _, folder = dense_folders("segment")
    content = json.loads((folder / "export.json").read_text())
    assert content["graph"]["shape"] == [None, 3, None, None]
    assert len({tuple(one["shape"]) for one in content["compared"]}) == 3
    assert len({one["shape"][0] for one in content["compared"]}) == 3


@pytest.mark.parametrize(
    ("model", "expected"),
    [("runs/demo", "demo-onnx"), ("runs/demo/best", "demo-onnx"), ("a/w.pth", "w-onnx"), ("xcit", "xcit-onnx")],
)
def test_folders_are_named_after_model_and_target(model: str, expected: str) -> None:
    assert default_folder(model, "onnx") == Path("exports") / expected


# ---- the same answers --------------------------------------------------------------------------------------------


def test_a_mended_classifier_answers_the_same_in_onnx(onnx_folder: Path, mended: Path, tmp_path: Path) -> None:
    picture().save(tmp_path / "a.png")
    (ours,), (theirs,) = (predict(str(model), (str(tmp_path / "a.png"),)) for model in (mended, onnx_folder))
    assert [row["class"] for row in ours["predictions"]] == [row["class"] for row in theirs["predictions"]]
    chances = [[row["probability"] for row in rows["predictions"]] for rows in (ours, theirs)]
    np.testing.assert_allclose(*chances, atol=1e-5)
    found = program(onnx_folder)
    told = found.answer(found.open_picture(tmp_path / "a.png"))
    assert [name for name, _ in told] == [row["class"] for row in ours["predictions"]]
    np.testing.assert_allclose([chance for _, chance in told], chances[0], atol=1e-4)


@pytest.mark.parametrize("size", [(90, 70), (70, 91), (64, 64), (300, 20)])
def test_a_classifier_answers_the_same_in_openvino(size, openvino_folder: Path, tiny: str) -> None:
    shown = picture(*size)
    ours = load_model(tiny).predict(shown)
    np.testing.assert_allclose(load_model(openvino_folder).predict(shown).probabilities, ours.probabilities, atol=1e-5)
    told = program(openvino_folder).answer(shown)
    assert [name for name, _ in told] == ours.names
    np.testing.assert_allclose([chance for _, chance in told], ours.probabilities, atol=1e-5)


def test_the_program_of_a_graph_needs_neither_torch_nor_vitreous(onnx_folder: Path, openvino_folder: Path) -> None:
    for folder in (onnx_folder, openvino_folder):
        lines = (folder / "run.py").read_text().splitlines()
        imported = [line.split()[1] for line in lines if line.startswith(("import ", "from "))]
        assert not {"torch", "vitreous", "timm"} & set(imported)


def test_several_pictures_go_through_a_graph_for_one(onnx_folder: Path, mended: Path) -> None:
    images = torch.randn(3, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(load_model(onnx_folder).model(images), load_model(mended).model(images))


def test_an_exported_classifier_is_evaluated(onnx_folder: Path, mended: Path) -> None:
    options = dict(count=8, workers=0, device="cpu")
    ours, theirs = (evaluate(str(model), "shapes", **options) for model in (mended, onnx_folder))
    assert ours["top1"] == theirs["top1"]
    assert ours["loss"] == pytest.approx(theirs["loss"], abs=1e-5)


def test_objects_are_the_same(dense_folders) -> None:
    model, folder = dense_folders("detect")
    shown = picture()
    ours, theirs = (load_model(place).predict(shown) for place in (model, folder))
    assert len(ours) == len(theirs) > 10
    np.testing.assert_allclose(theirs.scores, ours.scores, atol=1e-4)
    np.testing.assert_allclose(theirs.boxes[:10], ours.boxes[:10], atol=0.01)
    told = program(folder).answer(shown, least=0.0)
    assert [name for name, *_ in told[:10]] == ours.names[:10]
    np.testing.assert_allclose([score for _, score, _ in told], ours.scores, atol=1e-4)
    np.testing.assert_allclose([box for *_, box in told[:10]], ours.boxes[:10], atol=0.02)


TWICE = {
    "fasterrcnn": dict(channels=8, hidden=8, proposals=30, score_threshold=0.0, anchor_sizes=(12, 24, 48, 96, 120)),
    "maskrcnn": dict(
        channels=8, hidden=8, convs=1, proposals=30, score_threshold=0.0, anchor_sizes=(12, 24, 48, 96, 120)
    ),
    "sparsercnn": dict(channels=8, hidden=8, inner=4, proposals=12, rounds=2),
}


@pytest.mark.parametrize(
    ("head", "to"),
    [
        ("maskrcnn", "torch"),
        pytest.param("sparsercnn", "torch", marks=pytest.mark.slow),
        pytest.param("maskrcnn", "onnx", marks=pytest.mark.slow),
        pytest.param("sparsercnn", "onnx", marks=pytest.mark.slow),
        pytest.param("maskrcnn", "openvino", marks=pytest.mark.slow),
        pytest.param("sparsercnn", "openvino", marks=pytest.mark.slow),
    ],
)
def test_detectors_that_look_twice_find_the_same(head: str, to: str, tmp_path: Path) -> None:
    model = save_tiny_dense(
        tmp_path / "model", "detect", CLASSES, name="test_convnext", backbone={"in_chans": 3}, head=head,
        head_args=TWICE[head],
    )  # fmt: skip
    folder = export(model, to=to, static=True, rounds=1, out=tmp_path / "out")
    shown = picture()
    ours, theirs = (load_model(place).predict(shown) for place in (model, folder))
    told = program(folder).answer(shown, least=0.0)
    assert len(ours) == len(theirs) == len(told) > 10
    assert [name for name, *_ in told] == ours.names == theirs.names
    np.testing.assert_allclose(theirs.scores, ours.scores, atol=1e-4)
    np.testing.assert_allclose(theirs.boxes, ours.boxes, atol=0.01)
    np.testing.assert_allclose([row[1] for row in told], ours.scores, atol=1e-4)
    np.testing.assert_allclose([row[2] for row in told], ours.boxes, atol=0.02)
    if head == "maskrcnn":
        assert 0.01 < ours.masks.mean() < 0.99
        assert (theirs.masks == ours.masks).mean() > 0.999
        assert (np.stack([row[3] for row in told]) == ours.masks).mean() > 0.999


def test_classes_of_pixels_are_the_same(dense_folders) -> None:
    model, folder = dense_folders("segment")
    shown = picture()
    ours = load_model(model).predict(shown).labels
    assert len(np.unique(ours)) == 2
    assert (load_model(folder).predict(shown).labels == ours).mean() > 0.999
    assert (program(folder).answer(shown) == ours).mean() > 0.999


def test_joints_are_the_same(dense_folders) -> None:
    model, folder = dense_folders("keypoints")
    shown = picture()
    ours, theirs = (load_model(place).predict(shown).points[0] for place in (model, folder))
    np.testing.assert_allclose(theirs, ours, atol=1e-3)
    told = program(folder).answer(shown)
    assert [name for name, *_ in told] == ["top", "left", "right"]
    np.testing.assert_allclose([row[1:] for row in told], ours, atol=0.02)


def test_features_are_the_maps_of_all_stages(dense_folders, tmp_path: Path) -> None:
    model, _ = dense_folders("keypoints")
    folder = export(model, to="torch", features=True, static=True, rounds=1, out=tmp_path / "out")
    images, levels = torch.randn(1, 3, 64, 64), load_model(model).model.levels
    found = program(folder).run(images.numpy())
    with torch.no_grad():
        wanted = {f"map{number}": values for number, values in enumerate(levels.maps(images), 1)}
    assert list(found) == list(wanted)
    for name, values in wanted.items():
        np.testing.assert_allclose(found[name], values, atol=1e-4)
    assert program(folder).answer(picture())["map1"].shape == wanted["map1"].shape[1:]
    with pytest.raises(InputError, match="without its head"):
        load_model(folder)


# ---- explaining --------------------------------------------------------------------------------------------------


def test_maps_of_clusters_come_out_as_they_are(onnx_folder: Path, mended: Path) -> None:
    images = torch.randn(1, 3, 64, 64)
    ours, theirs = load_model(mended).model, load_model(onnx_folder).model
    names = [name for name in tap_names(ours) if not name.endswith(".output")]
    assert tap_names(theirs) == names
    with torch.no_grad(), record(ours, *names) as wanted, record(theirs, *names) as found:
        ours(images)
        theirs(images)
    for name in names:
        torch.testing.assert_close(found[name], wanted[name], atol=1e-5, rtol=1e-4)
    heat = ClusterMap("attention_mass")(ours, images, 0)
    torch.testing.assert_close(ExportedClusters()(theirs, images, 0), heat, atol=1e-5, rtol=1e-3)


def test_methods_without_gradients_explain_an_export(onnx_folder: Path, tmp_path: Path) -> None:
    picture().save(tmp_path / "a.png")
    offered = {method.name for method in methods_for(load_model(onnx_folder).model)}
    assert {"occlusion", "exported_clusters"} <= offered
    assert not {"grad_cam", "refined_mask", "input_gradient", "score_cam", "rollout"} & offered
    explain(str(onnx_folder), (str(tmp_path / "a.png"),), out=tmp_path / "explained")
    (item,) = json.loads((tmp_path / "explained" / "explanation.json").read_text())["images"]
    assert "exported_clusters" in json.dumps(item)
    with pytest.raises(InputError, match="an exported model has no gradients"):
        explain(str(onnx_folder), (str(tmp_path / "a.png"),), method=("grad_cam",), out=tmp_path / "other")


def test_the_explorer_takes_an_export(onnx_folder: Path, mended: Path) -> None:
    explorer = open_explorer(str(onnx_folder), device="cpu")
    assert explorer.card()["stages"] == []
    assert "grad_cam" not in [method["name"] for method in explorer.card()["methods"]]
    found = explorer.predict(explorer.see(picture(), "a.png"))["classes"]
    assert [row["name"] for row in found][:3] == load_model(mended).predict(picture()).names[:3]


def test_an_export_is_not_measured_in_training(onnx_folder: Path) -> None:
    with pytest.raises(InputError, match=r"the exported model .* cannot learn"):
        bench((str(onnx_folder),), step=("train",), rounds=1)


# ---- bad input ---------------------------------------------------------------------------------------------------


def test_unknown_targets_are_refused(tiny: str, tmp_path: Path) -> None:
    assert "accepted: onnx, openvino, torch" in refusal(tiny, to="tflite", out=tmp_path / "out")


def test_a_missing_package_is_told_before_the_work(tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(graph.importlib.util, "find_spec", lambda name: None)
    assert "pip install" in refusal("no such model", to="onnx", out=tmp_path / "out")


def test_an_export_is_not_exported_again_nor_mended(onnx_folder: Path, tmp_path: Path) -> None:
    assert "exported model already" in refusal(str(onnx_folder), to="torch", out=tmp_path / "out")
    with pytest.raises(InputError, match="give the run or the model folder"):
        mend(str(onnx_folder), hide="border", out=tmp_path / "mended")


def test_what_a_model_does_not_have_is_refused(tiny: str, tmp_path: Path) -> None:
    assert "vitreous score RUN DATA --learn" in refusal(tiny, to="torch", explainer=True, out=tmp_path / "out")
    plain = save_tiny_model(tmp_path / "plain", name="test_convnext", dims=None, depths=None, heads=None, clusters=None)
    assert "no maps of clusters or attention" in refusal(plain, to="torch", maps=True, out=tmp_path / "out")


def test_a_size_that_a_static_graph_does_not_take_is_refused(onnx_folder: Path) -> None:
    with pytest.raises(InputError, match="written for 64x64 alone"):
        load_model(onnx_folder, size=96)


def test_an_operator_without_translation_leaves_nothing(tiny: str, tmp_path: Path, monkeypatch) -> None:
    def no(*_: object, **__: object) -> None:
        raise RuntimeError("Unsupported operator aten.strange\n\nmany more lines")

    monkeypatch.setattr(graph.torch.export, "export", no)
    assert "aten.strange" in refusal(tiny, to="onnx", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_graph_that_answers_differently_is_not_kept(dense_folders, tmp_path: Path, monkeypatch) -> None:
    model, _ = dense_folders("keypoints")
    monkeypatch.setattr(writing, "compare", lambda *_: [Compared((1, 3, 64, 64), 1.0, 0.5)])
    assert "does not answer as the model does" in refusal(model, to="torch", static=True, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-20])


def empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [flip, cut, empty, Path.unlink])
@pytest.mark.parametrize("name", ["model.pt2", "config.json", "export.json", "run.py", "manifest.json"])
def test_damage_to_any_file_is_seen_and_named(dense_folders, tmp_path: Path, name: str, damage) -> None:
    copied = shutil.copytree(dense_folders("keypoints")[1], tmp_path / "copied")
    damage(copied / name)
    with pytest.raises(InputError) as refused:
        load_model(copied)
    assert "\n" not in str(refused.value)
    assert f"{name} " in str(refused.value)


def test_a_full_disk_leaves_the_earlier_export(dense_folders, tmp_path: Path) -> None:
    model, folder = dense_folders("keypoints")
    out = shutil.copytree(folder, tmp_path / "out")
    before = {path.name: path.read_bytes() for path in out.iterdir()}
    for place in (out, tmp_path / "new" / "out"):
        with largest_file(64 * 1024):
            said = refusal(model, to="torch", static=True, rounds=1, out=place)
        assert said.startswith(f"cannot write {place}: File too large; what was there before is intact")
    assert {path.name: path.read_bytes() for path in out.iterdir()} == before
    assert load_model(out).task == "keypoints"
    assert not (tmp_path / "new").exists()


# ---- eight bits --------------------------------------------------------------------------------------------------

CALIBRATED = dict(static=True, int8=True, data="shapes", calibration=4, count=8, workers=0, rounds=1)


def test_eight_bits_are_measured_beside_floats(tiny: str, tmp_path: Path, monkeypatch) -> None:
    monkeypatch.setattr(VERB, "MOST_POINTS_LOST", 100.0)  # it has learned nothing that could be lost
    folder = export(tiny, to="onnx", out=tmp_path / "out", **CALIBRATED)
    import onnx

    kinds = {node.op_type for node in onnx.load(folder / "model.onnx").graph.node}
    assert {"QuantizeLinear", "DequantizeLinear"} <= kinds
    content = json.loads((folder / "export.json").read_text())
    assert content["graph"]["precision"] == "int8"
    assert content["accuracy"]["metric"] == "top1"
    assert {path.name for path in folder.iterdir()} == FILES | {"model.onnx"}
    images = torch.randn(1, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(load_model(folder).model(images), load_model(tiny).model(images), atol=0.1, rtol=0.1)


def test_eight_bits_that_lose_too_much_are_refused(tiny: str, tmp_path: Path, monkeypatch) -> None:
    figures = iter([0.9, 0.89])
    monkeypatch.setattr(VERB, "evaluate", lambda *_, **__: {"top1": next(figures)})
    monkeypatch.setattr(VERB, "quantise", lambda *_: None)
    told = refusal(tiny, to="onnx", out=tmp_path / "out", **CALIBRATED)
    assert "falls from 90.00% to 89.00%" in told
    assert not (tmp_path / "out").exists()


def test_eight_bits_need_fitting_data_before_the_work(tiny: str, tmp_path: Path, dense_folders) -> None:
    out = tmp_path / "out"
    assert "add --data" in refusal(tiny, to="onnx", int8=True, out=out)
    assert "--to torch" in refusal(tiny, to="torch", int8=True, data="shapes", out=out)
    assert "is for --int8" in refusal(tiny, to="onnx", data="shapes", out=out)
    labelled = tmp_path / "photos"
    for name in CLASSES:
        (labelled / "train" / name).mkdir(parents=True)
        picture().save(labelled / "train" / name / "1.png")
    with pytest.raises(InputError, match="to detect"):
        export(dense_folders("detect")[0], to="onnx", int8=True, data=str(labelled), out=out)
    assert not out.exists()


@pytest.mark.slow
def test_eight_bits_for_openvino(tiny: str, tmp_path: Path, monkeypatch) -> None:
    pytest.importorskip("nncf", reason="the package nncf is not installed")
    monkeypatch.setattr(VERB, "MOST_POINTS_LOST", 100.0)
    folder = export(tiny, to="openvino", out=tmp_path / "out", **CALIBRATED)
    assert "FakeQuantize" in (folder / "model.xml").read_text()
    assert load_model(folder).predict(picture()).names


@pytest.mark.slow
@pytest.mark.parametrize("to", ["onnx", "openvino"])
@pytest.mark.parametrize("task", ["detect", "segment", "keypoints"])
def test_graphs_of_any_size_in_every_format(task: str, to: str, tmp_path: Path) -> None:
    model = save_tiny_dense(tmp_path / "model", task, CLASSES)
    folder = export(model, to=to, rounds=1, out=tmp_path / "out")
    shown = picture()
    ours, theirs = (load_model(place).predict(shown).to_dict() for place in (model, folder))
    assert len(ours["predictions"]) == len(theirs["predictions"])
    assert program(folder).answer(shown) is not None


def test_sizes_of_examples_leave_every_map_two_positions() -> None:
    from vitreous.exports.outputs import GraphModel
    from vitreous.heads.detect import build_detector

    model = GraphModel(build_detector("test_convnext", "ssd", 2, channels=16), "detect")
    height, width = writing.free_size(model, (64, 96))
    assert height >= 2 * max(model.model.anchors.strides)
    assert width > height


def test_several_threads_share_an_exported_model(tiny: str, openvino_folder: Path) -> None:
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        answers = [predict(model, ("shapes:val:0-2",)) for model in (tiny, str(openvino_folder))]
    finally:
        torch.set_num_threads(before)
    first, second = ([row["predictions"][0]["class"] for row in rows] for rows in answers)
    assert first == second


def test_exports_are_told_apart_by_what_they_hold(onnx_folder: Path, openvino_folder: Path) -> None:
    fingerprints = {model_fingerprint(load_model(folder)) for folder in (onnx_folder, openvino_folder)}
    assert len(fingerprints) == 2
    assert model_fingerprint(load_model(onnx_folder)) in fingerprints


def test_a_folder_is_measured_beside_the_run_it_was_made_of(
    mended: Path, onnx_folder: Path, tmp_path: Path, capsys, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", "80")
    run, folder = str(mended), str(onnx_folder)
    result = bench((run, folder), baseline=run, size=("64:1",), rounds=1, out=tmp_path / "out")
    told = "".join(capsys.readouterr().out.split())
    assert "onnxruntime" in told.partition("images/s")[2].partition("p95ms:")[0], "names have room beside a long path"
    eager, exported = result.measurements
    assert (eager.mode, exported.mode) == ("eager", "onnxruntime")
    assert exported.seconds
    assert exported.params is exported.macs is exported.peak_share is None
    assert result.ratio(exported).middle == pytest.approx(eager.seconds[0] / exported.seconds[0])
    assert "onnxruntime" in result.machine.versions
    assert f"`{folder}, onnxruntime` |" in (tmp_path / "out" / "bench.md").read_text()


def test_threads_of_bench_are_those_of_the_program(
    onnx_folder: Path, monkeypatch: pytest.MonkeyPatch, two_threads
) -> None:
    seen = []
    begin = onnxruntime.InferenceSession.__init__

    def watched(session, path, options, **more):
        seen.append(options.intra_op_num_threads)
        begin(session, path, options, **more)

    monkeypatch.setattr(onnxruntime.InferenceSession, "__init__", watched)
    bench((str(onnx_folder),), size=("64:1",), rounds=1, threads=1)
    assert seen == [1]


def test_a_size_that_a_folder_does_not_take_is_refused_before_anything_is_run(
    onnx_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys.modules["vitreous.measurements.benchmark"], "time_rounds", None)  # calling it would fail
    with pytest.raises(InputError, match="images of 32x32 pixels given; this export was written for 64x64 alone"):
        bench((str(onnx_folder),), size=("64:1", "32:1"), rounds=1)


@pytest.mark.system
@pytest.mark.parametrize("kind", ["onnx", "openvino"])
def test_the_program_needs_neither_torch_nor_vitreous(
    kind: str, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    """Where importing either would fail, as on a machine that has neither, it answers as it does here."""
    folder = request.getfixturevalue(f"{kind}_folder")
    picture().save(tmp_path / "photo.png")
    code = (
        "import runpy, sys; sys.modules.update(dict.fromkeys(('torch', 'vitreous', 'timm'))); "
        f"sys.argv = ['run.py', 'photo.png']; runpy.run_path({str(folder / 'run.py')!r}, run_name='__main__')"
    )
    told = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True).stdout
    best, chance = program(folder).answer(picture())[0]
    assert told.startswith(f"photo.png  {best} {chance:.1%}")
    (tmp_path / "photo.png").write_text("no picture")
    refused = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert refused.returncode == 1
    assert (refused.stderr.count("\n"), refused.stderr[:11]) == (1, "photo.png: ")
