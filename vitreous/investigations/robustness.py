"""How right a classifier still is on pictures made worse in known ways, and on other data of the same classes."""

from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path

import torch
from PIL import Image

from vitreous.data.corruptions import CORRUPTIONS, SEVERITIES, corrupted
from vitreous.errors import InputError, nearest
from vitreous.explanations.dataset import selection
from vitreous.investigations.base import Inquiry, Investigated, Investigation, coloured, rows_or_reasons
from vitreous.reports.chart import Chart, Series
from vitreous.reports.investigation import Findings
from vitreous.runs.trained_model import TrainedModel, class_columns, in_batches
from vitreous.runtime.console import track

CLEAN = "clean"


class Robustness(Investigation):
    name = "robustness"
    order = 70
    asks = "how right a classifier is on corrupted pictures, and on other data of the same classes"
    reading = (
        "Right answers, in percent, on the same pictures under corruptions of five severities (ImageNet-C's kinds and "
        "strengths, made here, not its files: figures are comparable within a table, not with the literature). "
        "Severity 0 is the picture as it is. A model may fall on noise and not on blur: look at kinds, then at the "
        "mean. Data given with --also, such as ImageNet-V2, -A or -R in class folders, are other pictures of classes "
        "that the model knows; answers are chosen among all of its classes."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        kinds = chosen_kinds(inquiry.corruptions)
        rows, undefined = rows_or_reasons(inquiry, partial(under_corruptions, kinds=kinds))
        for data in inquiry.also:
            found, reasons = rows_or_reasons(inquiry, partial(on_other_data, data=data))
            rows = found + rows  # where a table cut short still has them
            undefined |= {f"{label} on {data}": reason for label, reason in reasons.items()}
        colours, legend = coloured([row["model"] for row in rows])
        charts = tuple(
            Chart(title, "severity", tuple(
                Series(name, curve(rows, name, within), colour, name) for name, colour in colours.items()
            ), unit="%", ends=(0, 100))
            for title, within in (("mean of all corruptions", kinds), *((kind, (kind,)) for kind in kinds))
        )  # fmt: skip
        columns = ("model", "pictures_of", "severity", "top1", "pictures")
        return Findings(tuple(rows), (*charts, *other_data(rows, inquiry, colours)), legend, {}, undefined, columns)


def other_data(rows: Sequence[dict], inquiry: Inquiry, colours: Mapping[str, str]) -> tuple[Chart, ...]:
    """One chart, of the clean pictures and of each of the other data; none without those."""
    if not inquiry.also:
        return ()
    places = {CLEAN: 0, **{data: place for place, data in enumerate(inquiry.also, 1)}}
    series = []
    for name, colour in colours.items():
        own = [row for row in rows if row["model"] == name and row["pictures_of"] in places]
        points = tuple((float(places[row["pictures_of"]]), 100 * row["top1"]) for row in own)
        series.append(Series(name, points, colour, name))
    names = (CLEAN, *(Path(data).name for data in inquiry.also))
    return (Chart("other data of the same classes", "data", tuple(series), unit="%", ends=(0, 100), names=names),)


def chosen_kinds(given: Sequence[str]) -> tuple[str, ...]:
    for kind in given:
        if kind not in CORRUPTIONS:
            raise InputError(f"unknown corruption {kind!r}; nearest: {nearest(kind, list(CORRUPTIONS))}")
    return tuple(given) or tuple(CORRUPTIONS)


def curve(rows: Sequence[dict], model: str, kinds: Sequence[str]) -> tuple[tuple[float, float], ...]:
    """Means over kinds at each severity, from the clean pictures on."""
    own = [row for row in rows if row["model"] == model]
    clean = [row["top1"] for row in own if row["pictures_of"] == CLEAN]
    points = [(0.0, 100 * clean[0])]
    for severity in SEVERITIES:
        values = [row["top1"] for row in own if row["severity"] == severity and row["pictures_of"] in kinds]
        points.append((float(severity), 100 * sum(values) / len(values)))
    return tuple(points)


def under_corruptions(subject: Investigated, inquiry: Inquiry, kinds: Sequence[str]) -> list[dict]:
    images = inquiry.images(subject.trained)
    known, numbers = class_columns(subject.trained, images.classes), selection(len(images), inquiry.limit)
    wanted = [(CLEAN, 0), *((kind, severity) for kind in kinds for severity in SEVERITIES)]
    rows = []
    for kind, severity in track(wanted, total=len(wanted), label=f"corruptions, {subject.label}", unit="kinds"):
        pictures = [
            images.picture(n) if kind == CLEAN else corrupted(images.picture(n), kind, severity, inquiry.seed + n)
            for n in numbers
        ]
        labels = [known[images.target(n)["labels"]] for n in numbers]
        share = share_right(subject.trained, pictures, labels, inquiry.batch_size)
        rows.append(row_of(subject, kind, severity, share, len(labels)))
    return rows


def on_other_data(subject: Investigated, inquiry: Inquiry, data: str) -> list[dict]:
    images = inquiry.other_images(subject.trained, data)
    known, numbers = class_columns(subject.trained, images.classes), selection(len(images), inquiry.limit)
    pictures = [images.picture(n) for n in numbers]
    labels = [known[images.target(n)["labels"]] for n in numbers]
    share = share_right(subject.trained, pictures, labels, inquiry.batch_size)
    return [row_of(subject, data, None, share, len(pictures))]


def row_of(subject: Investigated, pictures_of: str, severity: int | None, share: float, count: int) -> dict:
    return {
        "model": subject.label,
        "pictures_of": pictures_of,
        "severity": severity,
        "top1": round(share, 4),
        "pictures": count,
    }


@torch.no_grad()
def share_right(
    trained: TrainedModel, pictures: Sequence[Image.Image], labels: Sequence[int], batch_size: int
) -> float:
    right = 0
    for batch in in_batches(zip(pictures, labels, strict=True), batch_size):
        inputs = torch.stack([trained.preprocess(picture) for picture, _ in batch]).to(trained.device)
        told = trained.model(inputs).argmax(1).tolist()
        right += sum(answer == label for answer, (_, label) in zip(told, batch, strict=True))
    return right / len(labels)


INVESTIGATION = Robustness()
