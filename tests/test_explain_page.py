"""docs/explain.md: its commands and its Python work, its links lead somewhere, its names are those of the code."""

import re
import shlex

import torch
from PIL import Image

from tests.support.families import small
from tests.support.pages import blocks, dead_links, notebook_code, read
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.attribution.catalogue import all_controls, all_methods
from vitreous.attribution.controls import OracleMask
from vitreous.clusters.importance import RANKINGS
from vitreous.registry import list_models
from vitreous_command import main

PAGE = "docs/explain.md"


def test_commands_and_python_work(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    for run in ("demo", "other"):
        save_tiny_model(tmp_path / "runs" / run)
    save_tiny_dense(tmp_path / "runs" / "cells", "detect", ("disc", "box"))
    save_tiny_dense(tmp_path / "runs" / "streets", "segment", ("background", "road"))
    save_tiny_dense(tmp_path / "runs" / "poses", "keypoints", ("person",), names=("nose", "left_knee"))
    Image.new("RGB", (480, 320), "teal").save("photo.jpg")
    for command in (line for block in blocks(PAGE, "bash") for line in block.splitlines()):
        words = shlex.split(re.sub("--limit [23]00", "--limit 2", command).replace("0-3", "0"))
        quick = [] if words[1] == "atlas" or "--method" in words else ["--method", "grad_cam"]
        quick += ["--limit", "2"] if words[1] == "score" else []
        quick += ["--learn-steps", "2", "--learn-limit", "64"] if "--learn" in words else []
        assert main([*words[1:], *quick, "--device", "cpu"]) == 0, capsys.readouterr().err
    assert (tmp_path / "explanation" / "report.html").is_file()
    assert (tmp_path / "faithfulness" / "faithfulness.md").is_file()
    assert (tmp_path / "atlas" / "index.html").is_file()
    code, _any_model, of_readout = blocks(PAGE, "python")
    exec(code.replace('"photo.jpg")', '"photo.jpg", methods=["grad_cam"])'), {})
    assert (tmp_path / "photo.html").is_file()
    model, images = small("paca_b0_readout", 1).eval(), torch.randn(2, 3, 64, 64)
    known = dict(model=model, images=images, labels=model(images).argmax(1))
    exec(of_readout, known)
    torch.testing.assert_close(known["found"].bias + known["found"].values.sum(2), model(images), atol=1e-5, rtol=1e-5)


def test_any_model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Image.effect_noise((480, 320), 80).convert("RGB").save("photo.jpg")
    _, code, _ = blocks(PAGE, "python")
    # At 224 pixels each of them would take seconds for its curves.
    smaller = code.replace("vit_tiny_patch16_224", "test_vit")
    smaller = smaller.replace("ViTConfig(", "ViTConfig(image_size=32, hidden_size=48, num_attention_heads=3, ")
    smaller = smaller.replace("ViTImageProcessor(", 'ViTImageProcessor(size={"height": 32, "width": 32}')
    smaller = smaller.replace("preprocess=weights", "preprocess=weights.transforms(crop_size=32, resize_size=36)")
    known: dict = {}
    exec(smaller, known)
    assert known["explanation"].maps["grad_cam"].ndim == 2


def test_the_notebook_runs_cell_by_cell(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    save_tiny_model(tmp_path / "runs" / "demo")
    known = {}
    for cell in notebook_code("docs/examples/see_into_a_classifier.ipynb"):
        exec(cell, known)
    assert capsys.readouterr().out.count("log-odds, matters:") == 3  # one for each stage with clusters
    assert (tmp_path / "explanation.html").is_file()
    answers = known["trained"].model(known["inputs"]).softmax(-1)[0]
    assert answers.tolist() != known["after"].tolist()  # the group was gone, and is back


def test_names_are_those_of_the_code():
    rows = re.findall(r"^\| (`.*?) \|", read(PAGE), re.M)
    named = {name for row in rows for name in re.findall(r"`([^`]+)`", row)}
    known = (
        {method.name for method in (*all_methods(), *all_controls(), OracleMask)} | set(RANKINGS) | {"grad_cam stage N"}
    )
    known |= set(list_models())
    assert named <= known
    assert set(RANKINGS) <= named


def test_links_lead_somewhere():
    assert not dead_links(PAGE)
