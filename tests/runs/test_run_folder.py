import json
import subprocess
import sys
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from vitreous.errors import InputError, to_install_extra
from vitreous.runs.run_folder import METRICS, RunFolder, read_metrics
from vitreous.runs.trackers import TensorBoard
from vitreous.train import train

ARGUMENTS, DATA = {"model": "paca_b0", "lr": 0.1, "workers": 2}, {"train": "abc"}
HOLD = """
import sys, time
from pathlib import Path
from vitreous.runs.run_folder import RunFolder
with RunFolder(Path(sys.argv[1])) as run:
    run.log(step=1)
    print("held", flush=True)
    time.sleep(60)
"""


def holds(run: RunFolder, arguments=ARGUMENTS, data=DATA, resume=True, defaults=None) -> bool:
    return run.holds(arguments, data, defaults=defaults or {}, free=frozenset({"workers"}), resume=resume)


def test_two_runs_on_one_folder(tmp_path):
    with RunFolder(tmp_path / "run") as run:
        run.begin(ARGUMENTS, DATA)
        with pytest.raises(InputError, match="in use by this process"):
            RunFolder(tmp_path / "run").__enter__()
    with RunFolder(tmp_path / "run") as run:
        assert holds(run)


@pytest.mark.system
def test_lock_of_another_process_until_it_is_killed(tmp_path):
    process = subprocess.Popen([sys.executable, "-c", HOLD, str(tmp_path)], stdout=subprocess.PIPE, text=True)
    try:
        assert process.stdout.readline() == "held\n"
        with pytest.raises(InputError, match=f"in use by process {process.pid}"):
            RunFolder(tmp_path).__enter__()
    finally:
        process.kill()
        process.wait()
    with RunFolder(tmp_path) as run:
        assert run.metric_lines == 1


def test_same_command_continues_and_another_is_refused(tmp_path):
    with RunFolder(tmp_path) as run:
        assert not holds(run)
        run.begin(ARGUMENTS, DATA)
        assert holds(run)
        assert holds(run, ARGUMENTS | {"workers": 8})
        assert not holds(run, ARGUMENTS | {"lr": 0.2}), "a start that never made a step may be corrected"
        run.log(step=1, split="train")
        with pytest.raises(InputError, match=r"lr: 0\.1 there, 0\.2 now"):
            holds(run, ARGUMENTS | {"lr": 0.2})
        with pytest.raises(InputError, match="data of split train"):
            holds(run, data={"train": "xyz"})
        with pytest.raises(InputError, match="--no-resume"):
            holds(run, resume=False)
    content = json.loads((tmp_path / "run.json").read_text())
    assert content["arguments"] == ARGUMENTS
    assert {"vitreous", "torch", "timm"} <= set(content["versions"])


def test_a_run_of_a_version_without_a_setting_continues_with_its_default(tmp_path):
    with RunFolder(tmp_path) as run:
        run.begin(ARGUMENTS, DATA)
        run.log(step=1, split="train")
        assert holds(run, ARGUMENTS | {"mirror": False}, defaults={"mirror": False})
        with pytest.raises(InputError, match="mirror: False there, True now"):
            holds(run, ARGUMENTS | {"mirror": True}, defaults={"mirror": False})


def test_foreign_files_are_not_written_among(tmp_path):
    (tmp_path / "thesis.tex").write_text("")
    with RunFolder(tmp_path) as run, pytest.raises(InputError, match=r"thesis\.tex"):
        holds(run)


def test_a_run_that_never_began_leaves_nothing(tmp_path):
    with RunFolder(tmp_path / "deep" / "run"):
        pass
    assert not (tmp_path / "deep" / "run").exists()


def test_output_that_cannot_be_written(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="choose another --out"):
        RunFolder(tmp_path / "file" / "run").__enter__()


def test_metrics_are_cut_back_and_torn_lines_dropped(tmp_path):
    with RunFolder(tmp_path) as run:
        for step in range(4):
            run.log(step=step)
        assert run.metric_lines == 4
        with open(tmp_path / METRICS, "a") as file:
            file.write('{"step": 4, "lo')
        assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 2, 3]
        run.cut_metrics(2)
        run.log(step=9)
    assert [line["step"] for line in read_metrics(tmp_path)] == [0, 1, 9]


def test_time_goes_on_where_the_kept_lines_end(tmp_path, monkeypatch):
    now = [1000.0]
    monkeypatch.setattr("vitreous.runs.run_folder.time.monotonic", lambda: now[0])
    with RunFolder(tmp_path) as run:
        for _ in range(3):
            now[0] += 10
            run.log(step=1)
    now[0] += 5000  # a pause
    with RunFolder(tmp_path) as run:
        run.cut_metrics(2)  # the third line is lost, and so is its time
        now[0] += 5
        run.log(step=2)
    assert [line["seconds"] for line in read_metrics(tmp_path)] == [10.0, 20.0, 25.0]


@pytest.mark.parametrize("content", ["{}", "[]", '{"arguments": 3, "data": {}}', '{"arguments": {}}'])
def test_odd_record_of_a_run_is_named(tmp_path, content):
    (tmp_path / "run.json").write_text(content)
    with RunFolder(tmp_path) as run, pytest.raises(InputError, match=r"run\.json is damaged: its field"):
        holds(run)


DAMAGED_LINES = [
    "{",
    "null",
    "7",
    "[1, 2]",
    '"text"',
    "\x00\x00",
    "\ufffd",
    "[" * 100_000,
    "1" * 5000,
    '{"step": "three"}',
    '{"step": true}',
    '{"step": 1e400}',
    '{"step": NaN}',
    '{"step": -1}',
    '{"step": 2, "seconds": "long"}',
    '{"step": 2, "seconds": []}',
]


