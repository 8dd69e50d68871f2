"""`vitreous check`: examine every picture of a data set before a model sees it."""

import shlex
from collections import Counter
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any, Literal

from rich.console import Console
from rich.table import Table
from rich.text import Text

from vitreous.data.data_checks import ExaminedPicture, Finding, examine_split, findings
from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.base import TARGET_KINDS, Wording
from vitreous.data.layouts.coco_anywhere import with_annotations
from vitreous.data.layouts.folder import in_order
from vitreous.data.layouts.held_out import VAL_FRACTION
from vitreous.data.source import Layout, describe, open_raw, quarantine_file, quarantine_text, recognise, usable_as
from vitreous.errors import InputError, printable
from vitreous.files.storage import json_text, replace_file
from vitreous.files.writing import write_output
from vitreous.runs.results import require_positive, require_writable
from vitreous.runtime.console import track
from vitreous.tasks.base import Task, load_task, load_tasks, task_options

Reason = Literal["unreadable", "annotations", "boxes", "empty", "conflicts", "leaks", "duplicates"]

MOST_SHOWN = 10  # names below a finding, and classes at either end of the table; --json has the rest
MOST_CLASSES_SHOWN = 40
BAR_CHARACTERS = 30
SIDE_EDGES = (32, 64, 128, 256, 512, 1024, 2048)
RATIO_EDGES = (0.5, 0.8, 1.25, 2.0)  # width / height
PROBLEMS_FOUND = 1


@dataclass(frozen=True)
class Report:
    """What `check` found."""

    data: str
    task: str
    targets: str  # the kind of targets that the task learns from
    layout: str
    images: dict[str, int]  # split -> images
    counts: dict[str, dict[str, int]]  # split -> class -> images, or objects
    sides: dict[str, int]  # length of the shorter side -> images
    shapes: dict[str, int]  # width / height -> images
    findings: list[Finding]
    quarantine: dict[str, str]  # name -> reason

    @property
    def problems(self) -> list[Finding]:
        return [finding for finding in self.findings if finding.problem]

    @property
    def exit_code(self) -> int:
        """Of the command."""
        return PROBLEMS_FOUND if self.problems else 0

    def as_json(self) -> dict[str, Any]:
        listed = [
            {"kind": found.kind, "problem": found.problem, "text": found.text, "images": list(found.images)}
            for found in self.findings
        ]
        return {
            "data": self.data,
            "layout": self.layout,
            "task": self.task,
            "splits": {
                split: {"images": self.images[split], "classes": counts} for split, counts in self.counts.items()
            },
            "sides": self.sides,
            "shapes": self.shapes,
            "findings": listed,
            "quarantine": self.quarantine,
        }


