"""How fast models are on this machine, and what they take, beside each other.

vitreous bench paca_tiny convnext_tiny --baseline convnext_tiny
"""

import re
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

import torch

from vitreous.errors import InputError, command, printable
from vitreous.figures.counting import count_figures, read_table
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.measurements.benchmark import measure_all
from vitreous.measurements.contender import Recomputed, Setting, Source, StepKind, open_source
from vitreous.measurements.machine import this_machine
from vitreous.measurements.published import of_the_same_cost
from vitreous.measurements.result import BenchResult
from vitreous.measurements.runners import Runner, load_runners
from vitreous.models.arguments import parse_model_arg
from vitreous.registry import resolve_name
from vitreous.reports.benchmark import bench_markdown, draw_measured_growth, draw_pareto, print_result
from vitreous.runs.model_folder import find_model_folder
from vitreous.runs.results import require_positive, result_folder
from vitreous.runtime.device import choose_device

BENCH_FILE, BENCH_TABLE = "bench.json", "bench.md"
SIZE_FORM = re.compile(r"(\d+)(?:x(\d+))?(?::(\d+))?")
MOST_SIDE, MOST_BATCH = 16_384, 4_096


def bench(
    models: tuple[str, ...],
    *,
    baseline: str | None = None,
    size: tuple[int | str, ...] = (224,),
    batch_size: tuple[int, ...] = (1, 8),
    step: tuple[Literal["infer", "train"], ...] = ("infer",),
    mode: tuple[str, ...] = ("eager",),
    task: str = "classify",
    head: str | None = None,
    head_args: tuple[str, ...] = (),
    grad_checkpointing: Literal["off", "blocks", "mlp"] = "off",
    pareto: bool = False,
    busy: bool = False,
    timed: bool = True,
    rounds: int = 15,
    threads: int | None = None,
    device: str = "cpu",
    out: Path | None = None,
) -> BenchResult:
    """Measure models on this machine: latency, throughput, memory, multiply-adds and parameters.

    Each round times every model once, in turns with a large product of matrices, so that a busy moment of the machine
    hits all of them; a ratio is the median over the rounds' own ratios, with the range of the middle half. Memory is
    counted without running anything. Models that are given by name have fresh weights, on which neither depends. A
    training step is forward, backward and AdamW's update, in a process that keeps freed memory, as vitreous train does.

    With two or more sizes, exponents of time and memory over the number of pixels are fitted. With --out, bench.json
    has every single time, bench.md the tables, and charts show growth over sizes and, where two or more models have a
    published accuracy, that accuracy against the measured images a second.

    Examples:
        vitreous bench paca_tiny convnext_tiny pvt_v2_b1 --baseline convnext_tiny --size 224:8 1024:1
        vitreous bench paca_tiny convnext_tiny --baseline convnext_tiny --step infer train --busy
        vitreous bench paca_tiny pvt_v2_b1 --mode eager compiled openvino --batch-size 8
        vitreous bench runs/demo exports/demo-onnx --baseline runs/demo
        vitreous bench paca_tiny --size 512 1024 2048 --batch-size 1 --out runs/growth
        vitreous bench paca_tiny --pareto --batch-size 8 --out runs/pareto
        vitreous bench paca_b0 pvt_v2_b0 --task detect --head maskrcnn --step train --size 800x1216:1 --no-timed

    Args:
        models: Model names, ours or any of timm's, run folders, model folders, or exported folders.
        baseline: One of the models; the others' images a second are also given as multiples of its.
        size: Image sizes in pixels: 224, or height and width as 800x1216; 1024:1 has a batch size of its own.
        batch_size: Images in a batch; every size without one of its own is measured with each.
        step: What is timed: infer, train, or both.
        mode: How models are run: eager, bf16 (mixed precision), compiled, onnxruntime, openvino (extra `export`).
        task: classify, detect, segment or keypoints; all but the first put a head on each model.
        head: Of tasks with a head: which; default: the task's usual one.
        head_args: Build the head with other arguments, e.g. channels=128.
        grad_checkpointing: In training, compute blocks, or their feed-forward layers (mlp), twice to save memory.
        pareto: Also measure published models, ours and timm's, with half to twice the multiply-adds of the given ones.
        busy: Repeat every measurement beside a competing load on all cores.
        timed: Run and time the models; without, parameters, multiply-adds and memory are counted and nothing is run.
        rounds: How often each model is timed in each setting.
        threads: Threads of torch; default: as many as torch takes by itself.
        device: cpu, cuda, cuda:1, mps, or auto.
        out: Folder to write to; an earlier result there is replaced. Default: figures are printed only.

    Returns:
        What was printed, as an object: `measurements`, each with all its times, and `to_dict()` for a file.
    """
    require_positive(rounds=rounds, threads=1 if threads is None else threads)
    settings, runners = read_settings(size, batch_size, step), choose_runners(mode, step, timed, busy)
    with ExitStack() as held:
        held.enter_context(threads_set(threads))  # before exported models are opened, whose programs keep the number
        given = with_peers(models, task) if pareto else models
        sources = open_sources(given, task, head, head_args, device, grad_checkpointing)
        require_baseline(baseline, [source.label for source in sources])
        require_runnable(runners if timed else (), sources, step)
        staging = None if out is None else held.enter_context(result_folder(out, BENCH_FILE))
        found = measure_all(sources, settings, runners, rounds=rounds, timed=timed, busy=busy)
        asked = {"head": head, "grad_checkpointing": grad_checkpointing}
        result = BenchResult(this_machine(sources[0].device), tuple(found), baseline, sources[0].task.name, asked)
        if staging is not None:
            write_bench(result, staging)
    print_result(result)
    print(hint(result, out))
    return result


