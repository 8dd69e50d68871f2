"""Videos through `predict` and `explain`: frames by stride, lines, and a video that can be played."""

import json
import sys
from fractions import Fraction

import av
import numpy as np
import pytest
from PIL import Image

from tests.support.full_disk import largest_file
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.data.video import Video, VideoFile
from vitreous.errors import InputError
from vitreous.explain import explain
from vitreous.predict import predict


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("model") / "m")


@pytest.fixture(scope="module")
def clip(tmp_path_factory):
    """Seven frames at ten a second, in which a square moves to the right."""
    file = tmp_path_factory.mktemp("video") / "clip.mp4"
    with VideoFile(file, Fraction(10)) as video:
        for place in range(7):
            pixels = np.full((49, 65, 3), 40, np.uint8)  # odd: colours are stored for two by two pixels
            pixels[10:30, 5 + 6 * place : 20 + 6 * place] = (230, 60, 20)
            video.add(Image.fromarray(pixels))
    return str(file)


def test_frames_come_by_stride_with_their_times(clip):
    video = Video(clip, 3)
    frames = list(video.frames())
    assert [frame.number for frame in frames] == [0, 3, 6]
    assert [round(frame.seconds, 3) for frame in frames] == [0.0, 0.3, 0.6]
    assert video.rate == Fraction(10, 3)
    assert frames[0].picture.size == (66, 50)
    assert np.asarray(frames[2].picture)[20, 45, 0] > 150 > np.asarray(frames[0].picture)[20, 45, 0]


def test_predict_writes_lines_and_a_video(model, clip, tmp_path, capsys):
    found = predict(model, (clip,), stride=2, out=tmp_path / "out", device="cpu", json=tmp_path / "all.json")
    lines = [json.loads(line) for line in (tmp_path / "out" / "predictions.jsonl").read_text().splitlines()]
    assert lines == found == json.loads((tmp_path / "all.json").read_text())
    assert [line["frame"] for line in lines] == [0, 2, 4, 6]
    assert len(lines[0]["predictions"]) == 5
    played = list(Video(tmp_path / "out" / "overlay.mp4", 1).frames())
    assert len(played) == 4
    assert "0.20 s" in capsys.readouterr().out
    assert lines[0]["predictions"][0]["probability"] >= lines[0]["predictions"][1]["probability"]


def test_explain_shows_every_frame_beside_its_map(model, clip, tmp_path, capsys):
    page = explain(model, (clip,), stride=3, out=tmp_path / "out", device="cpu")
    assert page == tmp_path / "out" / "overlay.mp4"
    lines = [json.loads(line) for line in (tmp_path / "out" / "frames.jsonl").read_text().splitlines()]
    assert [line["frame"] for line in lines] == [0, 3, 6]
    assert {line["method"] for line in lines} == {lines[0]["method"]}
    assert lines[0]["class"] == lines[0]["predictions"][0]["class"]
    (first, *_) = Video(page, 1).frames()
    left, right = np.asarray(first.picture)[:448, :448], np.asarray(first.picture)[:448, 448:896]
    assert np.abs(left.astype(int) - right).mean() > 10, "the map is beside the frame"
    listed = json.loads((tmp_path / "out" / "explanation.json").read_text())
    assert set(listed["files"]) == {"overlay.mp4", "frames.jsonl"}


def test_a_video_without_frames_is_one_line_and_changes_nothing(model, tmp_path):
    silent = tmp_path / "sound.mkv"
    with av.open(str(silent), "w") as container:
        stream = container.add_stream("pcm_s16le", rate=8000, layout="mono")
        frame = av.AudioFrame.from_ndarray(np.zeros((1, 800), np.int16), format="s16", layout="mono")
        frame.sample_rate = 8000
        container.mux(stream.encode(frame))
        container.mux(stream.encode())
    (tmp_path / "empty.mp4").write_bytes(b"")
    for file, said in (
        ("sound.mkv", "has no frames"),
        ("empty.mp4", "cannot be read as a video"),
        ("no.mp4", "there is no"),
    ):
        for verb in (predict, explain):
            with pytest.raises(InputError, match=said):
                verb(model, (str(tmp_path / file),), out=tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


def test_a_full_disk_is_one_line_and_leaves_nothing(model, clip, tmp_path):
    with largest_file(500), pytest.raises(InputError, match=r"cannot write .*overlay\.mp4"):
        predict(model, (clip,), out=tmp_path / "out")
    assert not list(tmp_path.iterdir())


def test_what_does_not_go_together_is_refused(model, clip, tmp_path):
    with pytest.raises(InputError, match="is taken alone; 2 names were given"):
        predict(model, (clip, "shapes:val:0"), device="cpu")
    with pytest.raises(InputError, match="--stride 2 is for a video"):
        predict(model, ("shapes:val:0",), stride=2, device="cpu")
    with pytest.raises(InputError, match="--stride 0"):
        predict(model, (clip,), stride=0, device="cpu")
    with pytest.raises(InputError, match="leave it out"):
        predict(model, (clip,), jsonl=True, out=tmp_path / "out", device="cpu")
    with pytest.raises(InputError, match="--label is for pictures"):
        explain(model, (clip,), label="heart", out=tmp_path / "out", device="cpu")
    detector = save_tiny_dense(tmp_path / "d", "detect", ("a", "b"))
    with pytest.raises(InputError, match="videos are explained for classifiers"):
        explain(detector, (clip,), out=tmp_path / "out", device="cpu")


def test_without_the_extra_it_says_what_to_install(model, clip, monkeypatch):
    monkeypatch.setitem(sys.modules, "av", None)
    with pytest.raises(InputError, match=r"needs the package av: .*video"):
        predict(model, (clip,), device="cpu")
