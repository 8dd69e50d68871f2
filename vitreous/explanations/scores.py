"""How faithful every method is over a data set: measured, written, and the best one stored beside the weights."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext, suppress
from dataclasses import asdict, dataclass, field
from functools import cache
from itertools import islice
from pathlib import Path
from typing import Any

from rich.console import Console
from torch import nn

from vitreous.attribution.catalogue import controls_for, find_method, methods_for
from vitreous.attribution.explainer_folder import weights_fingerprint
from vitreous.attribution.learned import explainer_of
from vitreous.attribution.method import Method
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, printable
from vitreous.explanations.best_findings import Tally, best_findings
from vitreous.explanations.dataset import batches_of, selection
from vitreous.explanations.default_method import DefaultMethod, as_json, most_faithful, store_default_method
from vitreous.explanations.dense import explained_model_for, inputs_of
from vitreous.explanations.explaining import ALL_METHODS, FEWER_PASSES, lighter
from vitreous.explanations.model_card import refresh_card
from vitreous.faithfulness.curves import PORTIONS
from vitreous.faithfulness.scoring import DECIDES, MethodScores, ScoringBatch, score_methods
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports import faithfulness as charts
from vitreous.reports.evaluation import console_table
from vitreous.reports.frontier import draw_frontier
from vitreous.runs.result_parts import Part, open_parts, parts_note, remove_parts, was_interrupted
from vitreous.runs.results import report_skipped, result_folder
from vitreous.runs.trained_model import TrainedModel
from vitreous.runtime.distributed import SINGLE_PROCESS, World

SCORES_JSON, SCORES_REPORT, SCORES_CHART = "faithfulness.json", "faithfulness.md", "faithfulness.png"
FRONTIER_CHART = "frontier.png"
SANITY_IMAGES = 8  # on which randomisation and stability are measured too; they take three more maps each


@dataclass(frozen=True)
class ScoreSettings:
    """What is measured, and on how many images."""

    split: str
    limit: int
    methods: Sequence[str]
    batch_size: int
    doubts: int = 0  # on how many images to measure what a method that has learned could flatter itself with
    lessons: Mapping[str, Any] | None = None  # of an explainer that was taught for it


@dataclass
class Scored:
    """What was measured, and what became of the pictures."""

    scores: MethodScores = field(default_factory=MethodScores)
    tally: Tally = field(default_factory=Tally)

    def stored(self) -> Part:
        numbers, told = self.scores.stored()
        return Part(numbers, {"scores": told, "tally": asdict(self.tally)})

    @classmethod
    def restored(cls, part: Part, images: Sequence[int]) -> "Scored":
        found = cls(MethodScores.restored(part.numbers, part.told["scores"]), Tally.restored(part.told["tally"]))
        for method, measures in found.scores.values.items():
            if printable(method) != method or any(len(numbers) > len(images) for numbers in measures.values()):
                raise ValueError("it names other methods, or more images than there are")
        return found

    def add(self, later: "Scored") -> None:
        self.scores.join(later.scores)
        self.tally += later.tally


def score_run(
    model: str,
    trained: TrainedModel,
    data: str,
    images: ImageSet,
    asked: ScoreSettings,
    *,
    out: Path,
    world: World = SINGLE_PROCESS,
) -> Path:
    """Score methods, print and write the table, and store the best one as the default of these weights.

    Of a model that does more than classify, the best finding in each image is explained. Several processes divide the
    images, and what a kill left behind is continued; the first process writes.
    """
    dense = trained.build_task().has_findings
    methods = world.agree(lambda: methods_to_score(trained.model, asked.methods))
    with result_folder(out, SCORES_JSON) if world.main else nullcontext() as staging:
        found = score_in_parts(trained, images, asked, methods, out, world)
        if staging is None or found is None:
            return out / SCORES_REPORT
        scores, tally = found.scores, found.tally
        count = len(next(iter(scores.values.values()))[DECIDES])
        default = most_faithful(scores, data=f"{data} ({asked.split})", images=count, findings=dense)
        about = {"model": trained.name, "data": data, "split": asked.split, "images": count}
        if dense:
            about |= {"explained": "the best finding of each image", "nothing_found": tally.nothing_found}
            about |= {"with_known_object": tally.with_known_object}
        write_scores(staging, scores, default, about)
    earlier = store_default_method(model, default)
    refresh_card(model)
    remove_parts(out)
    title = f"{trained.name}: faithfulness on {count} images of {data}"
    Console().print(console_table(charts.faithfulness_table(scores, title=title)))
    if asked.doubts:
        print_doubts(scores, min(asked.doubts, count))
    if tally.nothing_found:
        print(f"\nleft out: {tally.nothing_found} of {tally.images} images, in which the model found nothing")
    print(printable(f"\ndefault map: {default.method}. {default.reason}", keep="\n"))
    print(printable(f"by passes: {charts.frontier_text(scores)}"))
    if earlier.images > default.images:
        print(f"(it replaces {printable(earlier.method or '')}, which was measured on {earlier.images} images)")
    print(printable(f"report: {out / SCORES_REPORT}"))
    return out / SCORES_REPORT


def score_in_parts(
    trained: TrainedModel, images: ImageSet, asked: ScoreSettings, methods: Sequence[Method], out: Path, world: World
) -> Scored | None:
    """The scores of all images, in parts that outlive a kill; None on all processes but the first."""
    dense, numbers = trained.build_task().has_findings, selection(len(images), asked.limit)
    methods, portions = ([lighter(one) for one in methods], FEWER_PASSES["portions"]) if dense else (methods, PORTIONS)
    parts = open_parts(out, lambda: scores_note(trained, images, asked), numbers, Scored.restored, world)
    with_sanity = cache(lambda: first_findings(trained, images, numbers) if dense else range(SANITY_IMAGES))

    def work(places: range, portion: Iterator[int]) -> Part:
        tally = Tally()
        batches = (
            finding_batches(trained, images, portion, tally)
            if dense
            else class_batches(trained, images, portion, asked.batch_size, tally)
        )
        scores = score_methods(
            trained.model,
            batches,
            methods=methods,
            portions=portions,
            sanity=sum(place in with_sanity() for place in places),
            doubts=sum(place < asked.doubts for place in places),
            portion=True,
        )
        return Scored(scores, tally).stored()

    def check() -> None:
        if dense:
            whole.tally.require_findings()
        else:
            report_skipped(len(numbers) - whole.tally.images, len(numbers))
        whole.scores.require_images()
        whole.scores.able()

    parts.fill(work, label="score")
    whole = Scored()
    return whole if parts.put_together(whole.add, check) else None


def first_findings(trained: TrainedModel, images: ImageSet, numbers: Sequence[int]) -> set[int]:
    """Places of the images whose findings are the first, whoever scores them; looking for them takes a pass each."""
    place = {number: place for place, number in enumerate(numbers)}
    found = best_findings(trained, images, numbers, Tally(), quiet=True)
    return {place[one.number] for one in islice(found, SANITY_IMAGES)}


def scores_note(trained: TrainedModel, images: ImageSet, asked: ScoreSettings) -> dict[str, Any]:
    """What the parts of a score are of."""
    settings = asdict(asked) | {"explainer": None}
    with suppress(InputError):  # of a damaged one: whoever asks for its map says so
        explainer = explainer_of(trained.model)
        settings["explainer"] = None if explainer is None else weights_fingerprint(explainer)
    return parts_note("scores", trained, images, selection(len(images), asked.limit), asked.batch_size, settings)


def scores_interrupted(trained: TrainedModel, images: ImageSet, asked: ScoreSettings, out: Path) -> bool:
    """Whether this very score, of this very explainer, was begun and not finished."""
    return was_interrupted(out, scores_note(trained, images, asked))


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
    trained: TrainedModel, images: ImageSet, numbers: Iterable[int], batch_size: int, tally: Tally
) -> Iterator[ScoringBatch]:
    """Some images of the data, with their objects where those of the whole batch are known."""
    for batch in batches_of(trained, images, numbers, batch_size):
        tally.images += len(batch.numbers)
        known = bool(batch.objects.flatten(1).any(1).all())
        yield ScoringBatch(batch.inputs, None, batch.objects.to(batch.inputs.device) if known else None)


def finding_batches(
    trained: TrainedModel, images: ImageSet, numbers: Iterable[int], tally: Tally
) -> Iterator[ScoringBatch]:
    """The best finding of each of some images of the data, with its object where the data know one."""
    for found in best_findings(trained, images, numbers, tally):
        inputs, mask = inputs_of(trained, found.view.picture), found.mask
        model = explained_model_for(trained, found.target, found.view)
        yield ScoringBatch(inputs, found.target, None if mask is None else mask.to(inputs.device), model)
