"""A trained model as a graph for ONNX Runtime, OpenVINO or torch, with all that it takes to use it elsewhere.

vitreous export runs/demo --to onnx
"""

import io
import logging
from collections.abc import Mapping, Sequence
from contextlib import redirect_stdout
from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import torch
from numpy.typing import NDArray
from typing_extensions import Doc

from vitreous.attribution.explainer import LearnedExplainer
from vitreous.attribution.learned import explainer_of
from vitreous.data.source import open_data, recognise
from vitreous.errors import InputError, command, nearest, printable
from vitreous.evaluate import evaluate
from vitreous.evaluations.answers import samples_of
from vitreous.explanations.dataset import selection
from vitreous.exports.folder import EXPORT_JSON, RUN_SCRIPT, GraphFacts, is_exported, open_later, write_report
from vitreous.exports.graph import require_packages
from vitreous.exports.model import box_choice, exported_model
from vitreous.exports.outputs import WITHOUT_HEAD, GraphModel, graph_kind, shown_taps
from vitreous.exports.quantise import quantise, require_quantiser
from vitreous.exports.regions import OutlinedRegions, region_graphs
from vitreous.exports.script import run_script
from vitreous.exports.session import FILES, PACKAGES_TOLD, RUNTIMES, Session, open_session
from vitreous.exports.writing import FRAME, Compared, Size, agreeing, by_sides, compared_sizes, write_graph, write_later
from vitreous.files.storage import write_errors_explained, write_json
from vitreous.files.writing import write_text
from vitreous.layers.patch import resize
from vitreous.measurements.graph_speed import GraphSpeed, graph_speed
from vitreous.measurements.load import usable_cores
from vitreous.measurements.machine import load_average, this_machine
from vitreous.models.base import Backbone
from vitreous.runs.model_config import CONFIG, make_config, read_config
from vitreous.runs.model_folder import PREFERRED, find_model_folder, is_weights_file, load_model
from vitreous.runs.results import require_positive, result_folder
from vitreous.runs.trained_model import TrainedModel, refusal_of_size
from vitreous.runtime.calling import takes
from vitreous.tasks.base import load_task

_logger = logging.getLogger(__name__)

MOST_POINTS_LOST = 0.5  # of the task's main figure, in hundredths
EXPORTS = Path("exports")  # where models go unless --out says so


@dataclass(frozen=True)
class ExportSettings:
    model: Annotated[
        str,
        Doc("Run folder, model folder, file of weights (.pth, .safetensors), or model name for its published ones."),
    ]
    _: KW_ONLY
    to: Annotated[str, Doc("onnx, openvino, or torch (a program of torch.export, which needs torch, not vitreous).")]
    out: Annotated[
        Path | None,
        Doc("Folder to write to; an earlier export there is replaced. Default: one below exports/, named after both."),
    ] = None
    size: Annotated[
        int | None,
        Doc(
            "Height and width of the images, or the shorter side for detectors and segmenters; default: what the model "
            "was trained with."
        ),
    ] = None
    static: Annotated[bool, Doc("One image of exactly this size, in place of any.")] = False
    features: Annotated[
        bool, Doc("The maps of all stages, and of a classifier what it reads, in place of answers.")
    ] = False
    maps: Annotated[
        bool,
        Doc("Keep the maps of clusters and attention as outputs too; they take time, as fused attention makes none."),
    ] = False
    explainer: Annotated[
        bool, Doc("Keep the learned explainer (vitreous score --learn) too: where the likeliest class is seen.")
    ] = False
    int8: Annotated[
        bool, Doc("Whole numbers of eight bits in place of floats, where that loses at most half a point on --data.")
    ] = False
    data: Annotated[
        str | None,
        Doc("With --int8: pictures of the kind that the model was trained with: shapes, a folder, or another layout."),
    ] = None
    split: Annotated[str, Doc("With --int8: the split to measure on; ranges are taken from train.")] = "val"
    count: Annotated[int | None, Doc("With --int8: how many images of `shapes` to measure on.")] = None
    calibration: Annotated[int, Doc("With --int8: how many pictures show the ranges.")] = 128
    workers: Annotated[int, Doc("With --int8: processes that prepare images.")] = 2
    rounds: Annotated[int, Doc("How often graph and model are timed.")] = 15
    architecture: Annotated[str | None, Doc("Of a file: the name of its model, where it does not tell it itself.")] = (
        None
    )
    model_args: Annotated[
        tuple[str, ...],
        Doc("Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2."),
    ] = ()

    def __post_init__(self) -> None:
        """What cannot be written, or run afterwards, is told before the work."""
        require_positive(rounds=self.rounds, calibration=self.calibration)
        if self.to not in FILES:
            known = ", ".join(FILES)
            raise InputError(f"--to {self.to} given; nearest: {nearest(self.to, list(FILES), 1)}; accepted: {known}")
        runtime = RUNTIMES[self.to]
        if runtime is not None:
            require_packages(*dict.fromkeys((self.to, runtime)))
        check_int8(self)

    @property
    def folder(self) -> Path:
        """Where it goes."""
        return self.out or default_folder(self.model, self.to)

    @property
    def source(self) -> Path | None:
        """The folder of the model, if it has one; one that was exported already is refused."""
        found = None if is_weights_file(self.model) else find_model_folder(self.model)
        if found is not None and is_exported(found):
            raise InputError(f"'{self.model}' is an exported model already; give the run that it was exported from")
        return found

    def load(self) -> TrainedModel:
        _ = self.source
        return load_model(self.model, architecture=self.architecture, model_args=self.model_args, size=self.size)


