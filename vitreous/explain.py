"""Why a model answered as it did on pictures, and how far each map of that can be trusted.

vitreous explain photo.jpg
vitreous explain runs/demo photo.jpg
"""

import math
import os
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import update_wrapper
from inspect import signature
from pathlib import Path
from typing import Any, overload

from PIL import Image
from torch import nn

from vitreous.attribution.method import pixels_at_once
from vitreous.attribution.target import Target
from vitreous.clusters.layer import MapSource
from vitreous.clusters.masking import Masking
from vitreous.data.pictures import Picture, Pictured, as_picture, find_pictures
from vitreous.data.video import Video, frame_lines, open_video
from vitreous.errors import InputError, nearest, printable
from vitreous.explanations.dataset import selection
from vitreous.explanations.default_method import read_default_method
from vitreous.explanations.dense import explain_finding, finding_plan, inspect_input, inspect_picture
from vitreous.explanations.explaining import Plan, chosen_methods, cluster_layer_of, without_clusters
from vitreous.explanations.folder import EXPLANATION_JSON, REPORT_PAGE, print_summary, write_explanations
from vitreous.explanations.inner_maps import inner_maps, inner_view, write_inner_maps
from vitreous.explanations.model_card import shortcuts_known
from vitreous.explanations.picture import explain_picture, explain_with, model_in_memory, picture_name
from vitreous.explanations.video import FRAME_LINES, explain_frames, method_for_video, require_watchable
from vitreous.measurements.plan import gradients_fit, plan_memory, read_amount
from vitreous.reports.explanation import Explanation
from vitreous.runs.default_model import DEFAULT_MODEL, model_and_pictures
from vitreous.runs.model_folder import is_weights_file, load_model
from vitreous.runs.results import load_readable, report_skipped, require_positive, result_folder
from vitreous.runs.trained_model import TrainedModel, is_whole
from vitreous.runs.video_answers import VIDEO_DRAWN, write_video_marker
from vitreous.runtime.calling import natural, with_known_names
from vitreous.runtime.console import track
from vitreous.tasks.findings import FindingQuery, parse_region

COPIES = 64  # of an image, changed, that run together where memory allows


