"""An evaluation as tables for the console and for Markdown, as JSON, and as pictures."""

import csv
import io
import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from PIL import Image
from rich.table import Table
from rich.text import Text

from vitreous.drawing.panels import Panel, contact_sheet, enlarge
from vitreous.errors import printable
from vitreous.metrics.accuracy import DetailedMetrics, unique_names
from vitreous.metrics.figures import figure_text
from vitreous.metrics.groups import FEW_IMAGES, GroupAccuracy, GroupFigures
from vitreous.reports.chart import COLOURS, Chart, LegendEntry, Series
from vitreous.reports.figure import confusion_picture, draw_curves, matrix_rows, reliability_picture

MOST_ROWS = 50  # of a table on the console; longer ones belong in a file
MOST_CONFUSED, LOWEST_CLASSES = 5, 10  # rows: pairs of classes, and classes where not all can be shown
MOST_CSV_CLASSES = 2000  # nobody reads a larger matrix
NUMBER = re.compile(r"(|–|[+-]?[\d.,]+ ?%?( \(.*\)| to .*)?)")  # as a cell of a table has it
MISTAKE_WIDTH = 256  # pixels of a picture in the sheet of mistakes


class Speed(NamedTuple):
    """Images per second, loading included, and what it was measured with."""

    images_per_second: float
    batch_size: int
    device: str
    precision: str
    threads: int
    workers: int

    def conditions(self) -> str:
        parts = f"batches of {self.batch_size}", self.device, self.precision, f"threads: {self.threads}"
        return ", ".join((*parts, f"workers: {self.workers}"))


class AtSize(NamedTuple):
    size: int
    values: dict[str, float]
    images_per_second: float


class WorstMistake(NamedTuple):
    image: str
    true: str
    answer: str
    confidence: float
    picture: Image.Image  # as the model saw it


class EarlierModel(NamedTuple):
    """Another model on the same images."""

    model: str  # as it was given
    now: str  # the model that it is compared with, as it was given
    values: dict[str, float]
    groups: GroupAccuracy


class Evaluation(NamedTuple):
    model: str
    data: str
    split: str
    images: int
    size: tuple[int, int]  # (H, W)
    values: dict[str, float]
    speed: Speed
    sizes: tuple[AtSize, ...]
    details: DetailedMetrics | None  # None for tasks that have no more to tell
    mistakes: tuple[WorstMistake, ...]
    unreadable: tuple[tuple[str, str], ...] = ()  # image and reason; the figures are without them
    metric: Any = None  # of tasks without details: its counts, class by class
    columns: tuple[str, ...] = ()  # by which the images are grouped
    before: EarlierModel | None = None

    @property
    def groups(self) -> GroupAccuracy | None:
        return None if self.details is None else self.details.groups

    def by_group(self) -> dict[str, float]:
        """Name of a group -> accuracy in it; of groups without readable images there is none."""
        known = () if self.groups is None else self.groups.per_group()
        return {group.name: group.accuracy for group in known if group.accuracy is not None}

    def facts(self) -> dict[str, Any]:
        height, width = self.size
        about = {"model": self.model, "data": self.data, "split": self.split, "images": self.images}
        return about | {"size": f"{height} x {width}"}


class Grid(NamedTuple):
    """A table that does not know where it will be shown."""

    title: str
    headings: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]

    def is_numeric(self, column: int) -> bool:
        """Whether its cells are numbers, intervals of them, or say that there is none."""
        return all(NUMBER.fullmatch(row[column]) for row in self.rows)


