"""ONNX Runtime and OpenVINO run what torch runs, and refuse before the work what they cannot."""

import sys

import numpy as np
import pytest
import timm
import torch

from tests.support.tiny_model import MODEL_ARGS
from vitreous.bench import bench
from vitreous.errors import InputError
from vitreous.exports import graph
from vitreous.measurements.contender import Contender, Setting
from vitreous.measurements.runners import load_runners
from vitreous.tasks.base import load_task

pytest.importorskip("onnxruntime", reason="the extra `export` is not installed")
pytest.importorskip("openvino", reason="the extra `export` is not installed")
MODES = ("onnxruntime", "openvino")


@pytest.mark.parametrize("mode", ["onnxruntime", pytest.param("openvino", marks=pytest.mark.slow)])
def test_another_program_gives_what_torch_gives(mode: str) -> None:
    model = timm.create_model("paca_tiny", num_classes=3, **MODEL_ARGS)
    one = Contender(
        "tiny", model, load_task("classify")(("a", "b", "c")), Setting("infer", (64, 96), 2), torch.device("cpu")
    )
    images = one.images()
    found = load_runners()[mode].load(one, 1)(images.numpy())
    with torch.no_grad():
        wanted = model.eval()(images)
    np.testing.assert_allclose(found[0], wanted, rtol=1e-4, atol=1e-4 * wanted.abs().max().item())
    assert callable(load_runners()[mode].prepare(one))


@pytest.mark.parametrize("mode", MODES)
def test_what_it_cannot_do_is_refused_before_the_work(mode: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vitreous.bench"], "measure_all", None)  # calling it would fail
    with pytest.raises(InputError, match=f"--mode {mode} cannot train; it can: infer"):
        bench(("test_vit",), mode=(mode,), step=("train",))
    monkeypatch.setitem(graph.PACKAGES, mode, ("not_there",))
    with pytest.raises(InputError, match=r"needs the package not_there: .*\[export\]"):
        bench(("test_vit",), mode=(mode,))


@pytest.mark.parametrize("mode", MODES)
def test_it_is_measured_on_the_processor(mode: str) -> None:
    with pytest.raises(InputError, match="--device cuda:1 given"):
        load_runners()[mode].require(torch.device("cuda:1"), load_task("classify")(("a",)))


def test_a_detector_is_refused_before_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["vitreous.bench"], "measure_all", None)  # calling it would fail
    with pytest.raises(InputError, match=r"--mode openvino and a detector given.* measure the folder in its place"):
        bench(("paca_b0",), task="detect", mode=("eager", "openvino"))