def check(
    data: str,
    *,
    task: str | None = None,
    near: bool = False,
    smallest: int = 32,
    leave_out: tuple[Reason, ...] = ("unreadable", "annotations"),
    ignore: tuple[int, ...] | None = None,
    reduce_zero_label: bool = False,
    annotations: tuple[str, ...] = (),
    val_fraction: float = VAL_FRACTION,
    follow: bool = False,
    write: bool = True,
    out: Path | None = None,
    json: Path | None = None,
    workers: int = 2,
) -> Report:
    """Examine every picture of a data set: unreadable, duplicate and misplaced ones.

    Problems are unreadable pictures, the same picture in several classes or splits, classes without pictures, and
    splits with different classes. Remarks are duplicates within a split, unusual pixel formats, rotated and very small
    pictures, and uneven classes.

    Annotations are examined, too. Problems are annotations that cannot be used (an unknown class, the mask of another
    picture, values that stand for no class, a missing file) and boxes that are inverted, without area or outside the
    picture; pictures without objects are a remark.

    Pictures to leave out are listed in quarantine.txt in the data's folder; train and evaluate skip them and say so.
    An earlier list there is replaced, whoever wrote it.

    The exit code is 0 without problems, 1 with some, and 2 if the data cannot be opened at all.

    Examples:
        vitreous check photos
        vitreous check photos --near --json report.json --no-write
        vitreous check photos --leave-out unreadable conflicts leaks
        vitreous check coco --task keypoints
        vitreous check photos --annotations labels/train.json labels/val.json
        vitreous check ade20k --reduce-zero-label
        vitreous check /read/only/photos --out photos-quarantine.txt

    Args:
        data: A folder or file of any layout that train takes.
        task: Task that the data are for, such as detect (see `vitreous train --help`); default: the first that fits.
            Others that fit are named.
        near: Also find pictures that are nearly the same.
        smallest: Remark on pictures with a shorter side below this many pixels.
        leave_out: What goes on the list; of leaks the held-out picture stays, of duplicates the first.
        ignore: Mask values that stand for no class; default: 255.
        reduce_zero_label: Mask value 0 stands for no class, and 1 for the first class.
        annotations: COCO files that annotate the pictures below DATA, as in train.
        val_fraction: Share held out as val where the data have no splits, as in train; 1 = all of it.
        follow: Open pictures outside the data's folder if its own files name them (.. or an absolute path).
        write: --no-write only reports.
        out: Write the list to this file instead; give it to train and evaluate as --quarantine.
        json: Write everything that was found to this file.
        workers: Processes that examine pictures; 0 = the main process does it.
    """
    data = with_annotations(data, annotations)
    _check_options(smallest, workers, {"--json": json, "--out": out})
    tasks = _fitting_tasks(data) if task is None else [load_task(task)]
    layout = recognise(data, tasks[0].targets, tasks[0].wording())
    reading: dict[str, Any] = {"ignore": ignore, "reduce_zero_label": reduce_zero_label}
    splits = open_raw(data, tasks[0].targets, val_fraction=val_fraction, follow=follow, **reading)
    _print_recognised(data, layout, tasks, splits)
    examined = [
        one
        for split, images in splits.items()
        for one in track(examine_split(images, split, workers=workers), total=len(images), label=f"look at {split}")
    ]
    report = _report(data, layout, tasks[0], splits, examined, findings(splits, examined, smallest, near), leave_out)
    print_report(report)
    if json is not None:
        write_output(json, json_text(report.as_json()))
    if write and (out is not None or not layout.drawn):  # drawn pictures have no folder for a list
        _write_list(out if out is not None else quarantine_file(data), report.quarantine, chosen=out is not None)
    return report


def _check_options(smallest: int, workers: int, files: dict[str, Path | None]) -> None:
    require_positive(smallest=smallest)
    if workers < 0:
        raise InputError(f"--workers {workers} cannot be used; give 0 (the main process does it) or more")
    for option, file in files.items():
        if file is not None:
            require_writable(option, file)


def _fitting_tasks(data: str) -> list[type[Task]]:
    """The tasks that can learn from the data, at least one."""
    kinds = usable_as(data, Wording(options=task_options))
    fitting = [task for task in load_tasks().values() if task.targets in kinds]
    if not fitting:
        raise InputError(f"'{data}' offers {' and '.join(kinds)}, from which no task learns; name one with --task")
    return fitting


def _print_recognised(data: str, layout: Layout, tasks: list[type[Task]], splits: dict[str, ImageSet]) -> None:
    print(describe(data, tasks[0].targets, **splits))
    if len(tasks) > 1 and not layout.drawn:
        others = " and ".join(task.name for task in tasks[1:])
        print(f"data: looked at for --task {tasks[0].name}; its layout is also one for --task {others}")


def _report(
    data: str,
    layout: Layout,
    task: type[Task],
    splits: dict[str, ImageSet],
    examined: list[ExaminedPicture],
    found: list[Finding],
    leave_out: tuple[Reason, ...],
) -> Report:
    counted = Counter((one.split, name) for one in examined for name in one.classes)
    return Report(
        data,
        task.name,
        task.targets,
        layout.name,
        {split: len(images) for split, images in splits.items()},
        {split: {name: counted[split, name] for name in images.classes} for split, images in splits.items()},
        *_histograms(examined),
        found,
        {name: reason for finding in found if finding.kind in leave_out for name, reason in finding.leave_out},
    )


def _histograms(examined: list[ExaminedPicture]) -> tuple[dict[str, int], dict[str, int]]:
    sizes = [one.size for one in examined if not one.error]
    sides, shapes = (min(size) for size in sizes), (width / height for width, height in sizes)
    return _histogram(sides, SIDE_EDGES), _histogram(shapes, RATIO_EDGES)


