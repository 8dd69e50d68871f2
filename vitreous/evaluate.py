"""`vitreous evaluate`: a model and data in, figures out."""

from contextlib import nullcontext

from rich.console import Console

from vitreous.errors import InputError, printable
from vitreous.evaluations.answers import Conditions, measure_at, measure_before, measure_in_detail
from vitreous.evaluations.features import measure_features
from vitreous.evaluations.folder import EVALUATION_JSON, EVALUATION_PAGE, write_evaluation
from vitreous.evaluations.settings import EvaluateSettings
from vitreous.explanations.model_card import refresh_card
from vitreous.files.storage import json_text
from vitreous.files.writing import write_output
from vitreous.reports import evaluation as report
from vitreous.runs.results import require_writable, result_folder
from vitreous.runs.run_folder import versions
from vitreous.runs.trained_model import at_size
from vitreous.runtime.calling import takes
from vitreous.runtime.distributed import processes
from vitreous.tasks.base import Inference


@takes(EvaluateSettings)
def evaluate(settings: EvaluateSettings) -> dict[str, float]:
    """Measure a trained model on held-out images; returns the figures by name.

    For a classifier: top-1 and top-5 accuracy, loss, calibration (ECE with 15 bins), recall and precision of every
    class, which classes are taken for which, and the images it got wrong with the largest confidence. With --out also
    as a page, evaluation.html, whose tables can be sorted and searched, and as pictures: the confusion matrix, the
    reliability diagram, accuracy by size, and the worst mistakes.

    For a detector: COCO's average precision and recall of boxes and, where it gives them, of masks. For a segmenter:
    mean and per-class intersection over union, and pixel accuracy. For keypoints: PCK at a tenth of the object's size,
    and COCO's average precision, around the annotated boxes or, with --boxes, around those that a detector found.

    With --groups: accuracy in every group, their mean, and the worst, which shows whether a classifier relies on
    something that only often goes with the class.

    With --knn or --linear: how well classes can be told from the pooled features, of any classifier of ours or timm's,
    or of a model that learned without labels.

    Examples:
        vitreous evaluate runs/demo shapes
        vitreous evaluate runs/unlabelled shapes --knn --linear
        vitreous evaluate runs/demo shapes:hard --count 500 --sizes 48 64 96 128
        vitreous evaluate runs/flowers/best flowers --split test --json flowers.json --out evaluation
        vitreous evaluate runs/streets streets --slide --scales 0.75 1 1.25 --flip --markdown streets.md
        vitreous evaluate runs/poses coco --flip --boxes person_detections_val2017.json
        vitreous evaluate runs/birds birds --groups place class
        vitreous evaluate runs/mended shapes:corner_mark=0.9 --groups agrees --before runs/marked
    """
    out = settings.report_folder
    if settings.json is not None and settings.json == settings.markdown:
        raise InputError(f"--json and --markdown both name {settings.json}; give each a place of its own")
    for option, file in (("--json", settings.json), ("--markdown", settings.markdown)):
        if file is not None:
            require_writable(option, file)
    with (
        processes(settings.device) as world,
        result_folder(out, EVALUATION_JSON) if out is not None and world.main else nullcontext() as staging,
    ):
        trained = world.agree(settings.load)
        trained.model.to(world.device)
        earlier = world.agree(lambda: settings.load_before(trained))
        # One it cannot take should show before the work.
        resized = world.agree(lambda: [at_size(trained, side) for side in settings.sizes])
        inference = Inference(settings.flip, settings.scales, settings.slide, boxes=settings.boxes)
        world.agree(lambda: trained.build_task().using(inference))
        opener = world.agree(lambda: settings.data_opener(trained))
        conditions = Conditions(settings.batch_size, settings.workers, world, settings.amp, inference)
        measure = measure_features if settings.on_features else measure_in_detail
        evaluation = measure(trained, settings, opener, conditions)
        extra = tuple(measure_at(version, evaluation, opener, conditions) for version in resized)
        evaluation = evaluation._replace(sizes=extra)
        if earlier is not None:
            evaluation = evaluation._replace(before=measure_before(earlier, settings, opener, conditions, evaluation))
        for grid in report.evaluation_tables(evaluation, most_rows=report.MOST_ROWS):
            Console().print(report.console_table(grid))
        content = {**report.evaluation_json(evaluation), "versions": versions()}
        content |= {} if settings.boxes is None else {"boxes": str(settings.boxes)}
        if settings.json is not None and world.main:
            write_output(settings.json, json_text(content))
        if settings.markdown is not None and world.main:
            write_output(settings.markdown, report.evaluation_markdown(evaluation, {}))
        if staging is not None:
            write_evaluation(staging, evaluation, content)
    if out is not None and staging is not None:
        print(printable(f"report: {out / EVALUATION_PAGE}"))
        if settings.out is None:  # it is in the run's own folder
            refresh_card(settings.model)
    return evaluation.values | {"images_per_second": evaluation.speed.images_per_second} | evaluation.by_group()
