"""All models in all settings: counted, then run in turns."""

import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, nullcontext
from typing import Any, NamedTuple

import torch
from torch import nn

from vitreous.errors import InputError, limit_reached
from vitreous.figures.counting import Figures
from vitreous.files.reading import reason_of
from vitreous.measurements.contender import Contender, Setting, Source
from vitreous.measurements.load import competing_load
from vitreous.measurements.machine import free_bytes, load_average, matrix_product
from vitreous.measurements.memory import PassMemory, resident_growth
from vitreous.measurements.result import Measurement
from vitreous.measurements.rounds import WARM_UP_RUNS, TimedRun, seconds, turns
from vitreous.measurements.runners import Runner
from vitreous.measurements.runners.exported import runner_of_folder
from vitreous.runtime.console import track
from vitreous.runtime.device import keep_freed_memory

PRODUCT = "matrix product"
GIGABYTE = 10**9


class Counted(NamedTuple):
    """What is known of a contender without running it; None where nothing tells."""

    label: str
    figures: Figures | None
    memory: PassMemory | None
    regions_assumed: bool

    @property
    def work(self) -> tuple[int | None, int | None]:
        """Parameters, multiply-adds."""
        return self.figures or (None, None)


class Prepared(NamedTuple):
    """A contender with a way to run it, ready to be timed."""

    contender: Contender
    counted: Counted
    runner: Runner
    run: TimedRun
    prepare_seconds: float
    resident: int | None

    @property
    def key(self) -> str:
        return f"{self.contender.label} {self.runner.name}"


