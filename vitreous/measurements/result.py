"""What a benchmark has found: one measurement for each model, way to run it and setting; figures are made of these."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from vitreous.figures.counting import fitted_power
from vitreous.measurements.contender import Setting
from vitreous.measurements.machine import Machine
from vitreous.measurements.published import PUBLISHED_SIZE, PublishedAccuracy, published_accuracy
from vitreous.measurements.statistics import Spread, percentile, ratio_by_round, spread_of

PLAIN_MODE = "eager"


@dataclass(frozen=True)
class Measurement:
    """One model, run in one way, in one setting, quiet or beside a competing load."""

    model: str
    mode: str
    setting: Setting
    params: int | None  # of an exported model, nothing tells
    macs: int | None  # of one image, in this step
    activation_bytes: int | None  # all that a pass makes, at the moment when it is most
    whole_bytes: int | None  # with weights and, in training, gradients and AdamW's moments
    memory_by: str  # "counted" by tensors, or "resident" memory of the process
    busy: bool = False
    seconds: tuple[float, ...] = ()  # of every round; empty where nothing was timed
    product_macs: int = 0  # of the matrix product that was timed in every round
    product_seconds: tuple[float, ...] = ()
    prepare_seconds: float = 0.0  # until the first answer
    load_before: float | None = None
    load_after: float | None = None
    macs_assumed: bool = False  # counted for as many regions as published counts assume, not for those that are found

    @property
    def p50(self) -> float:
        return percentile(self.seconds, 50)

    @property
    def p95(self) -> float:
        return percentile(self.seconds, 95)

    @property
    def throughput(self) -> Spread:
        """Images a second."""
        return spread_of([self.setting.batch / each for each in self.seconds])

    @property
    def peak_share(self) -> Spread | None:
        """Multiply-adds a second, as a share of those of the matrix product of the same round."""
        if self.macs_assumed or self.macs is None:
            return None
        own, most = self.setting.batch * self.macs, self.product_macs
        return ratio_by_round(self.product_seconds, self.seconds, own / most)

    def speed_over(self, other: "Measurement") -> Spread:
        """Times as many images a second as the other, which was measured in the same rounds."""
        return ratio_by_round(other.seconds, self.seconds)

    def row(self) -> dict[str, Any]:
        """Everything about it that does not need the others, for files."""
        known: dict[str, Any] = {
            "model": self.model,
            "mode": self.mode,
            "step": self.setting.step,
            "size": list(self.setting.size),
            "batch": self.setting.batch,
            "busy": self.busy,
            "params": self.params,
            "macs": self.macs,
            "macs_assumed": self.macs_assumed,
            "activation_bytes": self.activation_bytes,
            "whole_bytes": self.whole_bytes,
            "memory_by": self.memory_by,
            "rounds": len(self.seconds),
            "load_before": self.load_before,
            "load_after": self.load_after,
        }
        if not self.seconds:
            return known
        return known | {
            "p50_seconds": self.p50,
            "p95_seconds": self.p95,
            "images_per_second": self.throughput._asdict(),
            "peak_share": None if self.peak_share is None else self.peak_share._asdict(),
            "product_macs_per_second": self.product_macs / percentile(self.product_seconds, 50),
            "prepare_seconds": self.prepare_seconds,
            "seconds": list(self.seconds),
        }


class MeasuredGrowth(NamedTuple):
    """Exponents of the number of pixels that fit time and memory best: 1 is linear, 2 quadratic."""

    model: str
    mode: str
    step: str
    batch: int
    busy: bool
    sizes: tuple[tuple[int, int], ...]
    time: float | None
    memory: float | None


class ParetoPoint(NamedTuple):
    model: str
    images_per_second: Spread
    published: PublishedAccuracy


@dataclass(frozen=True)
class BenchResult:
    machine: Machine
    measurements: tuple[Measurement, ...]
    baseline: str | None = None
    task: str = "classify"
    notes: dict[str, Any] = field(default_factory=dict)  # what else was asked for

    def other(self, one: Measurement, **changes: Any) -> Measurement | None:
        """The measurement that differs from this one in what is named, and was made in the same rounds."""
        wanted = {"model": one.model, "mode": one.mode, "setting": one.setting, "busy": one.busy} | changes
        fitting = (m for m in self.measurements if all(getattr(m, key) == value for key, value in wanted.items()))
        return next(fitting, None)

    def ratio(self, one: Measurement) -> Spread | None:
        """Images a second, as a multiple of the baseline's, run in the same way, or in the first of its ways."""
        other = self.rival(one)
        return None if other is None or not one.seconds else one.speed_over(other)

    def rival(self, one: Measurement) -> Measurement | None:
        """An exported model has one way to be run, which others may lack."""
        if self.baseline is None:
            return None
        own = (m for m in self.measurements if (m.model, m.setting, m.busy) == (self.baseline, one.setting, one.busy))
        return self.other(one, model=self.baseline) or next(own, None)

    def ratio_per_mac(self, one: Measurement) -> Spread | None:
        """The same for images a second times the multiply-adds of an image, for models of different cost."""
        other = self.rival(one)
        if other is None or not one.seconds or one.macs_assumed or other.macs_assumed:
            return None
        if one.macs is None or other.macs is None:
            return None
        return ratio_by_round(other.seconds, one.seconds, one.macs / other.macs)

    def ratio_to_eager(self, one: Measurement) -> Spread | None:
        """Images a second, as a multiple of the same model's own without compiling or exporting."""
        other = None if one.mode == PLAIN_MODE else self.other(one, mode=PLAIN_MODE)
        return None if other is None or not one.seconds else one.speed_over(other)

    def growth(self) -> list[MeasuredGrowth]:
        """Of every model that was measured at two or more sizes."""
        series: dict[tuple[Any, ...], list[Measurement]] = {}
        for m in self.measurements:
            series.setdefault((m.model, m.mode, m.setting.step, m.setting.batch, m.busy), []).append(m)
        found = []
        for key, members in series.items():
            at = sorted(members, key=lambda m: m.setting.pixels)
            if len({m.setting.pixels for m in at}) > 1:
                sizes = tuple(m.setting.size for m in at)
                memory = exponent_of([(m.setting.pixels, m.activation_bytes) for m in at])
                time = exponent_of([(m.setting.pixels, m.p50 if m.seconds else None) for m in at])
                model, mode, step, batch, busy = key
                found.append(MeasuredGrowth(model, mode, step, batch, busy, sizes, time, memory))
        return found

    def pareto(self) -> dict[tuple[Setting, bool], list[ParetoPoint]]:
        """Published accuracy and measured speed, for inference of classifiers at the size of the publication."""
        found: dict[tuple[Setting, bool], list[ParetoPoint]] = {}
        for m in self.measurements:
            right = m.setting.step == "infer" and m.setting.size == (PUBLISHED_SIZE, PUBLISHED_SIZE)
            known = published_accuracy(m.model) if self.task == "classify" and right and m.seconds else None
            if known is not None and m.mode == PLAIN_MODE:
                found.setdefault((m.setting, m.busy), []).append(ParetoPoint(m.model, m.throughput, known))
        return {key: points for key, points in found.items() if len(points) > 1}

    def conditions(self) -> str:
        """How often was measured, and how busy the machine was meanwhile."""
        rounds = {len(m.seconds) for m in self.measurements}
        loads = [load for m in self.measurements for load in (m.load_before, m.load_after) if load is not None]
        told = [count_rounds(max(rounds))] if max(rounds) else ["counted, not run"]
        return ", ".join([*told, *([f"load {min(loads):.1f} to {max(loads):.1f}"] if loads else [])])

    def to_dict(self) -> dict[str, Any]:
        """All of it, for a JSON file."""
        rows = []
        for m in self.measurements:
            ratios = {
                "ratio": self.ratio(m),
                "ratio_per_mac": self.ratio_per_mac(m),
                "ratio_to_eager": self.ratio_to_eager(m),
            }
            rows.append(m.row() | {name: value._asdict() for name, value in ratios.items() if value is not None})
        return {
            "machine": self.machine.row(),
            "task": self.task,
            "baseline": self.baseline,
            **self.notes,
            "measurements": rows,
            "growth": [entry._asdict() for entry in self.growth()],
            "published": {
                m.model: known._asdict()
                for m in self.measurements
                if self.task == "classify" and (known := published_accuracy(m.model)) is not None
            },
        }


def count_rounds(number: int) -> str:
    return f"{number} round{'s' if number != 1 else ''}"


def exponent_of(points: Sequence[tuple[int, float | None]]) -> float | None:
    """The power of the number of pixels that fits the values best; None if one of them is not known."""
    values = [value for _, value in points if value]
    return fitted_power([pixels for pixels, _ in points], values) if len(values) == len(points) else None
