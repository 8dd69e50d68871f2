import pytest

from vitreous.runtime.console import EpochTable, RemainingTime, format_duration


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0.0s"),
        (8.44, "8.4s"),
        (65, "1m05s"),
        (3599.9, "1h00m"),
        (12_000, "3h20m"),
        (1_000_000, "11d14h"),
        (9e7, "1041d16h"),
    ],
)
def test_durations_are_short(seconds, text):
    assert format_duration(seconds) == text


def test_usual_columns_fit_into_eighty_characters(capsys):
    table = EpochTable()
    row = {
        "epoch": "100/300", "loss": "2.3026", "val loss": "1.2345", "top1": "100.00%", "top5": "100.00%",
        "lr": "1.0e-03", "img/s": "12345", "time": "12m05s", "left": "11d14h",
    }  # fmt: skip
    table.row(row, mark=True)
    table.row(row, mark=False)
    heading, first, second = capsys.readouterr().out.splitlines()
    assert all(name in heading for name in row)
    assert first.endswith(" best")
    assert max(map(len, (heading, first, second))) <= 80
    for name, value in row.items():  # right-aligned below each other
        assert second[: heading.index(f" {name}") + len(name) + 1].endswith(value)


def test_pace_counts_from_this_start(monkeypatch):
    now = [100.0]
    monkeypatch.setattr("vitreous.runtime.console.time.perf_counter", lambda: now[0])
    pace = RemainingTime(done=50)
    now[0] = 110.0
    assert pace.left(done=55, total=75) == 40.0
    assert RemainingTime(done=50).left(done=50, total=75) == 0.0
