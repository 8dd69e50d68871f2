import json
import math
from pathlib import Path

import pytest
from PIL import Image

from tests.support.tiny_runs import PLAIN
from vitreous.errors import InputError
from vitreous.plot import build_chart, choose_metrics, plot, read_runs, smoothed, x_scale
from vitreous.reports.chart import COLOURS
from vitreous.train import Training, train


def line(step: int, *, split: str = "train", epoch: int | None = None, **values) -> dict:
    values = values or {"loss": 2.0 - step / 100}
    return {"step": step, "epoch": epoch or (step - 1) // 10 + 1, "split": split, **values, "seconds": step * 3.0}


def write_run(folder: Path, lines: list[dict], tail: str = "") -> str:
    folder.mkdir(parents=True)
    (folder / "run.json").write_text("{}")
    (folder / "metrics.jsonl").write_text("".join(json.dumps(item) + "\n" for item in lines) + tail)
    return str(folder)


@pytest.fixture
def run(tmp_path) -> str:
    """Three epochs of ten steps."""
    lines = [line(step, loss=2 - step / 20, lr=1e-3, images_per_second=100.0 + step) for step in range(1, 31)]
    lines += [line(step, split="val", loss=1.8, top1=step / 40, images_per_second=300.0) for step in (10, 20, 30)]
    return write_run(tmp_path / "runs" / "one", lines)


def chart_of(metric: str, *runs: str, x="epoch", smooth=0.0):
    histories = read_runs(runs)
    return build_chart(metric, histories, x, *x_scale(histories, x), smooth)


def test_picture_page_and_numbers(run, tmp_path, capsys):
    found = plot((run,), out=tmp_path / "plot")
    assert found == tmp_path / "plot" / "curves.html"
    assert Image.open(tmp_path / "plot" / "curves.png").width > 1000
    numbers = json.loads((tmp_path / "plot" / "plot.json").read_text())
    rows = {(row["chart"], row["split"]): row for row in numbers["curves"]}
    assert rows["Loss", "train"]["last"] == 0.5
    assert rows["Top-1 accuracy", "val"] == {
        "run": "one", "chart": "Top-1 accuracy", "split": "val", "last": 75.0, "lowest": 25.0, "highest": 75.0,
    }  # fmt: skip
    assert "one: step 30, epoch 3: training loss 0.5, validation loss 1.8" in capsys.readouterr().out


def test_equal_runs_give_equal_bytes(run, tmp_path):
    for name in ("a", "b"):
        plot((run,), out=tmp_path / name, smooth=0.5)
    for file in ("curves.png", "curves.html"):
        assert (tmp_path / "a" / file).read_bytes() == (tmp_path / "b" / file).read_bytes()
    assert "http" not in (tmp_path / "a" / "curves.html").read_text().replace("http-equiv", "")


def test_curves_of_a_run_share_a_colour_and_validation_is_dashed(run, tmp_path):
    other = write_run(tmp_path / "runs" / "two", [line(1), line(2)])
    chart = chart_of("loss", run, other)
    assert [(s.name, s.colour, s.dashed) for s in chart.series] == [
        ("one, training", COLOURS[0], False),
        ("one, validation", COLOURS[0], True),
        ("two, training", COLOURS[1], False),
    ]


@pytest.mark.parametrize(
    ("x", "places", "label"),
    [("step", [10, 20, 30], "step"), ("epoch", [1, 2, 3], "epoch"), ("time", [30, 60, 90], "seconds")],
)
def test_what_runs_along_the_axis(run, x, places, label):
    chart = chart_of("top1", run, x=x)
    assert [place for place, _ in chart.series[0].points] == places
    assert [value for _, value in chart.series[0].points] == [25, 50, 75]
    assert (chart.x_label, chart.unit) == (label, "%")


def test_long_runs_are_shown_in_hours(tmp_path):
    path = write_run(tmp_path / "run", [line(10), line(10_000)])
    chart = chart_of("loss", path, x="time")
    assert chart.x_label == "hours"
    assert chart.series[0].points[-1][0] == pytest.approx(30_000 / 3600)


def test_a_run_in_its_first_epoch_has_places_up_to_one(tmp_path):
    path = write_run(tmp_path / "run", [line(2, epoch=1), line(4, epoch=1)])
    assert [place for place, _ in chart_of("loss", path).series[0].points] == [0.5, 1.0]


def test_torn_lines_nan_and_odd_values_are_no_problem(tmp_path):
    lines = [line(1, loss=1.0), line(2, loss=math.nan), line(3, loss=math.inf), line(4, loss="odd"), line(5, loss=0.5)]
    path = write_run(tmp_path / "run", lines, tail='{"step": 6, "lo')
    (series,) = chart_of("loss", path).series
    assert series.pieces() == [[(0.2, 1.0)], [(1.0, 0.5)]]
    plot((path,), out=tmp_path / "plot")


@pytest.mark.parametrize("junk", [3, {"step": "x"}])
def test_damaged_metrics_are_named_with_their_line(tmp_path, junk):
    path = write_run(tmp_path / "run", [line(1, loss=1.0), junk, line(3, loss=0.5)])
    with pytest.raises(InputError, match=r"metrics\.jsonl is damaged at line 2"):
        plot((path,), out=tmp_path / "plot")


def test_a_run_of_nothing_but_nan_is_drawn(tmp_path):
    path = write_run(tmp_path / "run", [line(1, loss=math.nan)])
    plot((path,), out=tmp_path / "plot")
    assert json.loads((tmp_path / "plot" / "plot.json").read_text())["curves"] == [
        {"run": "run", "chart": "Loss", "split": "train"}
    ]


def test_runs_of_different_length_and_metrics(run, tmp_path):
    other = write_run(tmp_path / "two", [line(1, loss=1.0, grad_norm=2.0), line(900, loss=0.5, grad_norm=1.0)])
    assert choose_metrics(read_runs((run, other)), ()) == ["loss", "top1", "grad_norm", "lr", "images_per_second"]
    assert [s.group for s in chart_of("grad_norm", run, other).series] == ["two"]
    plot((run, other), out=tmp_path / "plot", x="step")


def test_only_chosen_metrics(run, tmp_path):
    plot((run,), out=tmp_path / "plot", metrics=("top1",))
    assert {row["chart"] for row in json.loads((tmp_path / "plot" / "plot.json").read_text())["curves"]} == {
        "Top-1 accuracy"
    }
    with pytest.raises(InputError, match="no run has a curve 'top_1'; nearest: top1"):
        plot((run,), out=tmp_path / "plot", metrics=("top_1",))


def test_smoothing_is_an_average_without_bias_and_leaves_the_raw_curve_behind(run):
    points = [(0.0, 4.0), (1.0, math.nan), (2.0, 2.0), (3.0, 0.0)]
    values = [y for _, y in smoothed(points, 0.5)]
    assert values[0] == 4.0
    assert math.isnan(values[1])
    assert values[2:] == [(2 + 0.5 * 4) / 1.5, (0 + 0.5 * 2 + 0.25 * 4) / 1.75]
    raw, smooth, validation = chart_of("loss", run, smooth=0.9).series
    assert raw.faint
    assert not smooth.faint
    assert max(abs(y - 1.8) for _, y in validation.points) < 1e-9, "few points, nothing to smooth"
    assert len(chart_of("lr", run, smooth=0.9).series) == 1


def test_smoothing_does_not_change_the_numbers(run, tmp_path):
    plot((run,), out=tmp_path / "plain")
    plot((run,), out=tmp_path / "smooth", smooth=0.9)
    plain, smooth = (json.loads((tmp_path / name / "plot.json").read_text())["curves"] for name in ("plain", "smooth"))
    assert plain == smooth


def test_names_are_as_short_as_they_can_be_told_apart(tmp_path):
    a, b = (write_run(tmp_path / name / "best", [line(1)]) for name in "ab")
    assert [run.name for run in read_runs((a, b))] == [a, b]
    assert [run.name for run in read_runs((a,))] == ["best"]
    assert len(read_runs((a, a))) == 1


def test_more_runs_than_colours(tmp_path, capsys):
    runs = tuple(write_run(tmp_path / f"run{i}", [line(1), line(2)]) for i in range(9))
    plot(runs, out=tmp_path / "plot")
    assert "9 runs share 8 colours" in capsys.readouterr().out


def test_bad_input_is_named(run, tmp_path):
    with pytest.raises(InputError, match=r"'/no/such' is no folder"):
        plot(("/no/such",), out=tmp_path / "p")
    with pytest.raises(InputError, match=r"runs below it: .*runs/one"):
        plot((str(Path(run).parent),), out=tmp_path / "p")
    young = write_run(tmp_path / "young", [])
    with pytest.raises(InputError, match="run 'young' has logged nothing yet"):
        plot((young,), out=tmp_path / "p")
    assert [found.name for found in read_runs((young, run))] == ["one"]
    with pytest.raises(InputError, match=r"--smooth 1\.0 cannot be used"):
        plot((run,), smooth=1.0)
    with pytest.raises(InputError, match="no run given"):
        plot(())
    timeless = write_run(tmp_path / "timeless", [{"step": 1, "split": "train", "loss": 1.0}])
    with pytest.raises(InputError, match="has not logged its time; use --x epoch"):
        plot((timeless,), x="time")
    plot((timeless,), out=tmp_path / "p")
    assert not (tmp_path / "plot").exists()


def test_other_files_are_left_alone(run, tmp_path):
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("")
    with pytest.raises(InputError, match="give a new folder"):
        plot((run,), out=tmp_path / "mine")


def logged(batches: list[float], *, epoch: int, every: int) -> list[dict]:
    """Lines as training writes them: the mean since the last line, every so many steps and at the end of an epoch."""
    lines, since = [], []
    for step, loss in enumerate(batches, 1):
        since.append(loss)
        if step % every == 0 or step % epoch == 0:
            number = -(-step // epoch)
            lines.append(line(step, epoch=number, loss=sum(since) / len(since), lr=step, images_per_second=50.0))
            since = []
        if step % epoch == 0:
            lines.append(line(step, epoch=step // epoch, split="val", loss=9.0))
    return lines


@pytest.mark.parametrize(("epoch", "every"), [(49, 50), (51, 50), (20, 50), (50, 20), (8, 1), (8, 8), (7, 3)])
def test_every_point_of_a_training_curve_stands_for_as_many_steps(tmp_path, epoch, every):
    batches = [1.0 + 3.0 * (step % epoch == 0) for step in range(4 * epoch)]  # the first batch of an epoch is hard
    path = write_run(tmp_path / "run", logged(batches, epoch=epoch, every=every))
    steps = min(epoch, every)
    places, values = zip(*chart_of("loss", path, x="step").series[0].points, strict=True)
    ends = [*range(steps, len(batches) + 1, steps)]
    if 0 < len(batches) - ends[-1] < steps / 2:
        ends[-1] = len(batches)
    elif ends[-1] < len(batches):
        ends.append(len(batches))
    assert list(places) == ends
    means = [sum(batches[a:b]) / (b - a) for a, b in zip([0, *ends], ends, strict=False)]
    assert values == pytest.approx(means)
    assert [y for _, y in chart_of("lr", path, x="step").series[0].points] == ends  # no mean: that of the last step
    assert [y for _, y in chart_of("images_per_second", path).series[0].points] == pytest.approx([50.0] * len(ends))
    assert [y for _, y in chart_of("loss", path).series[1].points] == [9.0] * 4  # validation as it is


@pytest.mark.parametrize("lost", [range(4, 35), range(1, 32), range(33, 64), [*range(4, 20), *range(30, 45)]])
def test_lost_lines_leave_the_others_their_points(tmp_path, lost):
    """The line after those that were lost seems to stand for all of them."""
    kept = [step for step in range(1, 65) if step not in lost]
    path = write_run(tmp_path / "run", [line(step, loss=float(step)) for step in kept])
    assert chart_of("loss", path, x="step").series[0].points == tuple((step, step) for step in kept)


@pytest.mark.parametrize("often_first", [True, False])
def test_a_run_continued_with_lines_more_or_less_often_keeps_its_points(tmp_path, often_first):
    often, seldom = 200, 200 // 50
    steps = [*range(1, often + 1), *range(250, 401, 50)] if often_first else [*range(50, 201, 50), *range(201, 401)]
    path = write_run(tmp_path / "run", [line(step, loss=float(step)) for step in steps])
    points = chart_of("loss", path, x="step").series[0].points
    assert len(points) >= often + seldom - 25  # a few where the two meet may be joined
    assert points[0][0] == steps[0]
    assert points[-1][0] == steps[-1]


def test_speed_is_averaged_by_time(tmp_path):
    lines = [line(step, images_per_second=rate) for step, rate in ((4, 10.0), (6, 20.0), (8, 40.0))]
    path = write_run(tmp_path / "run", lines)
    assert [y for _, y in chart_of("images_per_second", path).series[0].points] == pytest.approx([10, 4 / 0.15])


def test_an_interrupted_run_is_drawn_like_one_that_was_not(tmp_path, monkeypatch):
    """Epochs of 5 steps and a line every 6: the second line of the run is a single batch."""
    settings = dict(PLAIN, epochs=3, checkpoint_steps=2)
    train(**settings | {"log_every": 1}, out=tmp_path / "batches")
    step = Training.step

    def interrupted(self, pieces, epoch):
        if self.state.position.step == 8:
            raise RuntimeError("pulled the plug")
        return step(self, pieces, epoch)

    monkeypatch.setattr(Training, "step", interrupted)
    with pytest.raises(RuntimeError, match="plug"):
        train(**settings | {"log_every": 6}, out=tmp_path / "run")
    monkeypatch.undo()
    train(**settings | {"log_every": 6}, out=tmp_path / "run")
    batches = [y for _, y in chart_of("loss", str(tmp_path / "batches")).series[0].points]
    points = chart_of("loss", str(tmp_path / "run")).series[0].points
    assert [x for x, _ in points] == [1, 2, 3]
    means = [sum(batches[first : first + 5]) / 5 for first in (0, 5, 10)]
    assert [y for _, y in points] == pytest.approx(means)
