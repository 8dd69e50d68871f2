"""Tables and charts of `vitreous bench`, of measurements that are made up."""

from dataclasses import replace

import pytest
import torch

from vitreous.measurements.contender import Setting
from vitreous.measurements.machine import this_machine
from vitreous.measurements.published import PublishedAccuracy
from vitreous.measurements.result import BenchResult, Measurement, ParetoPoint
from vitreous.measurements.statistics import Spread
from vitreous.reports.benchmark import (
    NAME_HEIGHT,
    NAME_WIDTH,
    bench_markdown,
    draw_measured_growth,
    draw_pareto,
    frontier_of,
    name_places,
    overlap,
    print_result,
)


def measurement(model: str, seconds: float, *, side: int = 224, mode: str = "eager", busy: bool = False) -> Measurement:
    times = tuple(seconds * factor for factor in (0.9, 1.0, 1.0, 1.1, 2.0))
    return Measurement(
        model, mode, Setting("infer", (side, side), 8), 12_200_000, 3_219_000_000, 4 * side**2, 10**8, "counted", busy,
        times, 2048**3, (0.1,) * 5, 0.5, 1.0, 2.0,
    )  # fmt: skip


@pytest.fixture
def result() -> BenchResult:
    found = [
        measurement(name, factor * (side / 224) ** 2, side=side, busy=busy)
        for side in (224, 448)
        for busy in (False, True)
        for name, factor in (("convnext_tiny", 1.0), ("swin_tiny_patch4_window7_224", 0.5))
    ]
    return BenchResult(this_machine(torch.device("cpu")), tuple(found), "convnext_tiny")


def test_figures_are_those_of_the_times(result: BenchResult) -> None:
    base, other = result.measurements[:2]
    assert (base.p50, base.throughput.middle) == (1.0, 8.0)
    assert base.p95 == pytest.approx(1.82)  # between the fourth and the fifth
    assert result.ratio(base) == (1, 1, 1)
    assert result.ratio(other) == pytest.approx((2, 2, 2))
    assert other.peak_share is not None
    assert other.peak_share.middle == pytest.approx(8 * other.macs / 0.5 / (2048**3 / 0.1))
    assumed = replace(other, macs_assumed=True)
    assert assumed.peak_share is None
    assert assumed.row()["peak_share"] is None
    for growth in result.growth():
        assert growth.time == pytest.approx(1)
        assert growth.memory == pytest.approx(1)


@pytest.mark.parametrize("width", [80, 160])
def test_tables_fit_the_terminal(
    width: int, result: BenchResult, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("COLUMNS", str(width))
    print_result(result)
    out = capsys.readouterr().out
    assert max(map(len, out.splitlines())) <= width
    assert "2.00 [2.00, 2.00]" in out
    assert "…" not in out
    assert ("12.2 M" in out) == (width == 160)
    assert "beside a competing load" in out


def test_markdown_has_a_table_for_every_setting(result: BenchResult) -> None:
    page = bench_markdown(result, ["growth.png"])
    assert page.count("| model | images/s |") == 4
    for line in page.splitlines():
        if line.startswith("| `"):
            assert "| – |" not in line
    assert "5 rounds" in page
    assert "load 1.0 to 2.0" in page
    assert "![growth.png](growth.png)" in page


def test_a_compiled_model_is_set_beside_its_own_eager_form() -> None:
    plain, fast = measurement("paca_tiny", 1.0), measurement("paca_tiny", 0.5, mode="compiled")
    both = BenchResult(this_machine(torch.device("cpu")), (plain, fast))
    assert both.ratio_to_eager(fast) == pytest.approx((2, 2, 2))
    assert both.ratio_to_eager(plain) is None
    assert "`paca_tiny, compiled`" in bench_markdown(both, [])


def point(name: str, rate: float, top1: float) -> ParetoPoint:
    return ParetoPoint(name, Spread(rate, rate * 0.9, rate * 1.1), PublishedAccuracy(top1, "paper", name < "m"))


def test_the_frontier_has_what_no_other_beats_in_both() -> None:
    points = [point("a", 10, 80), point("b", 20, 79), point("c", 9, 79.5), point("z", 5, 82), point("y", 20, 78)]
    assert [one.model for one in frontier_of(points)] == ["b", "a", "z"]


def test_names_do_not_meet_and_stay_inside() -> None:
    generator = torch.Generator().manual_seed(0)
    points = torch.rand(40, 2, generator=generator).tolist()
    letters = [12] * 40
    found = name_places(points, letters)
    boxes = [(x, y - NAME_HEIGHT / 2, x + 12 * NAME_WIDTH, y + NAME_HEIGHT / 2) for x, y in filter(None, found)]
    assert len(boxes) > 20
    assert all(box[0] >= 0 and box[2] <= 1 for box in boxes)
    assert not any(overlap(one, other) for number, one in enumerate(boxes) for other in boxes[:number])


def test_charts_are_drawn(result: BenchResult) -> None:
    assert draw_measured_growth(result).size == (1104, 560)
    points = [point("a", 10, 80), point("z", 20, 79)]
    assert draw_pareto(points, heading="$h", machine="m; n").size == (1104, 720)
