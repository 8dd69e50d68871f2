"""`vitreous bench`: what it prints, what it leaves, and what it refuses before the work."""

import json
import re
import sys
from pathlib import Path

import pytest
import torch

import vitreous
import vitreous_command
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.bench import bench, read_settings, with_peers
from vitreous.errors import InputError
from vitreous.measurements import benchmark, machine
from vitreous.measurements.contender import Setting
from vitreous.measurements.published import PEERS, published_accuracy

QUICK = dict(size=(32, 64), batch_size=(2,), rounds=2)


@pytest.fixture(autouse=True)
def _small_product(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(machine, "PRODUCT_SIDE", 64)


def test_one_command_measures_and_teaches(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    folder = save_tiny_model(tmp_path / "best")
    options = ["--size", "32", "--batch-size", "1", "--rounds", "2"]
    assert vitreous_command.main(["bench", folder, *options]) == 0
    out, progress = capsys.readouterr()
    assert "inference, 32x32, batch 1; 2 rounds, matrix products" in out
    assert "1 thread" in " ".join(out.split())
    assert f"torch {torch.__version__}" in " ".join(out.split())
    assert "next: vitreous bench" in out
    assert "runs/s" in progress


def test_files_agree_with_each_other_and_with_the_result(tmp_path: Path) -> None:
    names = ("test_convnext", "test_vit")
    out = tmp_path / "bench"
    result = bench(names, baseline="test_convnext", out=out, **QUICK)
    content, page = json.loads((out / "bench.json").read_text()), (out / "bench.md").read_text()
    assert content == json.loads(json.dumps(result.to_dict())) | {"files": ["bench.md", "growth.png"]}
    assert len(content["measurements"]) == len(names) * 2
    rows = [line.split(" | ") for line in page.splitlines() if re.match(r"\| `test_\w+` \| \d", line)]
    assert len(rows) == len(content["measurements"])
    for row, entry in zip(rows, content["measurements"], strict=True):
        assert row[0] == f"| `{entry['model']}`"
        rate, middle = entry["images_per_second"], entry["ratio"]["middle"]
        assert float(row[1].partition(" ")[0]) == pytest.approx(rate["middle"], rel=0.01)
        assert float(row[2]) == pytest.approx(1000 * entry["p50_seconds"], rel=0.01, abs=0.06)
        assert float(row[8].partition("%")[0]) == pytest.approx(100 * entry["peak_share"]["middle"], abs=0.6)
        assert float(row[9].partition(" ")[0]) == pytest.approx(middle, abs=0.006)
        assert rate["low"] <= rate["middle"] <= rate["high"]
        assert len(entry["seconds"]) == entry["rounds"] == 2
        if entry["model"] == "test_convnext":
            assert (entry["ratio"]["low"], middle, entry["ratio"]["high"]) == (1, 1, 1)
    assert {"processor", "cores", "threads", "versions", "precision"} <= content["machine"].keys()
    for growth in content["growth"]:
        assert growth["memory"] is not None
        assert f"{growth['memory']:.3f}" in page
    assert str(result.machine) in page


def test_without_timing_nothing_is_run_and_sizes_may_be_huge(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "time_rounds", None)  # calling it would fail
    result = bench(("test_convnext",), size=("4096:1", "8192:1"), timed=False)
    (growth,) = result.growth()
    assert growth.time is None
    assert growth.memory == pytest.approx(1, abs=0.01)
    assert result.pareto() == {}


def test_recomputing_saves_memory() -> None:
    shallow = dict(size=("64:2",), step=("train",), timed=False)
    plain, saving = (bench(("paca_b0",), grad_checkpointing=how, **shallow) for how in ("off", "blocks"))
    assert saving.measurements[0].activation_bytes < 0.7 * plain.measurements[0].activation_bytes


def test_runs_with_a_head_are_measured_whole(tmp_path: Path) -> None:
    folder = save_tiny_dense(tmp_path, "detect", ("a", "b"))
    result = bench((folder,), size=("64x96:1",), rounds=1)
    assert result.task == "detect"
    assert result.measurements[0].setting.size == (64, 96)
    assert result.measurements[0].seconds


def test_published_models_are_drawn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Accuracy against speed, at the size of the publication alone."""

    def timed(runs, rounds, device=None, *, label):
        return {name: [0.1 * (number + 1)] * rounds for number, name in enumerate(runs)}

    monkeypatch.setattr(benchmark, "time_rounds", timed)
    monkeypatch.setattr(benchmark, "prepare_all", lambda contenders, runners: [
        benchmark.Prepared(one, counted, runners[0], lambda: None, 0.0, None) for one, counted in contenders
    ])  # fmt: skip
    out = tmp_path / "pareto"
    result = bench(("mobilenetv2_100", "efficientnet_b0"), size=("224:1", "32:1"), out=out)
    ((setting, busy), points), *others = result.pareto().items()
    assert (setting, busy, others) == (Setting("infer", (224, 224), 1), False, [])
    assert [(point.model, point.published.top1) for point in points] == [
        (name, PEERS[name].top1) for name in ("mobilenetv2_100", "efficientnet_b0")
    ]
    assert (out / "pareto.png").stat().st_size > 5_000
    assert "pareto.png" in (out / "bench.md").read_text()


def test_peers_are_models_of_timm_of_about_the_cost_that_the_table_says() -> None:
    names = with_peers(["paca_tiny"], "classify")
    assert names[0] == "paca_tiny"
    assert {"pvt_v2_b1", "convnext_tiny", "paca_small"} <= set(names)
    assert "pvt_v2_b0" not in names
    for name in PEERS:
        assert vitreous.registry.resolve_name(name) == name
        known = published_accuracy(name)
        assert known is not None
        assert not known.ours
    assert published_accuracy("paca_tiny.ivmcl_in1k") == (80.9, "https://arxiv.org/abs/2203.11987", True)
    assert published_accuracy("paca_b0_cifar") is None
    assert published_accuracy("test_vit") is None


def test_sizes_are_read_with_or_without_a_batch_of_their_own() -> None:
    settings = read_settings((224, "800x1216", "1024:1"), (1, 8), ("infer",))
    assert [(setting.size, setting.batch) for setting in settings] == [
        ((224, 224), 1),
        ((224, 224), 8),
        ((800, 1216), 1),
        ((800, 1216), 8),
        ((1024, 1024), 1),
    ]


def test_what_cannot_be_measured_is_refused_before_the_work(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(benchmark, "time_rounds", None)  # calling it would fail
    dense = save_tiny_dense(tmp_path / "dense", "segment", ("a", "b"))
    cases = (
        (("paca_tny",), {}, "unknown model 'paca_tny'"),
        ((), {}, "no model given"),
        (("test_vit",), dict(baseline="resnet18"), "measure it too: vitreous bench test_vit resnet18 --baseline"),
        (("test_vit",), dict(size=("224x",)), "--size 224x cannot be read"),
        (("test_vit",), dict(size=("100000",)), "sides are from 1 to"),
        (("test_vit",), dict(batch_size=(0,)), "batch of 0 given"),
        (
            ("test_vit",),
            dict(mode=("fast",)),
            "unknown --mode fast; accepted: eager, bf16, compiled, onnxruntime, openvino",
        ),
        (("test_vit",), dict(rounds=0), "--rounds 0"),
        (("test_vit",), dict(busy=True, timed=False), "leave one of them out"),
        (("test_vit", dense), {}, "models of several tasks given"),
        (("test_vit",), dict(task="detect", pareto=True), "leave one out"),
        (("paca_b0",), dict(size=(8,)), "cannot take images of 8x8 pixels"),
    )
    for models, options, message in cases:
        with pytest.raises(InputError, match=re.escape(message)):
            bench(models, **{**QUICK, **options})
    monkeypatch.setattr(benchmark, "free_bytes", lambda: 1000)
    with pytest.raises(InputError, match=r"needs about .* GB are free; give a smaller --size"):
        bench(("test_vit",), **QUICK)


def test_an_earlier_result_is_replaced_and_other_content_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "bench"
    options = dict(size=("32:1",), timed=False, out=out)
    bench(("test_vit",), **options)
    bench(("test_convnext",), **options)
    assert "test_convnext" in (out / "bench.md").read_text()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "note.txt").write_text("mine")
    monkeypatch.setattr(sys.modules["vitreous.bench"], "measure_all", None)  # calling it would fail
    with pytest.raises(InputError, match="is not empty"):
        bench(("test_vit",), **{**options, "out": tmp_path / "mine"})


@pytest.mark.system
def test_busy_measures_everything_twice_and_leaves_no_load_behind(monkeypatch: pytest.MonkeyPatch) -> None:
    started: list[int] = []
    load = benchmark.competing_load

    def watched():
        class Watched:
            def __enter__(self):
                self.block = load(1)
                started.extend(self.block.__enter__())

            def __exit__(self, *error):
                return self.block.__exit__(*error)

        return Watched()

    monkeypatch.setattr(benchmark, "competing_load", watched)
    result = bench(("test_vit",), busy=True, size=("32:1",), rounds=2)
    assert [measurement.busy for measurement in result.measurements] == [False, True]
    assert started
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