@takes(ExportSettings)
def export(settings: ExportSettings) -> Path:
    """Write a model as a graph that runs without vitreous: for ONNX Runtime, OpenVINO, or torch alone.

    The folder holds the graph, config.json with preprocessing and classes, and run.py, a short program that answers
    about pictures with the graph, numpy and Pillow. predict, evaluate, explain and serve take the folder in place of a
    run. What is written is loaded again, run on images of three sizes and compared with the model; a graph that answers
    differently is not kept. export.json tells the largest difference, and how fast the graph is beside torch.

    A graph takes images of any number, height and width; with --static, one image of one size, for programs that need
    that. Models that take one size only are written for that size.

    With --int8 the graph computes in whole numbers, whose ranges the training pictures of --data show. It is measured
    on held-out pictures beside the model: if it loses more than half a point, nothing is written.

    Of detectors, graphs give the score and the box of every place; run.py, like predict, chooses among them. Detectors
    of two stages and Sparse R-CNN become several graphs: the first sees the image, the others the regions that run.py
    asks them about.

    Examples:
        vitreous export runs/demo --to onnx
        vitreous export runs/demo --to openvino --maps --out demo_openvino
        vitreous export runs/demo --to onnx --features
        vitreous export runs/cells --to openvino --size 640 --static
        vitreous export runs/photos --to openvino --int8 --data photos
    """
    trained = settings.load()
    kind = graph_kind(trained.model, trained.task, features=settings.features)
    graphs = () if settings.features else region_graphs(trained.model)
    masks = any(isinstance(graph, OutlinedRegions) for graph in graphs)
    choice = box_choice(trained.model, kind)
    levels = bool(choice.get("strides"))
    script = run_script(trained.name, settings.to, kind, trained.preprocess, levels=levels, masks=masks)
    form = graph_model(trained, kind, settings.maps, settings.explainer)
    size, dynamic = input_size(trained), not settings.static and takes_any_size(trained)
    ranges = calibration_images(trained, settings) if settings.int8 else []
    with write_errors_explained(settings.folder), result_folder(settings.folder, EXPORT_JSON) as staging:
        _logger.info("turning %s into a graph for %s; this takes a minute", trained.name, PACKAGES_TOLD[settings.to])
        names = write_graph(form, settings.to, size, staging, dynamic=dynamic)
        if settings.int8:
            _logger.info("finding the ranges of its numbers on %d pictures", len(ranges))
            quantise(staging, settings.to, ranges if dynamic else [scaled_to(image, size) for image in ranges])
        later = write_later(graphs, form, settings.to, size, staging, dynamic=dynamic)
        facts = GraphFacts(
            to=settings.to,
            kind=kind,
            precision="int8" if settings.int8 else "fp32",
            shape=(None, 3, None, None) if dynamic else (1, 3, *size),
            outputs=names,
            maps=form.maps,
            choice=choice,
            later=later,
        )
        session = open_session(staging, settings.to, names, facts.shape)
        following = open_later(staging, facts)
        pairs = [(graph, following[graph.name]) for graph in graphs]
        compared = agreeing(form, session, facts, compared_sizes(size, dynamic=dynamic), pairs)
        timed = speed_of(trained, form, session, facts, following, (1, 3, *size), settings.rounds)
        write_text(staging / RUN_SCRIPT, script)
        write_json(staging / CONFIG, description(settings, trained))
        report = report_of(settings.model, trained, facts, compared, timed)
        write_report(staging, report, CONFIG)
        if settings.int8:
            report["accuracy"] = accuracy_kept(settings, staging, trained)
            write_report(staging, report, CONFIG)
    tell(settings.folder, facts, compared, timed)
    if settings.int8:
        told = "{metric} on {data}: {before:.2%} in floats, {after:.2%} in eight bits"
        print(printable(told.format(**report["accuracy"])))
    return settings.folder


