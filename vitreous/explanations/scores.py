"""How faithful every method is over a data set: measured, written, and the best one stored beside the weights."""

from collections.abc import Iterator, Sequence
from contextlib import nullcontext
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from vitreous.attribution.catalogue import controls_for, find_method, methods_for
from vitreous.attribution.method import Method
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, printable
from vitreous.explanations.best_findings import Tally, best_findings
from vitreous.explanations.dataset import own_part, read_batches, selection
from vitreous.explanations.default_method import DefaultMethod, as_json, most_faithful, store_default_method
from vitreous.explanations.dense import explained_model_for, inputs_of
from vitreous.explanations.explaining import ALL_METHODS, FEWER_PASSES, lighter
from vitreous.explanations.model_card import refresh_card
from vitreous.faithfulness.curves import PORTIONS
from vitreous.faithfulness.scoring import DECIDES, MethodScores, ScoringBatch, joined_scores, score_methods
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports import faithfulness as charts
from vitreous.reports.evaluation import console_table
from vitreous.reports.frontier import draw_frontier
from vitreous.runs.results import result_folder
from vitreous.runs.trained_model import TrainedModel
from vitreous.runtime.distributed import SINGLE_PROCESS, World

SCORES_JSON, SCORES_REPORT, SCORES_CHART = "faithfulness.json", "faithfulness.md", "faithfulness.png"
FRONTIER_CHART = "frontier.png"
SANITY_IMAGES = 8  # on which randomisation and stability are measured too; they take three more maps each


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
    doubts: int = 0,
    world: World = SINGLE_PROCESS,
) -> Path:
    """Score methods, print and write the table, and store the best one as the default of these weights.

    Of a model that does more than classify, the best finding in each image is explained. `doubts`: on how many images
    to measure what a method that has learned could flatter itself with. Several processes divide the images; the first
    one writes.
    """
    dense = trained.build_task().has_findings
    chosen = world.agree(lambda: methods_to_score(trained.model, methods))
    before, own = own_part(selection(len(images), limit), world, batch_size)

    def score_own_part() -> tuple[MethodScores, Tally]:
        tally = Tally()
        scores = score_methods(
            trained.model,
            finding_batches(trained, images, own, tally) if dense else class_batches(trained, images, own, batch_size),
            methods=[lighter(method) for method in chosen] if dense else chosen,
            portions=FEWER_PASSES["portions"] if dense else PORTIONS,
            sanity=SANITY_IMAGES,
            doubts=doubts,
            before=before,
        )
        return scores, tally

    with result_folder(out, SCORES_JSON) if world.main else nullcontext() as staging:
        parts = world.gather(world.agree(score_own_part))
        scores, tally = joined_scores([part for part, _ in parts]), sum((counts for _, counts in parts), Tally())
        if dense:
            tally.require_findings()
        scores.require_images()
        if staging is None:
            return out / SCORES_REPORT
        count = len(next(iter(scores.values.values()))[DECIDES])
        default = most_faithful(scores, data=f"{data} ({split})", images=count, findings=dense)
        about = {"model": trained.name, "data": data, "split": split, "images": count}
        if dense:
            about |= {"explained": "the best finding of each image", "nothing_found": tally.nothing_found}
            about |= {"with_known_object": tally.with_known_object}
        write_scores(staging, scores, default, about)
    earlier = store_default_method(model, default)
    refresh_card(model)
    Console().print(
        console_table(
            charts.faithfulness_table(scores, title=f"{trained.name}: faithfulness on {count} images of {data}")
        )
    )
    if doubts:
        print_doubts(scores, min(doubts, count))
    if tally.nothing_found:
        print(f"\nleft out: {tally.nothing_found} of {tally.images} images, in which the model found nothing")
    print(printable(f"\ndefault map: {default.method}. {default.reason}", keep="\n"))
    print(printable(f"by passes: {charts.frontier_text(scores)}"))
    if earlier.images > default.images:
        print(f"(it replaces {printable(earlier.method or '')}, which was measured on {earlier.images} images)")
    print(printable(f"report: {out / SCORES_REPORT}"))
    return out / SCORES_REPORT


def print_doubts(scores: MethodScores, count: int) -> None:
    title = f"does it flatter itself? {count} images"
    Console().print(console_table(charts.faithfulness_table(scores, title=title, measures=charts.DOUBT_MEASURES)))


def methods_to_score(model: nn.Module, names: Sequence[str]) -> list[Method]:
    """By name, or all; controls are scored in any case, and none of them can become the default."""
    if not names or ALL_METHODS in names:
        return methods_for(model)
    chosen, controls = [find_method(name, model) for name in names], [method.name for method in controls_for(model)]
    if all(method.name in controls for method in chosen):
        raise InputError(
            f"--method {' '.join(names)} names controls only, which are scored in any case; name a method besides "
            "them, or leave --method out to score all"
        )
    return chosen


def write_scores(folder: Path, scores: MethodScores, default: DefaultMethod, about: dict[str, Any]) -> None:
    heading = f"How faithful are the maps of {about['model']}? {about['images']} images of {about['data']}"
    charts.draw_faithfulness(scores, heading=heading, default=default.method).save(folder / SCORES_CHART)
    frontier = f"Which map for how many passes? {about['model']}, {about['images']} images of {about['data']}"
    draw_frontier(scores, heading=frontier).save(folder / FRONTIER_CHART)
    page = charts.faithfulness_markdown(
        scores, about, chart=SCORES_CHART, frontier=FRONTIER_CHART, default=f"{default.method}. {default.reason}"
    )
    write_text(folder / SCORES_REPORT, page)
    files = [SCORES_REPORT, SCORES_CHART, FRONTIER_CHART]
    write_json(folder / SCORES_JSON, {**about, "default": as_json(default), "methods": scores.rows(), "files": files})


def class_batches(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], batch_size: int
) -> Iterator[ScoringBatch]:
    """Some images of the data, with their objects where those of the whole batch are known."""
    for batch in read_batches(trained, images, numbers, batch_size, label="score"):
        known = bool(batch.objects.flatten(1).any(1).all())
        yield ScoringBatch(batch.inputs, None, batch.objects.to(batch.inputs.device) if known else None)


def finding_batches(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], tally: Tally
) -> Iterator[ScoringBatch]:
    """The best finding of each of some images of the data, with its object where the data know one."""
    for found in best_findings(trained, images, numbers, tally, label="score"):
        inputs, mask = inputs_of(trained, found.view.picture), found.mask
        model = explained_model_for(trained, found.target, found.view)
        yield ScoringBatch(inputs, found.target, None if mask is None else mask.to(inputs.device), model)
