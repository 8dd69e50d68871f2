"""`vitreous serve`: which examples are offered, what is refused before there is a page, and that it comes up."""

import json
import signal
import socket
import subprocess
import sys
from urllib.request import urlopen

import pytest
import torch
from PIL import Image

from tests.support.explorer import save_lively_model
from tests.support.pages import ROOT
from tests.support.tiny_model import save_tiny_model
from vitreous.errors import InputError
from vitreous.runs.model_folder import load_model
from vitreous.serve import check_answers, find_examples, listen, serve
from vitreous.web.explorer import Explorer


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model") / "tiny")


@pytest.fixture(scope="module")
def trained(folder):
    return load_model(folder)


def test_embedded_examples_where_the_classes_fit(trained):
    found = find_examples(Explorer(trained), None)
    assert [item.name for item in found] == [f"shapes:val:{index}" for index in range(10)]
    assert {item.label for item in found} == set(trained.classes)
    assert find_examples(Explorer(trained._replace(classes=("cat", "dog"))), None) == []


def test_examples_of_a_folder_are_a_spread_selection(trained, tmp_path):
    for label in ("circle", "unknown"):
        (tmp_path / label).mkdir()
        for number in range(20):
            Image.new("RGB", (80, 70), (number, 0, 0)).save(tmp_path / label / f"{number:02d}.png")
    found = find_examples(Explorer(trained), str(tmp_path))
    assert len(found) == 12
    assert found[0].name == "circle/00.png"  # no word of the folders above
    assert {item.label for item in found} == {"circle", None}
    assert {item.picture.size for item in found} == {(64, 64)}


def test_links_out_of_the_folder_are_not_shown(trained, tmp_path):
    inside, outside = tmp_path / "inside", tmp_path / "outside"
    for place, colour in ((inside, "red"), (outside, "blue")):
        place.mkdir()
        Image.new("RGB", (64, 64), colour).save(place / f"{colour}.png")
    (inside / "link.png").symlink_to(outside / "blue.png")
    (inside / "folder").symlink_to(outside)
    assert [item.name for item in find_examples(Explorer(trained), str(inside))] == ["red.png"]
    (inside / "red.png").unlink()
    with pytest.raises(InputError, match="a link to somewhere else"):
        find_examples(Explorer(trained), str(inside))


def test_unreadable_examples_are_named_and_skipped(trained, tmp_path, caplog):
    (tmp_path / "bad.png").write_text("no picture")
    Image.new("RGB", (64, 64)).save(tmp_path / "good.png")
    assert [item.name for item in find_examples(Explorer(trained), str(tmp_path))] == ["good.png"]
    assert "bad.png" in caplog.text


def test_taken_port_is_named():
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with pytest.raises(InputError, match=f"port {port} \\(Address already in use\\); choose another --port"):
            listen("127.0.0.1", port)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"port": 70000}, "--port 70000"),
        ({"host": "192.0.2.1"}, "cannot listen on 192.0.2.1"),
        ({"waiting": 0}, "--waiting 0"),
        ({"max_upload_mb": 0}, "--max-upload-mb 0"),
        ({"examples": "nowhere"}, "no image at 'nowhere'"),
        ({"beside": "nowhere"}, "nowhere"),
    ],
)
def test_bad_options(folder, options, words):
    with pytest.raises(InputError, match=words):
        serve(folder, **({"port": 0} | options))


def test_weights_that_give_no_numbers_are_refused(trained):
    broken = trained._replace(model=torch.nn.Sequential(torch.nn.Flatten(), torch.nn.LazyLinear(10)).eval())
    broken.model(torch.zeros(1, 3, 64, 64))
    torch.nn.init.constant_(broken.model[1].bias, torch.nan)
    with pytest.raises(InputError, match="NaN"):
        check_answers(broken)
    with pytest.raises(InputError, match="one class only"):
        check_answers(trained._replace(classes=("all",)))


@pytest.mark.system
def test_comes_up_answers_and_ends_with_ctrl_c(folder):
    command = [sys.executable, "-m", "vitreous", "serve", folder, "--port", "0", "--device", "cpu"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as server:
        line = server.stdout.readline()
        address = line.split(" is at ")[1].split()[0]
        with urlopen(f"{address}/api/model") as answer:
            assert json.load(answer)["name"] == "paca_tiny"
            assert answer.headers["server"] is None
        server.send_signal(signal.SIGINT)
        _, err = server.communicate(timeout=60)
    assert server.returncode == 0, err
    assert "Traceback" not in err


@pytest.mark.slow
@pytest.mark.system
def test_survives_a_crowd(tmp_path):
    """Ten thousand requests, four hundred at a time: nothing but answers and "try again", and then as before."""
    model = save_lively_model(tmp_path / "model")
    load = ["--requests", "10000", "--concurrent", "400", "--rounds", "1", "--size", "64"]
    command = [sys.executable, "benchmarks/serve_load.py", "--run", model, *load]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=590)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "10,000 requests" in done.stdout