# ---- what is asked for -------------------------------------------------------------------------------------------


def graph_model(trained: TrainedModel, kind: str, maps: bool, explainer: bool) -> GraphModel:
    return GraphModel(
        trained.model,
        kind,
        shown_taps(trained.model) if maps else (),
        required_explainer(trained, kind) if explainer else None,
    )


def required_explainer(trained: TrainedModel, kind: str) -> LearnedExplainer:
    found = explainer_of(trained.model) if kind == "classify" else None
    if found is None:
        why = "this model has none" if kind == "classify" else f"a graph of {kind} has no place for one"
        raise InputError(
            f"--explainer given, but {why}; teach one to a classifier first: vitreous score RUN DATA --learn"
        )
    return found


def input_size(trained: TrainedModel) -> Size:
    """Height and width of a usual image; of models whose images vary, with sides as their batches have them."""
    task = trained.build_task()
    height, width = task.input_size(trained.preprocess)
    if not task.on_feature_maps or task.targets == "keypoints":
        return height, width
    width = min(width, round(height * 4 / 3))
    return -(-height // FRAME) * FRAME, -(-width // FRAME) * FRAME


def takes_any_size(trained: TrainedModel) -> bool:
    """Whether a model takes images of other sizes; many of timm's do not."""
    if any(isinstance(part, Backbone) for part in trained.model.modules()) or trained.build_task().on_feature_maps:
        return True
    larger = max(trained.preprocess.size) + FRAME
    if refusal_of_size(trained.model, larger) is None:
        return True
    height, width = trained.preprocess.size
    _logger.info("%s takes images of %dx%d pixels only: the graph is written for these", trained.name, height, width)
    return False


def default_folder(model: str, to: str) -> Path:
    path = Path(model)
    named = path.parent if path.name in PREFERRED else path
    return EXPORTS / f"{named.stem if is_weights_file(model) else named.name}-{to}"


# ---- eight bits --------------------------------------------------------------------------------------------------


def check_int8(settings: ExportSettings) -> None:
    if not settings.int8:
        if settings.data is not None:
            raise InputError(f"--data {settings.data} given, which is for --int8; add that, or leave it out")
        return
    require_quantiser(settings.to)
    if settings.features:
        raise InputError("--int8 and --features given; what is lost can be measured of answers only: leave one out")
    if settings.data is None:
        raise InputError("--int8 needs pictures that show the ranges of its numbers, and others to measure; add --data")


def calibration_images(trained: TrainedModel, settings: ExportSettings) -> list[NDArray[np.float32]]:
    """Pictures (1, 3, H, W) of the train split as the model sees them; data of another task are refused."""
    assert settings.data is not None
    task, most = trained.build_task(), settings.calibration
    drawn = recognise(settings.data, task.targets, task.wording()).drawn
    images = open_data(
        settings.data,
        "train",
        size=trained.preprocess.size,
        count=most if drawn else None,
        targets=task.targets,
        wording=task.wording(),
    )
    views = task.dataset(samples_of(trained, images, None), task.evaluation_view(trained.preprocess))
    found = (task.collate([views[index]])[0] for index in selection(len(views), most))
    return [trained.preprocess.normalise_bytes(pixels).numpy() for pixels in found]


def scaled_to(image: NDArray[np.float32], size: Size) -> NDArray[np.float32]:
    """For a graph of a single size: good enough to show ranges."""
    return image if image.shape[2:] == size else resize(torch.from_numpy(image), size).numpy()


def accuracy_kept(settings: ExportSettings, staging: Path, trained: TrainedModel) -> dict[str, Any]:
    """The figures of the model and of its graph; a graph that loses more than half a point is refused."""
    options: dict[str, Any] = dict(split=settings.split, count=settings.count, workers=settings.workers, device="cpu")
    about_file: dict[str, Any] = dict(architecture=settings.architecture, model_args=settings.model_args)
    name, data = load_task(trained.task).main_metric, str(settings.data)
    with redirect_stdout(io.StringIO()):
        before = evaluate(settings.model, data, size=settings.size, **options, **about_file)[name]
        after = evaluate(str(staging), data, **options)[name]
    if 100 * (before - after) > MOST_POINTS_LOST:
        raise InputError(
            f"in eight bits {name} on {data} falls from {before:.2%} to {after:.2%}, and at most {MOST_POINTS_LOST} "
            "points may be lost; nothing was written. Leave out --int8, or give more --calibration pictures"
        )
    return {"metric": name, "before": before, "after": after, "data": data, "split": settings.split}


# ---- what is written ---------------------------------------------------------------------------------------------


def description(settings: ExportSettings, trained: TrainedModel) -> dict[str, Any]:
    """config.json, as in a model folder."""
    known = None if settings.source is None else read_config(settings.source)
    return make_config(
        trained.model,
        trained.name,
        {} if known is None else known.model_args,
        trained.task,
        trained.classes,
        trained.preprocess,
        trained.task_args,
        None if known is None else known.val_fraction,
    )


def report_of(
    model: str, trained: TrainedModel, facts: GraphFacts, compared: Sequence[Compared], timed: GraphSpeed
) -> dict[str, Any]:
    return {
        "model": model,
        "name": trained.name,
        "graph": facts.content(),
        "compared": [one._asdict() for one in compared],
        "speed": timed.row(),
        "machine": this_machine(torch.device("cpu")).row(),
    }


def speed_of(
    trained: TrainedModel,
    form: GraphModel,
    session: Session,
    facts: GraphFacts,
    following: Mapping[str, Session],
    shape: tuple[int, ...],
    rounds: int,
) -> GraphSpeed:
    """Of the graph; where others follow it, of the whole detector, with what chooses the regions."""
    if not following:
        return graph_speed(form, session, shape, rounds)
    whole = exported_model(facts.kind, session, facts.maps, len(trained.classes), facts.choice, following)
    return graph_speed(trained.model.eval(), lambda array: whole(torch.from_numpy(array)), shape, rounds)


def tell(out: Path, facts: GraphFacts, compared: Sequence[Compared], timed: GraphSpeed) -> None:
    takes = "any batch, height and width" if facts.shape[2] is None else by_sides(facts.shape)
    print(printable(f"exported: {out}  ({PACKAGES_TOLD[facts.to]}, {facts.precision}; takes {takes})"))
    gives = ", ".join(name for name in facts.outputs if name not in facts.maps)
    print(f"gives: {gives}" + (f", and {len(facts.maps)} maps: {', '.join(facts.maps)}" if facts.maps else ""))
    for name, ports in facts.later.items():
        print(f"then {name}, of one image's maps: gives {', '.join(ports.outputs)}")
    for one in compared:
        print(
            f"compared with torch, {by_sides(one.shape)}: largest difference {one.difference:.1e}, "
            f"{one.relative:.1e} of the largest value"
        )
    eager, written, ratio = timed.eager.middle * 1000, timed.exported.middle * 1000, timed.speed_up
    print(
        f"speed, {by_sides(timed.shape)}, {torch.get_num_threads()} threads: torch {eager:.1f} ms, exported "
        f"{written:.1f} ms: {ratio.middle:.2f}x as fast ({ratio.low:.2f} to {ratio.high:.2f})"
    )
    load = load_average()
    if load is not None and load > usable_cores() + 1:
        print(f"the machine is busy (load {load:g}), so that the speed says little; vitreous bench measures at leisure")
    next_step = f"python {out / RUN_SCRIPT} photo.jpg"
    print(
        printable(
            f"next: {next_step}"
            + ("" if facts.kind == WITHOUT_HEAD else f"   or: {command('predict', out, 'photo.jpg')}")
        )
    )