def explain_run(
    model: str = DEFAULT_MODEL,
    images: tuple[str, ...] = (),
    *,
    method: tuple[str, ...] = (),
    budget: int | None = None,
    ranking: str | Masking | None = None,
    compare: str | None = None,
    label: str | None = None,
    finding: int | None = None,
    joint: str | None = None,
    region: str | None = None,
    stage: int | None = None,
    block: int | None = None,
    source: MapSource = "clusters",
    head: int | None = None,
    top_k: int = 6,
    limit: int = 50,
    stride: int = 1,
    size: int | str | None = None,
    max_memory: str | None = None,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
    out: Path = Path("explanation"),
) -> Path:
    """Show why a model answered as it did on images, as one HTML report.

    The report compares maps of several methods, each with insertion and deletion measured on that image. Of a PaCa
    model it also tells whether its clusters matter at all (causal load), which do, alone and in groups, and which
    ranking of them is right. The class is the true one where it is known (--label, or the image's folder), else the
    predicted one. Of a detector, a segmenter or a keypoint model one finding is explained: the best box, the largest
    region of the class that covers most, the surest joint. Of a model without a classifier, its inner maps are shown.

    Written to --out, where only an earlier result is replaced: report.html, sheets of images, explanation.json.

    Examples:
        vitreous explain photo.jpg
        vitreous explain panorama.jpg --size 4000x6000 --max-memory 6GB
        vitreous explain runs/mine photos/ --label cat --method grad_cam occlusion --compare runs/other
        vitreous explain runs/streets photo.jpg --label road --region 10,200,400,300
        vitreous explain xcit_small_12_p8.fb_dino photo.jpg --size 448

    Args:
        model: Run or model folder, file of weights, hf:owner/name, or name, ours or timm's; default: a public PaCa.
        images: Files, folders, patterns such as 'photos/*.jpg', samples of embedded data: shapes:val:0-7, or a video.
        method: Methods to compare, such as 'grad_cam stage 2', or all; default: the run's own and a few quick ones.
        budget: Most forward passes that a map may take (a backward pass counts as two).
        ranking: Of clusters: ablation (default), logit_gate, value_gate, integrated, attention_mass, masking, random.
        compare: Another run, shown side by side.
        label: True class of the images; of a detector or segmenter, the class whose best finding is explained.
        finding: Which finding is explained, by rank; default: the best.
        joint: Keypoints: the joint that is explained; default: the most certain.
        region: Segmentation: left,top,right,bottom in pixels of the image; what the model says there is explained.
        stage: Stage whose clusters are shown, counted from 1 as in the paper; default: the last one with clusters.
        block: Block of the stage, from 1; default: the last one that has maps of its own.
        source: Rank the cluster maps, or the attention each position pays to the clusters.
        head: Attention head, counted from 1; default: the mean of all heads.
        top_k: Number of clusters to draw.
        limit: Most images to explain; of more, a selection evenly spread over them is taken.
        stride: Of a video: every so many frames are shown beside their maps, in overlay.mp4, and told in frames.jsonl.
        size: Height and width the images are brought to, as 448 or 800x1216; default: what the model was trained with.
        max_memory: Classifiers: most memory to take beside the loaded model, such as 4GB; a plan is told first.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where the file does not tell.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.
        out: Folder to write to.
    """
    require_positive(top_k=top_k, limit=limit, stride=stride, budget=budget)
    model, images = model_and_pictures(model, images, "explain")
    plan = plan_of(method, ranking, stage, block=block, source=source, head=head, budget=budget)
    query = FindingQuery(finding, label, joint, None if region is None else parse_region(region))
    video = open_video(images, stride)  # one that cannot be read is told before the work
    loaded = load_runs((model,) if compare is None else (model, compare), architecture, model_args, size, device)
    plan, pixels = within_memory(loaded, plan, ranking, max_memory, video)
    if video is not None:
        return show_video(loaded, video, query, out, plan)
    if any(is_whole(one) and not one.classes for _, one in loaded):
        return show_inner_maps(loaded, images, limit, query, out)
    return show_answers(loaded, images, limit, query, out, plan, pixels, ranked=ranking is not None, top_k=top_k)


def within_memory(
    loaded: Sequence[tuple[str, TrainedModel]],
    plan: Plan,
    ranking: str | Masking | None,
    max_memory: str | None,
    video: Video | None,
) -> tuple[Plan, AbstractContextManager[None]]:
    """What of the plan fits into the memory that is allowed, and how many changed copies run together; both are told.

    Where gradients do not fit, maps that need none are made, and clusters are ranked by the attention they receive
    unless another ranking was asked for.
    """
    if max_memory is None:
        return plan, nullcontext()
    if video is not None:
        raise InputError(f"--max-memory {max_memory} is for pictures; give a smaller --size for the frames of a video")
    plans = [plan_memory(trained, batch_size=COPIES, max_memory=max_memory) for _, trained in loaded]
    for memory in plans:
        print(f"plan: {memory}")
    pixels = pixels_at_once(min(memory.batch * math.prod(memory.size) for memory in plans))
    if all(gradients_fit(one.model, one.preprocess.size, read_amount(max_memory)) for _, one in loaded):
        return plan, pixels
    print("plan: gradients would need more; maps without them, with few passes, and clusters by attention_mass")
    return replace(plan, sparing=True, ranking=plan.ranking if ranking else "attention_mass"), pixels