def evaluation_tables(evaluation: Evaluation, *, most_rows: int | None = None) -> list[Grid]:
    """Everything that is shown in rows; with `most_rows`, of many classes only the worst."""
    rows = [(name, figure_text(name, value)) for name, value in evaluation.values.items()]
    rows += [("images/s", f"{evaluation.speed.images_per_second:.1f}"), ("with", evaluation.speed.conditions())]
    height, width = evaluation.size
    found = [Grid(f"{evaluation.model} at {height} x {width}", ("measure", "value"), rows)]
    if evaluation.sizes:
        names = tuple(evaluation.sizes[0].values)
        lines = [
            (str(at.size), *(figure_text(name, at.values[name]) for name in names), f"{at.images_per_second:.1f}")
            for at in evaluation.sizes
        ]
        found.append(Grid("at other sizes", ("size", *names, "images/s"), lines))
    found += group_tables(evaluation, most_rows)
    if evaluation.details is not None:
        found += class_tables(evaluation.details, most_rows)
    else:
        found += [_class_grid(title, rows, most_rows) for title, rows in parts_by_class(evaluation.metric).items()]
    if evaluation.unreadable:
        title = f"{len(evaluation.unreadable)} images could not be read and are no part of the figures"
        shown = evaluation.unreadable[:most_rows]
        found.append(Grid(title, ("image", "reason"), shown))
    if evaluation.mistakes:
        worst = [(m.image, m.true, m.answer, figure_text("", m.confidence)) for m in evaluation.mistakes]
        found.append(Grid("wrong with the largest confidence", ("image", "true class", "answer", "confidence"), worst))
    return found


def group_tables(evaluation: Evaluation, most_rows: int | None) -> list[Grid]:
    """Accuracy in every group, and what changed since an earlier model; of many groups those with the lowest."""
    groups, before, by = evaluation.groups, evaluation.before, " and ".join(evaluation.columns)
    if groups is None:
        return []
    figures, title = groups.per_group(), f"groups by {by}"
    if most_rows is not None and len(figures) > most_rows:
        known = [group for group in figures if group.accuracy is not None]
        figures = sorted(known, key=lambda group: (group.accuracy, group.name))[:LOWEST_CLASSES]
        title = f"groups by {by} with the lowest accuracy, of {len(known)}"
    worst = groups.worst()
    rows = [(group.name, _images_text(group), *_share_text(group)) for group in figures]
    rows.append(("mean over groups", "", figure_text("", groups.mean()), ""))
    rows.append((f"worst: {worst.name}", _images_text(worst), *_share_text(worst)))
    found = [Grid(title, ("group", "images", "top1", "95 % interval"), rows)]
    if before is not None:
        found.append(_change_grid(groups, before, {"all images", *(group.name for group in figures)}))
    return found


def _images_text(group: GroupFigures) -> str:
    return f"{group.images} (fewer than {FEW_IMAGES})" if group.few else str(group.images)


def _share_text(group: GroupFigures) -> tuple[str, str]:
    return figure_text("", group.accuracy), f"{group.low:.1%} to {group.high:.1%}" if group.images else "–"


def _change_grid(groups: GroupAccuracy, before: EarlierModel, shown: set[str]) -> Grid:
    rows = [
        (one.name, str(one.images), figure_text("", one.before), figure_text("", one.after), *_points(*one[2:]))
        for one in groups.changes_from(before.groups)
        if one.name in shown
    ]
    pairs = (("mean over groups", before.groups.mean(), groups.mean()), ("worst group", *_worst_of(before, groups)))
    rows += [(name, "", figure_text("", a), figure_text("", b), f"{100 * (b - a):+.1f}", "") for name, a, b in pairs]
    return Grid(
        f"before ({before.model}) and after ({before.now})",
        ("group", "images", "before", "after", "points", "95 % interval"),
        rows,
    )


def _worst_of(before: EarlierModel, groups: GroupAccuracy) -> tuple[float, float]:
    """Each model's own worst group, which need not be the same."""
    return before.groups.worst().accuracy or 0.0, groups.worst().accuracy or 0.0


def _points(before: float, after: float, low: float, high: float) -> tuple[str, str]:
    return f"{100 * (after - before):+.1f}", f"{100 * low:+.1f} to {100 * high:+.1f}"


def group_json(evaluation: Evaluation) -> dict[str, Any]:
    groups, before = evaluation.groups, evaluation.before
    if groups is None:
        return {}
    content: dict[str, Any] = {"groups": {"columns": list(evaluation.columns), **_groups_json(groups)}}
    if before is not None:
        changes = [change._asdict() for change in groups.changes_from(before.groups)]
        content["before"] = {"model": before.model, **before.values, **_groups_json(before.groups), "changes": changes}
    return content


def _groups_json(groups: GroupAccuracy) -> dict[str, Any]:
    rows = [group._asdict() | {"few": group.few} for group in groups.per_group()]
    return {"rows": rows, "mean": groups.mean(), "worst": groups.worst().name}


