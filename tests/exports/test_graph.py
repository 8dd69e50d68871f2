"""Graphs for other programs give what the model gives, and refusals are one line."""

from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from tests.support.full_disk import largest_file
from vitreous.errors import InputError
from vitreous.exports import graph
from vitreous.exports.graph import export_onnx, export_openvino, require_packages, traced_program
from vitreous.exports.writing import write_program

onnxruntime = pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
openvino = pytest.importorskip("openvino", reason="the extra `export` is not installed")
NAMES = ("double", "mean")


def export_torch(model: nn.Module, example: Tensor, path: Path) -> None:
    write_program(traced_program(model, example), path)


class Two(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3, 2, 1)

    def forward(self, images: Tensor) -> dict[str, Tensor]:
        y = self.conv(images)
        return {"first": 2 * y, "second": y.mean((2, 3))}


def run_onnx(path: Path, images: Tensor) -> dict[str, np.ndarray]:
    session = onnxruntime.InferenceSession(path)
    names = [each.name for each in session.get_outputs()]
    return dict(zip(names, session.run(names, {"images": images.numpy()}), strict=True))


def run_openvino(path: Path, images: Tensor) -> dict[str, np.ndarray]:
    compiled = openvino.Core().compile_model(path, "CPU", {"INFERENCE_PRECISION_HINT": "f32"})
    return {port.any_name: value for port, value in compiled({"images": images.numpy()}).items()}


@pytest.mark.parametrize("dynamic", [False, True], ids=["static", "dynamic"])
@pytest.mark.parametrize(
    ("export", "file", "run"),
    [(export_onnx, "model.onnx", run_onnx), (export_openvino, "model.xml", run_openvino)],
    ids=["onnx", "openvino"],
)
def test_a_file_gives_what_the_model_gives_under_its_names(export, file, run, dynamic: bool, tmp_path: Path) -> None:
    model = Two().train()
    export(model, torch.randn(2, 3, 20, 31), tmp_path / file, dynamic=dynamic, output_names=NAMES)
    assert model.training, "the given model was changed"
    for shape in [(2, 3, 20, 31), *[(1, 3, 33, 18), (3, 3, 16, 16)] * dynamic]:
        images = torch.randn(shape)
        with torch.no_grad():
            wanted = dict(zip(NAMES, model(images).values(), strict=True))
        found = run(tmp_path / file, images)
        assert list(found) == list(NAMES)
        for name in NAMES:
            np.testing.assert_allclose(found[name], wanted[name], rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize(
    ("export", "file"),
    [(export_onnx, "model.onnx"), (export_openvino, "model.xml"), (export_torch, "model.pt2")],
    ids=["onnx", "openvino", "torch"],
)
def test_a_full_disk_is_not_taken_for_the_models_fault(export, file, tmp_path: Path) -> None:
    wide = nn.Conv2d(3, 4000, 3)  # 430 kB
    with largest_file(64 * 1024), pytest.raises(OSError, match=r"File too large|OpenVINO could not write it"):
        export(wide, torch.randn(1, 3, 8, 8), tmp_path / file)


def test_axes_of_a_dynamic_onnx_file_have_names(tmp_path: Path) -> None:
    export_onnx(Two(), torch.randn(2, 3, 20, 31), tmp_path / "model.onnx", dynamic=True)
    (images,) = onnxruntime.InferenceSession(tmp_path / "model.onnx").get_inputs()
    assert (images.name, images.shape) == ("images", ["batch", 3, "height", "width"])


def test_a_static_openvino_graph_says_its_size() -> None:
    made = graph.openvino_graph(Two(), torch.randn(2, 3, 20, 31))
    assert list(made.inputs[0].shape) == [2, 3, 20, 31]


def test_a_model_that_cannot_be_followed_is_refused_in_one_line() -> None:
    class Wayward(nn.Module):
        def forward(self, images: Tensor) -> Tensor:
            return images if images.sum() > 0 else -images

    with pytest.raises(InputError, match="cannot be turned into a graph") as refusal:
        traced_program(Wayward(), torch.randn(2, 3, 8, 8))
    assert "\n" not in str(refusal.value)


def test_any_batch_size_needs_an_example_of_two() -> None:
    with pytest.raises(InputError, match="batch 1 given"):
        traced_program(Two(), torch.randn(1, 3, 8, 8), dynamic=True)


def test_missing_packages_are_named_with_their_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(graph.PACKAGES, "openvino", ("openvino_that_is_not_there",))
    require_packages("onnx", "onnxruntime")
    with pytest.raises(InputError, match=r"openvino_that_is_not_there: .*\[export\]"):
        require_packages("onnx", "openvino")