def show_answers(
    loaded: Sequence[tuple[str, TrainedModel]],
    images: Sequence[str],
    limit: int,
    query: FindingQuery,
    out: Path,
    plan: Plan,
    pixels: AbstractContextManager[None],
    *,
    ranked: bool,
    top_k: int,
) -> Path:
    """The report on one model, or on two side by side; `ranked`: a ranking of clusters was asked for."""
    names = [run for run, _ in loaded]
    with pixels, result_folder(out, EXPLANATION_JSON) as staging:
        runs = [ready(run, one, plan, ranked, query) for run, one in loaded]
        (first, *others), known = explain_pictures(runs, images, limit, query), shortcuts_of(names)
        about = dict(zip(("model", "compare"), names, strict=False)) | {"ranking": plan.ranking}
        beside, hole = others[0] if others else (), plan.masking.hole
        write_explanations(staging, first, about=about, hole=hole, top_k=top_k, beside=beside, shortcuts=known)
    print_summary(first, out / REPORT_PAGE)
    return out / REPORT_PAGE


def show_video(
    loaded: Sequence[tuple[str, TrainedModel]], video: Video, query: FindingQuery, out: Path, plan: Plan
) -> Path:
    """Where a classifier looks, frame by frame."""
    if len(loaded) > 1:
        raise InputError("--compare is for pictures; explain the video once for each model, with another --out")
    for name in query.given():
        raise InputError(f"--{name} is for pictures; of a video the answer of every frame is explained")
    ((run, trained),) = loaded
    require_watchable(trained)
    method = method_for_video(trained, read_default_method(run).applied(plan))
    with result_folder(out, EXPLANATION_JSON) as staging:
        found = explain_frames(trained, method, video, staging)
        about = {"model": run, "video": video.path.name, "stride": video.stride, "method": method.name}
        write_video_marker(staging, EXPLANATION_JSON, **about)
    for line in frame_lines([(row["seconds"], best) for row, best in found]):
        print(printable(line))
    print(printable(f"written: {out / VIDEO_DRAWN} (maps of {method.name}) and {out / FRAME_LINES}"))
    return out / VIDEO_DRAWN


def show_inner_maps(
    loaded: Sequence[tuple[str, TrainedModel]], images: Sequence[str], limit: int, query: FindingQuery, out: Path
) -> Path:
    """Of a model without a classifier: the maps inside it, as there is no answer to explain."""
    if len(loaded) > 1:
        raise InputError("--compare compares answers, and a model without a classifier has none; leave it out")
    for name in query.given():
        raise InputError(f"--{name} given, which is about answers, and this model has no classifier; leave it out")
    ((run, trained),) = loaded
    inner_view(trained)  # what it cannot show is told before the work
    pictures = select(find_pictures(images, size=trained.preprocess.size), limit)
    with result_folder(out, EXPLANATION_JSON) as staging:
        readable = load_readable(track(pictures, total=len(pictures), label="explain"))
        found = [inner_maps(trained, picture.name, image) for picture, image in readable]
        report_skipped(len(pictures) - len(found), len(pictures))
        write_inner_maps(staging, found, run)
    print(printable(f"report: {out / REPORT_PAGE}"))
    return out / REPORT_PAGE


def shortcuts_of(runs: Sequence[str]) -> list[str]:
    """What is known of the models' shortcuts; of several models with the name of each."""
    found = {run: shortcuts_known(run) for run in runs}
    return [note if len(runs) == 1 else f"{run}: {note}" for run, notes in found.items() for note in notes]


def plan_of(methods: tuple[str, ...], ranking: str | Masking | None, stage: int | None, **layer: Any) -> Plan:
    """What to compute. A `Masking` is the ranking of that name with its settings."""
    if isinstance(ranking, Masking):
        return Plan(methods=methods, ranking="masking", stage=stage, masking=ranking, **layer)
    usual = "masking" if layer.get("source") == "attention" else "ablation"
    return Plan(methods=methods, ranking=ranking or usual, stage=stage, **layer)


