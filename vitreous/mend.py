"""Mend a trained model without training: close clusters for good, or paint over a region of every picture.

vitreous mend runs/demo --without-clusters 3,7 --out runs/mended
"""

import io
import os
from contextlib import redirect_stdout
from dataclasses import replace
from pathlib import Path
from typing import Any

from vitreous.clusters.gates import attentions, cluster_count, cluster_layer, without
from vitreous.data.regions import find_regions
from vitreous.errors import InputError, command, printable
from vitreous.evaluate import evaluate
from vitreous.explanations.model_card import CARD, MENDED, changes, origin_of, write_model_card
from vitreous.files.limits import MAX_REGIONS
from vitreous.files.storage import MANIFEST, write_json
from vitreous.files.writing import write_text
from vitreous.metrics.figures import figure_text
from vitreous.reports.evaluation import plain
from vitreous.runs.model_config import CONFIG, WEIGHTS, ModelConfig, read_config
from vitreous.runs.model_folder import find_model_folder, load_model, save_model
from vitreous.runs.results import result_folder
from vitreous.runs.trained_model import TrainedModel, is_classifier

MENDED_TABLE = "mended.md"
STORED_MODEL = "model"  # where it is stored until it is complete
NOT_COMPARED = ("images_per_second",)  # it says nothing about what was mended


def mend(
    model: str,
    *,
    out: Path,
    without_clusters: tuple[str, ...] = (),
    stage: int | None = None,
    block: int | None = None,
    hide: str | None = None,
    data: str | None = None,
    split: str = "val",
    groups: tuple[str, ...] = (),
    count: int | None = None,
    batch_size: int = 64,
    workers: int = 2,
    device: str = "auto",
) -> Path:
    """Mend a model that rests on something it should not, without training; writes a model folder.

    A closed cluster is never attended to again: the softmax runs over the others, as if it had never been. A hidden
    region is painted over in every picture before the model sees it, smoothly from around it. Both are written down in
    the folder's config.json, so that predict, evaluate, explain, serve and all who load the folder use the mended
    model; the weights are the same. An explainer that was taught for the old model is not taken along.

    With --data the model is measured before and after, and the table is kept in the folder as mended.md; with --groups
    also in every group of images, with the mean over groups and the worst. What cannot be mended this way can be mended
    by training: vitreous train --attend-to or --attend-away (docs/shortcuts.md).

    Examples:
        vitreous mend runs/demo --without-clusters 3,7 --out runs/mended
        vitreous mend runs/demo --without-clusters 0 --stage 2 --out runs/mended --data shapes
        vitreous mend runs/photos --hide "upper left" --out runs/mended --data photos
        vitreous mend runs/birds --hide border --out runs/mended --data birds --groups place class
        vitreous mend runs/photos --hide regions.json --out runs/mended

    Args:
        model: Run folder or model folder.
        out: Folder to write to; an earlier mended model there is replaced, any other content is refused.
        without_clusters: Numbers of the clusters to close, from 0, as explanations and the explorer show them.
        stage: Their stage, from 1; a readout counts as a stage after the last. Default: what the classifier reads, or
            the last stage with clusters.
        block: The block that makes them, where several do.
        hide: A regions file, as the explorer writes it, or places: upper left, lower right, top edge, border, centre.
        data: Measure before and after on these data: shapes, a folder with val/<class>/, or another layout.
        split: Split to measure on.
        groups: With --data: accuracy in groups of images too, by columns of metadata.csv (of shapes with a planted
            shortcut: mark, agrees) or by class, as `vitreous evaluate` measures it; several columns combine.
        count: How many images of `shapes` to draw.
        batch_size: Images per forward pass.
        workers: Processes that prepare images.
        device: cpu, cuda, cuda:1, mps, or auto.

    Returns:
        The folder of the mended model.
    """
    folder = checked_request(model, without_clusters, stage, block, hide, data, groups)
    config, trained = read_config(folder), load_model(folder)
    changed = config
    if without_clusters:
        changed = with_closed(changed, trained, parse_clusters(without_clusters), stage, block)
    if hide is not None:
        changed = with_hidden(changed, trained, hide)
    options: dict[str, Any] = dict(
        split=split, groups=groups, count=count, batch_size=batch_size, workers=workers, device=device
    )
    with result_folder(out, MENDED) as staging:
        figures: dict[str, dict[str, float]] = {}
        if data is not None:
            figures["before"] = measure_figures(folder, data, options)
        store(staging / STORED_MODEL, trained, changed)
        if data is not None:
            figures["after"] = measure_figures(staging / STORED_MODEL, data, options)
        known = {"from": str(model), "data": data, "split": split, "groups": list(groups), "origin": origin_of(folder)}
        finish(staging, changed, known | figures)
    told = "; ".join(changes(changed))
    print(printable(f"mended: {out} ({told})   next: {command('serve', out)}"))
    return out


