"""How faithful every method is over a data set: read, measured, written.

Shapes: B images of a batch.
"""

import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from PIL import Image
from rich.console import Console
from torch import Tensor, nn

from vitreous.attribution.catalogue import controls_for, find_method, methods_for
from vitreous.attribution.method import Method
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError, printable
from vitreous.explanations.best_findings import Tally, best_findings
from vitreous.explanations.default_method import Chosen, choose, store
from vitreous.explanations.dense import explained_model_for, inputs_of
from vitreous.explanations.explaining import ALL, LIGHT, lighter
from vitreous.faithfulness.curves import PORTIONS
from vitreous.faithfulness.scoring import Batch, Scores, score_methods
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports import faithfulness as charts
from vitreous.reports.evaluation import as_table
from vitreous.runs.model_folder import TrainedModel
from vitreous.runs.results import result_folder
from vitreous.runtime.progress import track

RESULT, REPORT, CHART = "faithfulness.json", "faithfulness.md", "faithfulness.png"
SANITY = 8  # images on which randomisation and stability are measured too; they take three more maps each


def score_run(
    model: str,
    trained: TrainedModel,
    data: str,
    images: ImageSet,
    *,
    split: str,
    limit: int,
    methods: Sequence[str],
    batch_size: int,
    out: Path,
) -> Path:
    """Score methods, print and write the table, and store the best one as the run's default.

    Of a model that does more than to classify, the best finding in each image is what is explained.
    """
    dense, tally = trained.build_task().has_findings, Tally()
    chosen = methods_to_score(trained.model, methods)
    with result_folder(out, RESULT) as aside:
        scores = score_methods(
            trained.model,
            dense_batches(trained, images, limit, tally) if dense else batches(trained, images, limit, batch_size),
            methods=[lighter(method) for method in chosen] if dense else chosen,
            portions=LIGHT["portions"] if dense else PORTIONS,
            sanity=SANITY,
        )
        count = len(next(iter(scores.values.values()))[charts.DECIDES])
        default = choose(scores, data=f"{data} ({split})", images=count, findings=dense)
        about = {"model": trained.name, "data": data, "split": split, "images": count}
        if dense:
            about |= {"explained": "the best finding of each image", "nothing_found": tally.nothing_found}
            about |= {"with_known_object": tally.with_known_object}
        write_scores(aside, scores, default, about)
    before = store(model, default)
    Console().print(as_table(charts.as_grid(scores, title=f"{trained.name}: faithfulness on {count} images of {data}")))
    if tally.nothing_found:
        print(f"\nleft out: {tally.nothing_found} of {tally.images} images, in which the model found nothing")
    print(printable(f"\ndefault map: {default.method}. {default.reason}", keep="\n"))
    if before.images > default.images:
        print(f"(it replaces {printable(before.method or '')}, which was measured on {before.images} images)")
    print(printable(f"report: {out / REPORT}"))
    return out / REPORT


def methods_to_score(model: nn.Module, names: Sequence[str]) -> list[Method]:
    """By name, or all; controls are scored in any case, and none of them can become the default."""
    if not names or ALL in names:
        return methods_for(model)
    chosen, controls = [find_method(name, model) for name in names], [method.name for method in controls_for(model)]
    if all(method.name in controls for method in chosen):
        raise InputError(
            f"--method {' '.join(names)} names controls only, which are scored in any case; name a method besides "
            "them, or leave --method out to score all"
        )
    return chosen


def write_scores(folder: Path, scores: Scores, default: Chosen, about: dict[str, Any]) -> None:
    heading = f"How faithful are the maps of {about['model']}? {about['images']} images of {about['data']}"
    charts.picture(scores, heading=heading, default=default.method).save(folder / CHART)
    page = charts.as_markdown(scores, about, chart=CHART, default=f"{default.method}. {default.reason}")
    write_text(folder / REPORT, page)
    content = {**about, "default": default._asdict(), "methods": scores.rows(), "files": [REPORT, CHART]}
    write_json(folder / RESULT, content)


def dense_batches(trained: TrainedModel, images: ImageSet, limit: int, tally: Tally) -> Iterator[Batch]:
    """Images spread evenly over the data: the best finding of each, with its object where the data know one."""
    for found in best_findings(trained, images, selection(len(images), limit), tally, label="score"):
        inputs, mask = inputs_of(trained, found.view.picture), found.mask
        model = explained_model_for(trained, found.target, found.view)
        yield Batch(inputs, found.target, None if mask is None else mask.to(inputs.device), model)


def batches(trained: TrainedModel, images: ImageSet, limit: int, batch_size: int) -> Iterator[Batch]:
    """Images spread evenly over the data, with the mask of the object where the data know it."""
    device = next(trained.model.parameters()).device
    groups = torch.tensor(selection(len(images), limit)).split(batch_size)
    found = 0
    for group in track(groups, total=len(groups), label="score", unit="batches"):
        inputs, masks = [], []
        for index in group.tolist():
            try:
                inputs.append(trained.preprocess(images.picture(index)))
            except ImageError as error:
                print(printable(f"skipped: {error}"), file=sys.stderr)
                continue
            masks.append(seen_mask(trained.preprocess, images.object_mask(index)))
        if inputs:
            found += len(inputs)
            known = [mask for mask in masks if mask is not None and mask.any()]
            yield Batch(torch.stack(inputs).to(device), None, all_or_none(known, len(inputs), device))
    if not found:
        raise InputError("none of the images could be read; the reasons are above")


def all_or_none(masks: Sequence[Tensor], images: int, device: torch.device) -> Tensor | None:
    return torch.stack(list(masks)).to(device) if len(masks) == images else None


def seen_mask(preprocess: Preprocess, mask: Image.Image | None) -> Tensor | None:
    """The mask as the model would see it, (height, width) of booleans."""
    if mask is None:
        return None
    return torch.from_numpy(np.array(preprocess.picture(mask.convert("L"))) > 127)


def selection(count: int, limit: int | None) -> Sequence[int]:
    """Numbers of at most `limit` images: of as many equal stretches of the data one each, anywhere within it.

    Every so-manieth image would not do: where classes take turns in the data, half of them might never be met.
    """
    if limit is None or limit >= count:
        return range(count)
    places = torch.rand(limit, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    return ((torch.arange(limit) + places) * (count / limit)).long().clamp_max(count - 1).unique().tolist()