def class_tables(details: DetailedMetrics, most_rows: int | None) -> list[Grid]:
    figures, title = list(details.accuracy.per_class().items()), "classes"
    if most_rows is not None and len(figures) > most_rows:
        known = [entry for entry in figures if entry[1].recall is not None]
        figures = sorted(known, key=lambda entry: (entry[1].recall, entry[0]))[:LOWEST_CLASSES]
        title = f"classes with the lowest recall, of {len(known)}"
    rows = [(name, str(f.images), figure_text("", f.recall), figure_text("", f.precision)) for name, f in figures]
    found = [Grid(title, ("class", "images", "recall", "precision"), rows)]
    confused = [(true, answer, str(n)) for true, answer, n in details.accuracy.confused(MOST_CONFUSED)]
    return [*found, Grid("most frequent mistakes", ("true class", "answer", "images"), confused)] if confused else found


def parts_by_class(metric: Any) -> dict[str, dict[str, dict[str, float | None]]]:
    """Table -> class (or keypoint) -> measure -> figure, for everything that a metric counts separately."""
    found: dict[str, dict[str, dict[str, float | None]]] = {}
    for prefix, part in getattr(metric, "parts", {"": metric}).items():
        if hasattr(part, "per_class"):
            title, figures = f"classes ({prefix.strip('_')})" if prefix else "classes", part.per_class()
            # Of several figures that have names, or of a single one, which is COCO's average precision.
            found[title] = {
                name: one._asdict() if hasattr(one, "_asdict") else {"AP": one} for name, one in figures.items()
            }
        if hasattr(part, "per_joint"):
            found["keypoints"] = {name: {"found": share} for name, share in part.per_joint().items()}
    return found


def _class_grid(title: str, rows: dict[str, dict[str, float | None]], most_rows: int | None) -> Grid:
    """Of many classes, those with the lowest figures in the last column."""
    shown = list(rows.items())
    if most_rows is not None and len(shown) > most_rows:
        known = [row for row in shown if [*row[1].values()][-1] is not None]
        shown = sorted(known, key=lambda row: [*row[1].values()][-1])[:LOWEST_CLASSES]  # type: ignore[return-value, arg-type]
        title = f"{title} with the lowest figures, of {len(known)}"
    measures = [*next(iter(rows.values()))] if rows else []
    lines = [
        (name, *(str(value) if isinstance(value, int) else figure_text("", value) for value in figures.values()))
        for name, figures in shown
    ]
    return Grid(title, ("keypoint" if title.startswith("keypoint") else "class", *measures), lines)


def console_table(grid: Grid) -> Table:
    """For the console. As Text, because the [brackets] of a string would be taken for markup."""
    table = Table(title=Text(printable(grid.title)), title_justify="left")
    for place, heading in enumerate(grid.headings):
        table.add_column(Text(printable(heading)), overflow="fold", justify="left" if place == 0 else "right")
    for row in grid.rows:
        table.add_row(*(Text(printable(cell, keep="\n")) for cell in row))
    return table


def evaluation_markdown(evaluation: Evaluation, pictures: dict[str, str]) -> str:
    """A report; `pictures` are files beside it with their captions."""
    lines = [f"# Evaluation of {plain(evaluation.model)}", ""]
    lines += [f"- {name}: {plain(str(value))}" for name, value in evaluation.facts().items()]
    for grid in evaluation_tables(evaluation):
        lines += ["", f"## {plain(grid.title)}", "", *markdown_rows(grid)]
    for file, caption in pictures.items():
        lines += ["", f"![{caption}]({file})"]
    return "\n".join(lines) + "\n"


def markdown_rows(grid: Grid) -> list[str]:
    head = [_row(grid.headings), _row(("---", *("---:" for _ in grid.headings[1:])))]
    return head + [_row(tuple(map(plain, row))) for row in grid.rows]


def _row(cells: tuple[str, ...]) -> str:
    return f"| {' | '.join(cells)} |"


def plain(text: str) -> str:
    """Text that Markdown shows as it is."""
    return "".join(f"\\{sign}" if sign in "\\`*_[]<>|#" else sign for sign in " ".join(text.split()))


