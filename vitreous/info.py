"""vitreous info: all models, or one of them in detail."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import timm
import torch

from vitreous.errors import InputError
from vitreous.figures.counting import (
    COMPARED_MODELS,
    GROWTH_SIZES,
    Growth,
    count_figures,
    figures_of,
    growth_reason,
    read_table,
    work_at,
)
from vitreous.figures.display import arguments_of, print_growth, print_list, print_one
from vitreous.files.storage import json_text
from vitreous.files.writing import write_output
from vitreous.layers.tap import tap_names
from vitreous.models.arguments import parse_model_arg
from vitreous.models.base import Backbone
from vitreous.registry import ENTRIES, create_model, list_models, resolve_name
from vitreous.runs.model_folder import build_architecture, find_model_folder, read_config
from vitreous.runs.results import require_writable
from vitreous.runtime.console import track

Row = dict[str, Any]


def info(
    model: str | None = None,
    *,
    size: int | None = None,
    model_args: tuple[str, ...] = (),
    scaling: bool = False,
    markdown: bool = False,
    filter: str = "*",
    json: Path | None = None,
) -> dict[str, Row]:
    """List the models, or show one: parameters, multiply-adds, strides, channels, taps and what can be set.

    Multiply-adds (MACs) are those of matrix products, convolutions and attention on one image. Element-wise work is
    not counted: norms, activations, softmax, pooling, interpolation.

    Examples:
        vitreous info                           all models
        vitreous info --filter "*b0*"           some of them
        vitreous info paca_tiny                 one model, and the arguments it can be built with
        vitreous info paca_tiny --size 512      its multiply-adds at 512x512 pixels
        vitreous info paca_tiny --size 32 --model-args stem_stride=1
        vitreous info --scaling                 how the work of each family grows with the image
        vitreous info paca_tiny --scaling       which parts of one model outgrow the image
        vitreous info runs/demo                 the model of a run
        vitreous info --markdown                the table of the README

    Args:
        model: Model name, ours or any of timm's, or a run folder or model folder. Without it, all of ours are listed.
        size: Image size in pixels for the multiply-adds; by default the one the model was published or trained with.
        model_args: Build the model with other arguments, e.g. clusters=(49,49,49,0) stem_stride=2.
        scaling: Fit how multiply-adds grow from 256 to 2048 pixels; without a name, of a model per family and a ViT.
        markdown: Print the list as a Markdown table.
        filter: Shell-style pattern that chooses the models to list.
        json: Write the figures to this file too.

    Returns:
        What was printed: model name -> figures.
    """
    check_options(model, size, model_args, scaling, markdown, filter)
    if json is not None:
        require_writable("--json", json)
    rows = shown_rows(model, size, model_args, scaling, markdown, filter)
    if json is not None:
        write_output(json, json_text(rows))
    return rows


def shown_rows(
    model: str | None, size: int | None, model_args: Sequence[str], scaling: bool, markdown: bool, filter: str
) -> dict[str, Row]:
    """What was asked for, printed."""
    arguments = dict(parse_model_arg(text) for text in model_args)
    if model is not None:
        subject = open_subject(model, arguments)
        return {model: show_growth(subject) if scaling else show_model(subject, size)}
    names = list_models(filter)
    if not names:
        raise InputError(f"no model matches {filter!r}; all: vitreous info")
    if scaling:
        return compare_growth(COMPARED_MODELS if filter == "*" else [(name, {}) for name in names], markdown)
    rows = list_rows(names, size)
    print_list(rows, markdown=markdown)
    return rows


def check_options(
    model: str | None, size: int | None, model_args: Sequence[str], scaling: bool, markdown: bool, filter: str
) -> None:
    if size is not None and size < 1:
        raise InputError(f"--size {size} given; it is a number of pixels, at least 32")
    if size is not None and scaling:
        raise InputError(f"--scaling counts at {', '.join(map(str, GROWTH_SIZES))} pixels; leave out --size {size}")
    if model is not None and (markdown or filter != "*"):
        option = "--markdown" if markdown else f"--filter {filter!r}"
        raise InputError(f"{option} is for the list of models; leave it out, or leave out {model!r}")
    if model is None and model_args:
        raise InputError(f"--model-args {' '.join(model_args)} is for one model: vitreous info NAME --model-args …")


# The list -----------------------------------------------------------------------------------------


def list_rows(names: list[str], size: int | None) -> dict[str, Row]:
    """Our figures beside the published ones; from the packaged table unless a size is given."""
    table = read_table() if size is None else {}
    missing = [name for name in names if name not in table]
    if missing:
        label = "count parameters and multiply-adds"
        for name in track(missing, total=len(missing), label=label, unit="models"):
            table[name] = count_figures(name, None if size is None else (size, size))
    return {name: table[name] | published_facts(name) for name in names}


def published_facts(name: str) -> Row:
    """What a paper, or timm, says about a model."""
    entry = ENTRIES.get(name)
    published = entry.published if entry else None
    return dict(
        top1=published.top1 if published else None,
        data=published.data if published else None,
        tags=list(entry.tags) if entry else [full.partition(".")[2] for full in timm.list_pretrained(f"{name}.*")],
        paper=entry.paper if entry else None,
    )


# One model ----------------------------------------------------------------------------------------


class Subject(NamedTuple):
    title: str
    name: str
    model: Any  # on the meta device
    given: dict[str, Any]  # arguments it was built with, the variant's own included
    size: tuple[int, int]
    figures: Row | None  # at that size, if they are already known
    classes: tuple[str, ...] | None  # of a trained model


def open_subject(source: str, arguments: dict[str, Any]) -> Subject:
    folder = find_model_folder(source)
    if folder is None:
        return open_name(resolve_name(source).partition(".")[0], arguments)
    if arguments:
        raise InputError(f"--model-args given, but the model in {folder} has its own; give the name of a model instead")
    config = read_config(folder)
    with torch.device("meta"):
        model = build_architecture(folder, config)
    name = config.architecture
    given = {**(ENTRIES[name].arguments if name in ENTRIES else {}), **config.model_args}
    return Subject(f"{name} in {folder}", name, model, given, config.preprocess.size, None, config.classes)


def open_name(name: str, arguments: dict[str, Any]) -> Subject:
    title = " ".join([name, *(f"{key}={value}" for key, value in arguments.items())])
    try:
        with torch.device("meta"):
            model: Any = create_model(name, **arguments)
    except TypeError as reason:
        raise InputError(f"{title} cannot be built ({reason}); correct --model-args or leave it out") from reason
    given = {**ENTRIES[name].arguments, **arguments} if name in ENTRIES else arguments
    figures = None if arguments else read_table().get(name)
    return Subject(title, name, model, given, model.pretrained_cfg["input_size"][1:], figures, None)


def show_model(subject: Subject, size: int | None) -> Row:
    figures = subject.figures if size is None else None
    row = figures or figures_of(subject.model, (size, size) if size else subject.size)
    row |= published_facts(subject.name) | dict(taps=tap_names(subject.model))
    if subject.classes is not None:  # published figures belong to other weights
        row |= dict(top1=None, data=None, tags=[], classes=subject.classes)
    if isinstance(subject.model, Backbone):
        row["arguments"] = arguments_of(subject.model, subject.given)
    print_one(subject.title, subject.name, row)
    return row


# How the work grows -------------------------------------------------------------------------------


def show_growth(subject: Subject) -> Row:
    [growth] = measure_growth([subject], 1).values()
    parts = {f"  {part}": macs for part, macs in growth.parts().items()}
    print_growth({subject.title: growth.macs} | (parts if len(parts) > 1 else {}), growth_reasons([subject]))
    return growth.row()


def compare_growth(chosen: Sequence[tuple[str, dict[str, Any]]], markdown: bool) -> dict[str, Row]:
    subjects = []

    def opened() -> Iterable[Subject]:
        for name, arguments in chosen:
            subjects.append(open_name(name, arguments))
            yield subjects[-1]

    grown = measure_growth(opened(), len(chosen))
    print_growth({title: growth.macs for title, growth in grown.items()}, growth_reasons(subjects), markdown=markdown)
    return {title: growth.row() for title, growth in grown.items()}


def measure_growth(subjects: Iterable[Subject], number: int) -> dict[str, Growth]:
    passes = ((subject, size) for subject in subjects for size in GROWTH_SIZES)
    work: dict[str, list[dict[str, int]]] = {}
    for subject, size in track(passes, total=number * len(GROWTH_SIZES), label="count multiply-adds", unit="passes"):
        work.setdefault(subject.title, []).append(work_at(subject.model, size))
    return {title: Growth(tuple(at_sizes)) for title, at_sizes in work.items()}


def growth_reasons(subjects: Iterable[Subject]) -> dict[str, str]:
    found = {type(subject.model).__name__: growth_reason(subject.model) for subject in subjects}
    return {family: sentence for family, sentence in found.items() if sentence is not None}