@pytest.mark.parametrize("line", DAMAGED_LINES, ids=range(len(DAMAGED_LINES)))
def test_damaged_metrics_are_named_with_their_line(tmp_path, line):
    content = f'{{"step": 1, "split": "train"}}\n{line}\n{{"step": 3, "split": "train"}}\n'
    (tmp_path / METRICS).write_text(content)
    with pytest.raises(InputError, match=r"metrics\.jsonl is damaged at line 2: ") as refused:
        RunFolder(tmp_path).__enter__()
    assert "\n" not in str(refused.value)
    assert len(str(refused.value)) < 500 + len(str(tmp_path))
    assert (tmp_path / METRICS).read_text() == content, "nothing is lost"
    with pytest.raises(InputError, match="damaged at line 2"):  # and the folder is free again
        RunFolder(tmp_path).__enter__()


@given(st.data())
@settings(max_examples=60, deadline=None)
def test_mutated_metrics_are_read_or_refused(data):
    whole = b"".join(b'{"step": %d, "split": "train", "loss": 0.5, "seconds": 1.5}\n' % step for step in range(4))
    content = bytearray(whole)
    for _ in range(data.draw(st.integers(1, 3))):
        place = data.draw(st.integers(0, len(content) - 1))
        content[place : place + data.draw(st.integers(0, 3))] = data.draw(st.binary(max_size=3))
    with TemporaryDirectory() as folder:
        (Path(folder) / METRICS).write_bytes(content)
        try:
            with RunFolder(Path(folder)) as run:
                run.cut_metrics(2)
                run.log(step=9)
            said = ""
        except InputError as refused:
            said = str(refused)
        assert "metrics.jsonl is damaged at line" in said or read_metrics(Path(folder))[-1]["step"] == 9


@pytest.mark.parametrize("torn", ["", "{", '{"step": 2, "lo', "\x00\x00\x00", "\n\n"])
def test_a_torn_end_is_left_out(tmp_path, torn):
    (tmp_path / METRICS).write_text(f'{{"step": 1}}\n{torn}')
    with RunFolder(tmp_path) as run:
        assert run.metric_lines == 1


def test_metrics_that_cannot_be_read(tmp_path):
    (tmp_path / METRICS).mkdir()
    with pytest.raises(InputError, match=r"metrics\.jsonl is not a regular file"):
        read_metrics(tmp_path)


def scalars(folder) -> dict[str, list[tuple[int, float]]]:
    found = EventAccumulator(str(folder))
    found.Reload()
    return {tag: [(event.step, event.value) for event in found.Scalars(tag)] for tag in found.Tags()["scalars"]}


class Notes:
    def __init__(self):
        self.lines, self.closed = [], False

    def log(self, line):
        self.lines.append(line)

    def close(self):
        self.closed = True


def test_a_tracker_sees_what_is_in_the_file_and_what_follows(tmp_path):
    notes = Notes()
    with RunFolder(tmp_path) as run:
        run.log(step=1, split="train", loss=3.0)
        run.follow(notes)
        run.log(step=2, split="train", loss=2.0)
    assert notes.lines == read_metrics(tmp_path)
    assert notes.closed


def test_tensorboard_shows_every_number_once_after_a_restart(tmp_path):
    with RunFolder(tmp_path) as run:
        run.follow(TensorBoard(tmp_path / "tensorboard", run.seconds))
        for step in (1, 2, 3):
            run.log(step=step, epoch=1, split="train", loss=float(step), note="not a number")
        run.log(step=3, epoch=1, split="val", top1=0.5)
    with RunFolder(tmp_path) as run:
        run.cut_metrics(2)  # the run goes on from a checkpoint at step 2
        run.follow(TensorBoard(tmp_path / "tensorboard", run.seconds))
        run.log(step=3, epoch=1, split="train", loss=30.0)
    assert scalars(tmp_path / "tensorboard") == {"train/loss": [(1, 1.0), (2, 2.0), (3, 30.0)]}


def test_times_are_those_of_the_measurement(tmp_path):
    board = TensorBoard(tmp_path / "tensorboard", spent=7200.0)
    for step, seconds in ((1, 3600.0), (2, 7200.0)):
        board.log({"step": step, "split": "train", "loss": 1.0, "seconds": seconds})
    board.close()
    found = EventAccumulator(str(tmp_path / "tensorboard"))
    found.Reload()
    first, second = (event.wall_time for event in found.Scalars("train/loss"))
    assert second - first == pytest.approx(3600)


def test_train_writes_for_tensorboard(tmp_path):
    settings = dict(size=32, epochs=1, batch_size=8, train_count=16, val_count=8, workers=0, device="cpu", log_every=1)
    out = train("test_convnext", "shapes", out=tmp_path / "run", tensorboard=True, **settings)
    lines = read_metrics(out)
    shown = scalars(out / "tensorboard")
    losses = [(line["step"], line["loss"]) for line in lines if line["split"] == "train"]
    assert shown["train/loss"] == [(step, pytest.approx(loss)) for step, loss in losses]
    assert {"train/lr", "train/images_per_second", "val/loss", "val/top1"} <= set(shown)


def test_missing_package_says_what_to_install(tmp_path, monkeypatch, capsys):
    from vitreous_command import main

    monkeypatch.setitem(sys.modules, "tensorboard", None)
    monkeypatch.delitem(sys.modules, "torch.utils.tensorboard", raising=False)
    arguments = ["train", "test_convnext", "shapes", "--out", str(tmp_path / "run"), "--tensorboard"]
    assert main([*arguments, "--train-count", "8", "--val-count", "8", "--workers", "0", "--size", "32"]) == 2
    assert to_install_extra("log") in capsys.readouterr().err