def load_runs(
    runs: Sequence[str], architecture: str | None, model_args: tuple[str, ...], size: int | str | None, device: str
) -> list[tuple[str, TrainedModel]]:
    """With their names. What is said about files is meant for the runs that are files; where none is, it is refused."""
    some = any(map(is_weights_file, runs))
    about_file: dict[str, Any] = {"architecture": architecture, "model_args": model_args}
    loaded = [
        load_model(
            run, size=size, device=device, features=True, **({} if some and not is_weights_file(run) else about_file)
        )
        for run in runs
    ]
    if len({trained.task for trained in loaded}) > 1:
        raise InputError(
            f"{runs[0]} is for the task '{loaded[0].task}', {runs[1]} for '{loaded[1].task}'; compare runs of one task"
        )
    if len(runs) > 1:  # they may be of the same architecture: what tells them apart is where they come from
        loaded = [trained._replace(name=run) for run, trained in zip(runs, loaded, strict=True)]
    return list(zip(runs, loaded, strict=True))


def ready(run: str, trained: TrainedModel, plan: Plan, ranked: bool, query: FindingQuery) -> tuple[TrainedModel, Plan]:
    """A model and what to compute with it; what it cannot do shows here, before the work."""
    trained.build_task().check_query(query)
    own = read_default_method(run).applied(plan)
    if cluster_layer_of(trained.model, own) is None and ranked:
        raise InputError(f"--ranking {plan.ranking} ranks clusters, and {without_clusters(trained.model)}")
    if trained.build_task().has_findings:
        return trained, finding_plan(trained.model, own)
    chosen_methods(trained.model, own)
    return trained, own


def explain_pictures(
    runs: Sequence[tuple[TrainedModel, Plan]], images: Sequence[str], limit: int, query: FindingQuery
) -> list[tuple[Explanation, ...]]:
    """For each run the explanations of all pictures that can be read."""
    pictures = select(find_pictures(images, size=runs[0][0].preprocess.size), limit)
    explained = [
        [explain_one(trained, picture, image, plan, query) for trained, plan in runs]
        for picture, image in load_readable(track(pictures, total=len(pictures), label="explain"))
    ]
    report_skipped(len(pictures) - len(explained), len(pictures))
    return list(zip(*explained, strict=True))


def explain_one(
    trained: TrainedModel, picture: Picture, image: Image.Image, plan: Plan, query: FindingQuery
) -> Explanation:
    if not trained.build_task().has_findings:
        return explain_picture(trained, picture, image, plan, query.label)
    return explain_finding(trained, inspect_picture(trained, image, picture.name), query=query, plan=plan)


def select(pictures: Sequence[Picture], limit: int) -> list[Picture]:
    """At most `limit` pictures, evenly spread, so that a folder of classes is not represented by its first class."""
    if len(pictures) > limit:
        print(f"{limit} of {len(pictures)} images are explained; --limit {len(pictures)} explains all")
    return [pictures[index] for index in selection(len(pictures), limit)]


# ---- a model in memory -------------------------------------------------------------------------------------------