def open_sources(
    models: Sequence[str], task: str, head: str | None, head_args: Sequence[str], device: str, recompute: Recomputed
) -> list[Source]:
    """All models, refused before the work if one of them cannot be used."""
    if not models:
        raise InputError("no model given; give one or more: vitreous bench paca_tiny")
    place, arguments = choose_device(device), dict(parse_model_arg(text) for text in head_args)
    sources = [open_source(name, task, head, arguments, place, recompute) for name in dict.fromkeys(models)]
    if len({source.task.name for source in sources}) > 1:
        told = ", ".join(f"{source.label} ({source.task.name})" for source in sources)
        raise InputError(f"models of several tasks given: {told}; measure those of one task at a time")
    return sources


def require_baseline(baseline: str | None, names: Sequence[str]) -> None:
    if baseline is not None and baseline not in names:
        raise InputError(
            f"--baseline {baseline} is not among the models {', '.join(names)}; measure it too: "
            f"{command('bench', *names, baseline, '--baseline', baseline)}"
        )


def read_settings(sizes: Sequence[int | str], batches: Sequence[int], steps: Sequence[StepKind]) -> list[Setting]:
    """Every step at every size with every batch size, or the size's own."""
    found: dict[Setting, None] = {}
    for name, given in (("size", sizes), ("batch-size", batches), ("step", steps)):
        if not given:
            raise InputError(f"--{name} given without a value; give one or more")
    for step in sorted(steps):  # training changes how the process keeps its memory, so it comes last
        for text in sizes:
            form = SIZE_FORM.fullmatch(str(text))
            if form is None:
                raise InputError(
                    f"--size {text} cannot be read; give pixels (224), height and width (800x1216), or either with a "
                    "batch size of its own (1024:1)"
                )
            height, width = int(form[1]), int(form[2] or form[1])
            for batch in [int(form[3])] if form[3] else batches:
                if not (1 <= height <= MOST_SIDE and 1 <= width <= MOST_SIDE and 1 <= batch <= MOST_BATCH):
                    raise InputError(
                        f"--size {text} with a batch of {batch} given; sides are from 1 to {MOST_SIDE} pixels and "
                        f"batches from 1 to {MOST_BATCH} images"
                    )
                found[Setting(step, (height, width), batch)] = None
    return list(found)