def checked_request(
    model: str,
    without_clusters: tuple[str, ...],
    stage: int | None,
    block: int | None,
    hide: str | None,
    data: str | None,
    groups: tuple[str, ...],
) -> Path:
    """The model's folder, if what is asked for goes together."""
    folder = find_model_folder(model)
    if folder is None:
        raise InputError(
            f"'{model}' is a name; mend takes a run folder or a model folder, whose description it changes"
        )
    if not without_clusters and hide is None:
        raise InputError("nothing to mend was given; add --without-clusters 3,7 or --hide 'upper left'")
    if (stage is not None or block is not None) and not without_clusters:
        raise InputError("--stage and --block say whose clusters are closed; add --without-clusters")
    if groups and data is None:
        raise InputError(f"--groups {' '.join(groups)} says in which groups of images to measure; add --data")
    return folder


def measure_figures(folder: Path, data: str, options: dict[str, Any]) -> dict[str, float]:
    """The figures alone; `vitreous evaluate` has the tables."""
    with redirect_stdout(io.StringIO()):
        return evaluate(str(folder), data, **options)


def parse_clusters(given: tuple[str, ...]) -> list[int]:
    """From words with commas or spaces between numbers."""
    words = [word for text in given for word in str(text).replace(",", " ").split()]
    if not words or not all(word.isdecimal() for word in words):
        raise InputError(f"--without-clusters {' '.join(map(str, given))} given; give numbers from 0, such as 3,7")
    return sorted({int(word) for word in words})


def with_closed(
    config: ModelConfig, trained: TrainedModel, numbers: list[int], stage: int | None, block: int | None
) -> ModelConfig:
    """The description of the model with more clusters of a layer closed."""
    layer = cluster_layer(trained.model, stage, block)
    count = cluster_count(trained.model, layer)
    without(numbers, count)  # refuses numbers that are not there
    closed = {path: tuple(known) for path, known in (config.model_args.get("closed_clusters") or {}).items()}
    for path in attentions(trained.model, layer):
        closed[path] = tuple(sorted({*closed.get(path, ()), *numbers}))
        if len(closed[path]) == count:
            raise InputError(
                f"all {count} clusters of {layer.name} would be closed, which leaves nothing to attend to; keep some"
            )
    return config._replace(model_args={**config.model_args, "closed_clusters": closed})


def with_hidden(config: ModelConfig, trained: TrainedModel, hide: str) -> ModelConfig:
    """The description of the model with more regions painted over."""
    if not is_classifier(trained):
        raise InputError(f"--hide is for classifiers, and this model is for the task '{trained.task}'")
    hidden = tuple(dict.fromkeys((*config.preprocess.hidden, *find_regions(hide))))
    if len(hidden) > MAX_REGIONS:  # a description with more would not be read again
        raise InputError(
            f"with --hide {hide} the model would have {len(hidden)} regions; at most {MAX_REGIONS} are kept"
        )
    return config._replace(preprocess=replace(config.preprocess, hidden=hidden))


def store(folder: Path, trained: TrainedModel, config: ModelConfig) -> None:
    """The same weights under another description."""
    save_model(
        folder,
        trained.model,
        name=config.architecture,
        model_args=config.model_args,
        task=config.task,
        classes=config.classes,
        preprocess=config.preprocess,
        task_args=config.task_args,
        val_fraction=config.val_fraction,
    )


def finish(staging: Path, config: ModelConfig, known: dict[str, Any]) -> None:
    """The model's files in their place, and beside them what was mended and what it brought."""
    files = [WEIGHTS, CONFIG, MANIFEST]
    for name in files:
        os.replace(staging / STORED_MODEL / name, staging / name)
    (staging / STORED_MODEL).rmdir()
    if "after" in known:
        table = comparison(known["before"], known["after"])
        print(table)
        write_text(
            staging / MENDED_TABLE, f"{'; '.join(changes(config))}, on {known['data']} ({known['split']})\n\n{table}"
        )
        files.append(MENDED_TABLE)
    write_json(staging / MENDED, {"changes": changes(config), **known, "files": [*files, CARD]})
    write_model_card(staging)


def comparison(before: dict[str, float], after: dict[str, float]) -> str:
    """Figures before and after, as a Markdown table."""
    rows = []
    for name in before:
        if name in after and name not in NOT_COMPARED:
            in_group = "=" in name  # its accuracy; the group may be called anything
            cells = (figure_text("" if in_group else name, figures[name]) for figures in (before, after))
            rows.append(f"| {plain(name) if in_group else name} | {' | '.join(cells)} |")
    return "\n".join(["| | before | after |", "|---|---:|---:|", *rows, ""])
