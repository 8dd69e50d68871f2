"""How right a classifier is on images of other sizes than it was trained with."""

from collections.abc import Sequence

import torch

from vitreous.errors import InputError
from vitreous.investigations.base import Inquiry, Investigated, Investigation, coloured, rows_or_reasons
from vitreous.reports.chart import Chart, Series
from vitreous.reports.investigation import Findings
from vitreous.runs.trained_model import TrainedModel, class_columns

FACTORS = (0.5, 0.75, 1.0, 1.25, 1.5, 2.0)  # of the size it was trained with
MULTIPLE = 8  # of the sides


def usual_sizes(trained: TrainedModel) -> tuple[int, ...]:
    side = min(trained.preprocess.size)
    return tuple(dict.fromkeys(max(MULTIPLE, round(side * factor / MULTIPLE) * MULTIPLE) for factor in FACTORS))


@torch.no_grad()
def share_of_batches(trained: TrainedModel, inquiry: Inquiry, label: str, columns: Sequence[int]) -> tuple[float, int]:
    """Of the inquiry's pictures, and how many there were. `columns`: where their classes are in the output."""
    known = torch.tensor(columns)
    right = count = 0
    for batch in inquiry.batches(trained, label):
        right += int((trained.model(batch.inputs).argmax(1).cpu() == known[batch.labels]).sum())
        count += len(batch.labels)
    return right / count, count


class Resolution(Investigation):
    name = "resolution"
    order = 50
    asks = "how right a classifier is on images of other sizes"
    reading = (
        "Right answers, in percent, on the same pictures brought to other sizes; the model and its weights stay. A "
        "flat curve means that the model can be used cheaper, or finer, than it was trained. A peak somewhat above the "
        "size of training is usual where training crops showed objects larger than whole pictures do (Touvron et "
        "al., arXiv 1906.06423)."
    )

    def run(self, inquiry: Inquiry) -> Findings:
        refused: dict[str, str] = {}

        def right_at_sizes(subject: Investigated, inquiry: Inquiry) -> list[dict]:
            columns, rows = class_columns(subject.trained, inquiry.images(subject.trained).classes), []
            for size in inquiry.sizes or usual_sizes(subject.trained):
                try:
                    rows.append(right_at(subject, inquiry, size, columns))
                except InputError as reason:  # many of timm's models take a single size
                    refused[f"{subject.label} at {size}"] = str(reason)
            return rows

        rows, undefined = rows_or_reasons(inquiry, right_at_sizes)
        colours, legend = coloured([row["model"] for row in rows])
        series = [
            Series(name, tuple((row["size"], 100 * row["top1"]) for row in rows if row["model"] == name), colour, name)
            for name, colour in colours.items()
        ]
        chart = Chart(
            "right answers", "height and width of the images, in pixels", tuple(series), unit="%", ends=(0, 100)
        )
        return Findings(
            tuple(rows), (chart,), legend, undefined=undefined | refused, columns=("model", "size", "top1", "pictures")
        )


def right_at(subject: Investigated, inquiry: Inquiry, size: int, columns: Sequence[int]) -> dict:
    share, count = share_of_batches(inquiry.at_size(subject, size), inquiry, f"{subject.label} at {size}", columns)
    return {"model": subject.label, "size": size, "top1": round(share, 4), "pictures": count}


INVESTIGATION = Resolution()