def choose_runners(modes: Sequence[str], steps: Sequence[StepKind], timed: bool, busy: bool) -> list[Runner]:
    if not modes:
        raise InputError("--mode given without a value; give one or more")
    if busy and not timed:
        raise InputError("--busy and --no-timed given; a competing load changes times only: leave one of them out")
    known = load_runners()
    for mode in modes:
        if mode not in known:
            raise InputError(f"unknown --mode {mode}; accepted: {', '.join(known)}")
        missing = [step for step in steps if step not in known[mode].steps]
        if missing and timed:
            raise InputError(f"--mode {mode} cannot {missing[0]}; it can: {', '.join(known[mode].steps)}")
    return [runner for name, runner in known.items() if name in modes]


def require_runnable(runners: Sequence[Runner], sources: Sequence[Source], steps: Sequence[StepKind]) -> None:
    exported = [source.label for source in sources if source.exported]
    if exported and "train" in steps:
        raise InputError(
            f"--step train and the exported model '{exported[0]}' given, which cannot learn; leave one out"
        )
    if len(exported) < len(sources):
        for runner in runners:
            runner.require(sources[0].device, sources[0].task)


def with_peers(names: Sequence[str], task: str) -> list[str]:
    """The names, and those of published models of the same cost."""
    if task != "classify":
        raise InputError(f"--pareto and --task {task} given; published accuracies are of classifiers: leave one out")
    table = read_table()
    bare = [resolve_name(name).partition(".")[0] for name in names if find_model_folder(name) is None]
    if not bare:
        raise InputError(
            f"--pareto finds models of the same cost as those given by name; {', '.join(names)} are folders"
        )
    costs = [(table[name] if name in table else count_figures(name))["macs"] / 1e9 for name in bare]
    return list(
        dict.fromkeys([*names, *of_the_same_cost(costs, {key: row["macs"] / 1e9 for key, row in table.items()})])
    )


@contextmanager
def threads_set(number: int | None) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(number or before)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def write_bench(result: BenchResult, folder: Path) -> None:
    """The figures as JSON and Markdown, with charts."""
    charts, told = [], f"{result.machine}; {result.conditions()}; bars: the middle half of the rounds"
    for number, ((setting, busy), points) in enumerate(result.pareto().items()):
        charts.append("pareto.png" if not number else f"pareto_{number + 1}.png")
        heading = f"Accuracy and speed: {setting}{', busy' if busy else ''}"
        draw_pareto(points, heading=heading, machine=told).save(folder / charts[-1])
    if result.growth():
        charts.append("growth.png")
        draw_measured_growth(result).save(folder / charts[-1])
    write_text(folder / BENCH_TABLE, bench_markdown(result, charts))
    write_json(folder / BENCH_FILE, {**result.to_dict(), "files": [BENCH_TABLE, *charts]})


def hint(result: BenchResult, out: Path | None) -> str:
    """Where the result is, or what to ask next."""
    if out is not None:
        return printable(f"bench: {out / BENCH_TABLE}")
    names = list(dict.fromkeys(measurement.model for measurement in result.measurements))
    if len(names) == 1 and result.measurements[0].seconds:
        words = (*names, "convnext_tiny", "--baseline", "convnext_tiny")
        task = () if result.task == "classify" else ("--task", result.task)
        return printable(f"next: {command('bench', *words, *task)}")
    if len(names) > 1 and result.baseline is None and result.measurements[0].seconds:
        return printable(f"next: --baseline {names[-1]} gives ratios, --out FOLDER keeps every time, tables and charts")
    return "next: --out FOLDER keeps all figures, tables and charts"