def explain_model(
    model: nn.Module | TrainedModel,
    image: Pictured,
    *,
    target: Target | int | str | None = None,
    finding: int | None = None,
    label: str | None = None,
    joint: str | None = None,
    region: tuple[float, float, float, float] | str | None = None,
    method: tuple[str, ...] = (),
    budget: int | None = None,
    ranking: str | Masking = "ablation",
    stage: int | None = None,
    preprocessed: bool = False,
    preprocess: object = None,
    classes: tuple[str, ...] | None = None,
) -> Explanation:
    """Explain one image with a model in memory.

        model = timm.create_model("paca_tiny", pretrained=True).eval()
        explanation = vitreous.explain(model, "photo.jpg")
        explanation.show()

    Args:
        model: A classifier of timm, torchvision or `transformers`, any module that turns images (B, 3, H, W) into
            logits, or what `vitreous.load_model("runs/demo")` gives.
        image: A path, a PIL image, bytes as an array (H, W, 3) or a tensor (3, H, W), or the same as floats from 0 to
            1: a picture, which is brought to the size and the colours that the model was trained with.
        target: What to explain: a class by number or name, or a `vitreous.attribution.target.Target`, in pixels as the
            model sees them; default: the predicted class, or the best finding.
        finding: Of a detector, segmenter or keypoint model: which finding to explain, by rank; default: the best.
        label: The class whose best box or largest region is explained.
        joint: Of a keypoint model: the joint that is explained.
        region: Of a segmenter: left, top, right, bottom in pixels; what the model says there is explained.
        method: Names of methods to compare, or "all"; default: a few quick ones that suit the model.
        budget: Most forward passes that a map may take; a backward pass counts as two.
        ranking: How clusters are ranked, a name of `vitreous.clusters.importance.RANKINGS`; or the settings of the
            paper's ranking, `vitreous.clusters.masking.Masking(...)`.
        stage: Stage whose clusters are shown, from 1; default: the last with clusters.
        preprocessed: `image` is no picture but what the network is fed with, a normalised float tensor (3, H, W).
        preprocess: How the model wants pictures: a `vitreous.data.transforms.Preprocess`, timm's data configuration,
            torchvision's weights or transforms, or an image processor of `transformers`. Default: what timm's
            configuration of the model says.
        classes: Names of the outputs; default as above.
    """
    trained = model if isinstance(model, TrainedModel) else model_in_memory(model, preprocess, classes)
    if trained.model.training:
        raise InputError("the model is in training mode, where dropout makes maps random; call model.eval() first")
    plan = plan_of(method, ranking, stage, budget=budget)
    query = FindingQuery(finding, label, joint, parse_region(region) if isinstance(region, str) else region)
    trained.build_task().check_query(query)
    if trained.build_task().has_findings:
        own = finding_plan(trained.model, plan)
        if preprocessed:
            inspection = inspect_input(trained, image)
        else:
            inspection = inspect_picture(trained, as_picture(image), picture_name(image))
        return explain_finding(trained, inspection, query=query, plan=own, target=target)
    if isinstance(target, str):
        target = class_number(target, trained.classes)
    if label is not None and target is None:
        target = trained.classes.index(label)
    return explain_with(trained, image, target=target, plan=plan, preprocessed=preprocessed)


def class_number(name: str, classes: Sequence[str]) -> int:
    if name not in classes:
        raise InputError(f"target={name!r} given; unknown class; nearest: {nearest(name, list(classes))}")
    return classes.index(name)


# ---- the verb: either of the two ---------------------------------------------------------------------------------

_FOLDER = 'a folder, file or name of a model, of which a report is written: vitreous.explain("runs/demo", ...)'
_MEMORY = "a model in memory, of which an object is returned: vitreous.explain(vitreous.load_model(...), ...)"


@overload
def explain(
    model: nn.Module | TrainedModel, image: list[Pictured] | tuple[Pictured, ...], **options: Any
) -> list[Explanation]: ...


@overload
def explain(model: nn.Module | TrainedModel, image: Pictured, **options: Any) -> Explanation: ...


@overload
def explain(model: str | os.PathLike[str] = DEFAULT_MODEL, images: Any = (), **options: Any) -> Path: ...


def explain(model: Any = DEFAULT_MODEL, *args: Any, **options: Any) -> Any:
    """`explain_model` of a model in memory, for one image or a list of them; of any other, `explain_run`."""
    for verb in {"score", "atlas"} & set(options):
        raise InputError(f"{verb}={options[verb]!r} given, which is a verb of its own: vitreous.{verb}(model, data)")
    in_memory = isinstance(model, nn.Module | TrainedModel)
    function, other = (explain_model, explain_run) if in_memory else (explain_run, explain_model)
    known, elsewhere = signature(function), signature(other).parameters
    options = with_known_names(options, known)
    for word in options:
        if word in elsewhere and word not in known.parameters:
            raise InputError(f"{word} given, which goes with {_FOLDER if in_memory else _MEMORY}")
    if not in_memory:
        return natural(explain_run, pictures="images")(model, *args, **options)
    given = known.bind_partial(model, *args, **options).arguments
    image = given.get("image")
    if isinstance(image, list | tuple):
        return [natural(explain_model)(**given | {"image": one}) for one in image]
    return natural(explain_model)(model, *args, **options)


update_wrapper(explain, explain_run)  # what its help and its command line say