class Models:
    """The models of the sources, each built once, or once for every size where timm builds it for one."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self.sources = sources
        self._built: dict[tuple[str, tuple[int, int] | None], nn.Module] = {}

    def contenders(self, setting: Setting) -> list[Contender]:
        found = []
        for source in self.sources:
            key = source.label, setting.size if source.fixed else None
            if key not in self._built:
                self._built = {known: model for known, model in self._built.items() if known[0] != source.label}
                self._built[key] = source.build(setting.size)
            found.append(Contender(source.label, self._built[key], source.task, setting, source.device))
        return found


def measure_all(
    sources: Sequence[Source],
    settings: Sequence[Setting],
    runners: Sequence[Runner],
    *,
    rounds: int,
    timed: bool = True,
    busy: bool = False,
) -> list[Measurement]:
    """One measurement for each model, runner and setting and, with `busy`, another beside a competing load."""
    models, found = Models(sources), []
    all_counted = {}
    for setting in settings:  # what cannot be run is refused before anything is
        contenders = models.contenders(setting)
        all_counted[setting] = count_all(contenders)
        if timed:
            require_memory(contenders, all_counted[setting])
    if not timed:
        return [counted_only(setting, one) for setting, counted in all_counted.items() for one in counted]
    for setting, counted in all_counted.items():
        contenders = models.contenders(setting)
        if setting.step == "train":
            keep_freed_memory(contenders[0].device)  # as training does
        with ExitStack() as sessions:
            for runner in runners:
                sessions.enter_context(runner.session())
            prepared = prepare_all(zip(contenders, counted, strict=True), runners)
            for loaded in (False, True) if busy else (False,):
                found += measure_setting(prepared, rounds, loaded)
    return found


def count_all(contenders: Sequence[Contender]) -> list[Counted]:
    """A size that a model cannot take is refused here."""
    label = f"count {contenders[0].setting}"
    return [
        Counted(contender.label, contender.figures, contender.memory(), contender.regions_assumed)
        for contender in track(contenders, total=len(contenders), label=label, unit="models")
    ]


def counted_only(setting: Setting, one: Counted) -> Measurement:
    activations, whole = one.memory or (None, None)
    return Measurement(
        *(one.label, "counted", setting, *one.work, activations, whole, "counted"), macs_assumed=one.regions_assumed
    )


def require_memory(contenders: Sequence[Contender], counted: Sequence[Counted]) -> None:
    """Refuse a setting that cannot fit before the system ends the process."""
    free, setting = free_bytes(), contenders[0].setting
    pairs = zip(counted, contenders, strict=True)
    known = [(one.memory, contender) for one, contender in pairs if one.memory is not None]
    if free is None or not known or contenders[0].device.type != "cpu":
        return
    # Models take turns, so activations are those of one; what training keeps beside the weights stays for all.
    weights = [sum(p.nbytes for p in contender.model.parameters()) for _, contender in known]
    kept = 3 * sum(weights) if setting.step == "train" else 0
    most, contender = max(known, key=lambda entry: entry[0].activations)
    needed = most.activations + kept
    if needed > free:
        raise InputError(
            f"{setting} of '{contender.label}' needs about {needed / GIGABYTE:.1f} GB and {free / GIGABYTE:.1f} GB are "
            "free; give a smaller --size or --batch-size, fewer models, or --no-timed to count without running"
        )


def prepare_all(contenders: Iterable[tuple[Contender, Counted]], runners: Sequence[Runner]) -> list[Prepared]:
    """Everything compiled or exported, and run once."""
    prepared = []
    ways = [(one, counted, runner) for one, counted in contenders for runner in ways_to_run(one, runners)]
    label = f"prepare {ways[0][0].setting}"
    for contender, counted, runner in track(ways, total=len(ways), label=label, unit="models"):
        start = time.perf_counter()
        with explained(contender):
            run = runner.prepare(contender)
            run()
            took = time.perf_counter() - start
            contender.model.zero_grad(set_to_none=True)  # or a step would be given what the last one had left
            resident = None if runner.counted else resident_growth(run, contender.device)
        prepared.append(Prepared(contender, counted, runner, run, took, resident))
    return prepared


def ways_to_run(contender: Contender, runners: Sequence[Runner]) -> Sequence[Runner]:
    """An exported model runs in the program that it was exported for."""
    return runners if contender.exported is None else [runner_of_folder(contender.exported)]


@contextmanager
def explained(contender: Contender) -> Iterator[None]:
    """Say which model could not be run, and why: in torch and timm, both are in the traceback only."""
    try:
        yield
    except InputError:
        raise
    except (RuntimeError, ValueError, MemoryError, torch.OutOfMemoryError) as reason:
        doing = f"{contender.setting} of '{contender.label}'"
        if limit_reached(reason) is not None:
            raise InputError(
                f"there is not enough memory for {doing}; give a smaller --size or --batch-size"
            ) from reason
        raise InputError(
            f"{doing} is not possible ({reason_of(reason)}); leave it out, or change the setting"
        ) from reason


def measure_setting(prepared: Sequence[Prepared], rounds: int, busy: bool) -> list[Measurement]:
    """Every run once a round, in turns with a product of matrices."""
    setting, device = prepared[0].contender.setting, prepared[0].contender.device
    product, product_macs = matrix_product(device)
    runs: dict[str, TimedRun] = {one.key: one.run for one in prepared} | {PRODUCT: product}
    before = load_average()
    with competing_load() if busy else nullcontext():
        times = time_rounds(runs, rounds, device, label=f"{setting}{', busy' if busy else ''}")
    after = load_average()
    return [
        Measurement(
            one.contender.label,
            one.runner.name,
            setting,
            *one.counted.work,
            **memory_of(one),
            busy=busy,
            seconds=tuple(times[one.key]),
            product_macs=product_macs,
            product_seconds=tuple(times[PRODUCT]),
            prepare_seconds=one.prepare_seconds,
            load_before=before,
            load_after=after,
            macs_assumed=one.counted.regions_assumed,
        )
        for one in prepared
    ]


def time_rounds(
    runs: Mapping[str, TimedRun], rounds: int, device: torch.device | None = None, *, label: str
) -> dict[str, list[float]]:
    """Seconds of every run by name, one for each round; the first rounds warm up and are left out."""
    times: dict[str, list[float]] = {name: [] for name in runs}
    order = list(turns(list(runs), WARM_UP_RUNS + rounds))
    for name in track(order, total=len(order), label=label, unit="runs"):
        times[name].append(seconds(runs[name], device))
    return {name: taken[WARM_UP_RUNS:] for name, taken in times.items()}


def memory_of(one: Prepared) -> dict[str, Any]:
    """Bytes of activations and of everything, and how they are known."""
    if one.runner.counted:
        activations, whole = one.counted.memory or (None, None)
        return {"activation_bytes": activations, "whole_bytes": whole, "memory_by": "counted"}
    model, whole = one.contender.model, None
    if one.resident is not None:
        moments = 2 * sum(p.nbytes for p in model.parameters() if p.requires_grad)
        held = sum(tensor.nbytes for tensor in (*model.parameters(), *model.buffers()))
        whole = one.resident + held + (moments if one.contender.setting.step == "train" else 0)
    return {"activation_bytes": one.resident, "whole_bytes": whole, "memory_by": "resident"}