def _histogram(values: Any, edges: tuple[float, ...]) -> dict[str, int]:
    """Counts from edge to edge; empty ends are left out."""
    names = [
        f"below {edges[0]:g}",
        *(f"{a:g} to {b:g}" for a, b in pairwise(edges)),
        f"{edges[-1]:g} up",
    ]
    counts = Counter(sum(value >= edge for edge in edges) for value in values)
    filled = sorted(counts)
    return {names[place]: counts[place] for place in range(filled[0], filled[-1] + 1)} if filled else {}


def _write_list(file: Path, named: dict[str, str], *, chosen: bool) -> None:
    """Empties an earlier list if nothing is to be left out any more; without one, writes nothing then."""
    if not named and not file.exists() and not chosen:
        return
    try:
        replace_file(file, quarantine_text(named))
    except (OSError, InputError) as reason:
        cause = getattr(reason, "strerror", None) or reason
        raise InputError(f"cannot write {file} ({cause}); give another place with --out, or --no-write") from reason
    use = f"; use it as --quarantine {shlex.quote(str(file))}" if chosen else ", which train and evaluate honour"
    print(printable(f"{len(named)} images listed in {file}{use}"))


# ---- on the console --------------------------------------------------------------------------------------------


def print_report(report: Report) -> None:
    console = Console(highlight=False)
    console.print(_class_table(report.counts, TARGET_KINDS[report.targets].counted))
    for title, bars in (("shorter side, pixels", report.sides), ("width / height", report.shapes)):
        if bars:
            console.print(_bars(title, bars))
    for finding in report.findings:
        style = "bold red" if finding.problem else "bold"
        console.print(Text(f"{'problem' if finding.problem else 'remark'}: {printable(finding.text)}", style))
        for name in finding.images[:MOST_SHOWN]:
            console.print(Text(f"  {printable(name)}"), soft_wrap=True)
        if len(finding.images) > MOST_SHOWN:
            console.print(f"  and {len(finding.images) - MOST_SHOWN} more (--json lists all)")
    if not report.problems:
        console.print(Text("no problems found", "bold green"))
    if report.targets == "labels" and list(report.sides) in (["below 32"], ["32 to 64"]):
        console.print(
            "small pictures keep more detail with a finer stem: --size 32 --model-args stem_stride=1 "
            "(patch=4 for xcit), or a model made for them, such as paca_b0_cifar",
            soft_wrap=True,
        )


def _class_table(counts: dict[str, dict[str, int]], counted: str) -> Table:
    """Counts of each class; of many classes, only the largest and the smallest."""
    splits = list(counts)
    totals = Counter({name: 0 for classes in counts.values() for name in classes})
    for classes in counts.values():
        totals.update(classes)
    names = in_order(totals) if len(totals) <= MOST_CLASSES_SHOWN else [name for name, _ in totals.most_common()]
    table = Table("class", *splits, "", title=f"{len(totals)} classes{counted}", title_justify="left")
    largest = max(totals.values(), default=0)
    for place, name in enumerate(names):
        if MOST_SHOWN <= place < len(names) - MOST_SHOWN and len(names) > MOST_CLASSES_SHOWN:
            if place == MOST_SHOWN:
                table.add_row("…", *("…" for _ in splits), "")
            continue
        cells = [str(counts[split].get(name, "–")) for split in splits]
        table.add_row(Text(printable(name)), *cells, _bar(totals[name], largest))
    table.add_section()
    table.add_row("all", *(str(sum(counts[split].values())) for split in splits), "")
    for column in table.columns[1:-1]:
        column.justify = "right"
    return table


def _bars(title: str, counts: dict[str, int]) -> Table:
    table = Table(title, "images", "")
    for name, count in counts.items():
        table.add_row(name, str(count), _bar(count, max(counts.values())))
    table.columns[1].justify = "right"
    return table


def _bar(count: int, largest: int) -> str:
    """At least one character for a count above 0."""
    return "█" * max(round(BAR_CHARACTERS * count / max(largest, 1)), int(count > 0))