def evaluation_json(evaluation: Evaluation) -> dict[str, Any]:
    content = evaluation.facts() | {"size": list(evaluation.size)} | evaluation.values
    content |= {"images_per_second": evaluation.speed.images_per_second, "speed": evaluation.speed._asdict()}
    content["sizes"] = [
        {"size": at.size, **at.values, "images_per_second": at.images_per_second} for at in evaluation.sizes
    ]
    content |= group_json(evaluation)
    content["unreadable"] = [{"image": image, "reason": reason} for image, reason in evaluation.unreadable]
    if evaluation.details is not None:
        accuracy, names = evaluation.details.accuracy, unique_names(evaluation.details.accuracy.classes)
        confusion: dict[str, dict[str, int]] = {}
        for (true, answer), n in sorted(accuracy.pairs.items()):
            confusion.setdefault(names[true], {})[names[answer]] = n
        content |= {
            "per_class": {name: figures._asdict() for name, figures in accuracy.per_class().items()},
            "confusion": confusion,  # true class -> answer -> images; what never happened is left out
            "reliability": [row._asdict() for row in evaluation.details.calibration.bins()],
            "worst": [{k: v for k, v in m._asdict().items() if k != "picture"} for m in evaluation.mistakes],
        }
    elif evaluation.metric is not None:
        content |= {title.replace(" ", "_"): rows for title, rows in parts_by_class(evaluation.metric).items()}
    return content


def confusion_csv(details: DetailedMetrics) -> str | None:
    """The whole matrix, rows true and columns answers; None where it would have too many cells."""
    accuracy = details.accuracy
    if len(accuracy.classes) > MOST_CSV_CLASSES:
        return None
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    names = unique_names(accuracy.classes)
    writer.writerow(["true class \\ answer", *names])
    writer.writerows([name, *row] for name, row in zip(names, accuracy.confusion().tolist(), strict=True))
    return text.getvalue()


def draw_evaluation(evaluation: Evaluation) -> dict[str, tuple[Image.Image, str]]:
    """File name -> picture and caption."""
    found: dict[str, tuple[Image.Image, str]] = {}
    details = evaluation.details
    if details is not None:
        accuracy, calibration = details.accuracy, details.calibration
        counts = accuracy.confusion(matrix_rows(len(accuracy.classes)))
        heading = f"{evaluation.model}: {evaluation.values['top1']:.1%} of {evaluation.images:,} images right"
        found["confusion.png"] = confusion_picture(counts, accuracy.classes, heading=heading), "Confusion matrix"
        heading = f"Expected calibration error {evaluation.values['ece']:.1%}"
        found["reliability.png"] = reliability_picture(calibration.bins(), heading=heading), "Reliability diagram"
    if evaluation.sizes and details is not None:
        found["sizes.png"] = _sizes_picture(evaluation), "Accuracy at other sizes"
    if evaluation.mistakes:
        found["mistakes.png"] = _mistakes_picture(evaluation), "Wrong with the largest confidence"
    return found


def _sizes_picture(evaluation: Evaluation) -> Image.Image:
    shares = [name for name in evaluation.sizes[0].values if name.startswith("top")]
    curves = []
    for name, colour in zip(shares, COLOURS, strict=False):
        points = tuple(sorted((float(at.size), 100 * at.values[name]) for at in evaluation.sizes))
        curves.append(Series(name, points, colour))
    sides = tuple(at.size for at in evaluation.sizes)
    chart = Chart("Accuracy", "height and width of the images in pixels", tuple(curves), "%", marked=sides)
    return draw_curves(
        [chart], heading=f"{evaluation.model} at other sizes", legend=[LegendEntry(s.name, s.colour) for s in curves]
    )


def _mistakes_picture(evaluation: Evaluation) -> Image.Image:
    panels = [
        Panel(enlarge(m.picture, MISTAKE_WIDTH), f"{m.answer} {m.confidence:.1%}", (f"it is {m.true}", m.image))
        for m in evaluation.mistakes
    ]
    return contact_sheet(
        panels,
        heading="Wrong with the largest confidence",
        subheading=f"{evaluation.model} on {evaluation.data}, {evaluation.split}",
        footnote="answer and its probability; the label in the data; the image",
        bar=False,
    )
