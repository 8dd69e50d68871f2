"""Why a model answered as it did, and how far each map of that can be trusted.

vitreous explain runs/demo photo.jpg
vitreous explain runs/demo --data shapes --score
vitreous explain runs/demo --data shapes --atlas
"""

from collections.abc import Sequence
from pathlib import Path

from PIL import Image
from torch import nn

from vitreous.attribution.target import Target
from vitreous.clusters.atlas import MEASURE
from vitreous.clusters.masking import Interpolation, MaskFill, Masking, MaskSpace, Source
from vitreous.data.image_set import ImageSet
from vitreous.data.pictures import Picture, Pictured, as_picture, find_pictures
from vitreous.data.source import describe, open_data
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError, nearest
from vitreous.evaluate import label_reading
from vitreous.explanations.atlas import write_atlas
from vitreous.explanations.dataset import score_run, selection
from vitreous.explanations.default_method import read_chosen
from vitreous.explanations.dense import dense_plan, explain_dense, look, look_at_input
from vitreous.explanations.explaining import Plan, chosen_methods, cluster_layer_of, without_clusters
from vitreous.explanations.explanation import Explanation
from vitreous.explanations.findings import Wanted, read_region
from vitreous.explanations.folder import REPORT, RESULT, print_summary, write_explanations
from vitreous.explanations.picture import explain_picture, explain_with, known, name_of
from vitreous.runs.model_folder import TrainedModel, is_weights_file, load_model
from vitreous.runs.results import load_readable, report_skipped, require_positive, result_folder
from vitreous.runtime.progress import track
from vitreous.tasks.base import load_task

SHOWN, SCORED = 50, 200  # images at most, unless --limit says otherwise


def explain(
    model: str,
    images: tuple[str, ...] = (),
    *,
    method: tuple[str, ...] = (),
    ranking: str | None = None,
    compare: str | None = None,
    data: str | None = None,
    score: bool = False,
    atlas: bool = False,
    like: str | None = None,
    cluster: int | None = None,
    split: str = "val",
    follow: bool = False,
    out: Path = Path("explanation"),
    stage: int | None = None,
    block: int | None = None,
    source: Source = "clusters",
    head: int | None = None,
    top_k: int = 6,
    limit: int | None = None,
    label: str | None = None,
    finding: int | None = None,
    joint: str | None = None,
    region: str | None = None,
    mask_space: MaskSpace = "normalised",
    mask_fill: MaskFill = "constant",
    interpolation: Interpolation = "bilinear",
    tie_tolerance: float = 1e-3,
    batch_size: int = 64,
    size: int | None = None,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
) -> Path:
    """Show why a model answered as it did on images, or measure how faithful its maps are on a data set.

    With IMAGES: maps of several methods, each with insertion and deletion measured on that image; for a PaCa model also
    whether its clusters matter at all (causal load), which do, alone and in groups, and which ranking of them is right.
    The class is the true one where it is known (--label, or the image lies in a folder named like one of the model's
    classes), otherwise the predicted one. Written to --out: report.html (one file, opens anywhere, needs no network),
    one contact sheet per image, and explanation.json with all numbers.

    With --data DATA --score: every method and its controls over the data, with bootstrap intervals, as a table, JSON,
    Markdown and a chart. The most faithful method is stored beside the model's weights as its default, which
    explanations then show first.

    With --data DATA --atlas: what every cluster of a PaCa model does over the data: the regions it fires at most, its
    importance for every class, its purity, its nearest clusters, its part in wrong answers and on the background; as a
    folder with index.html, pictures and atlas.json. Memory does not grow with the data.

    Of a detector, a segmenter or a keypoint model one finding is explained in the same way: the best box, the largest
    region of the class that covers most, the most certain joint; or another (--finding, --label, --region, --joint).
    --score and --atlas take the best finding of every image, and leave out images in which nothing is found.

    An earlier result in --out is replaced; any other content is left alone and refused.

    Examples:
        vitreous explain runs/demo photo.jpg
        vitreous explain runs/demo shapes:val:0-7 --method grad_cam occlusion --out explanation
        vitreous explain runs/mine photos/ --stage 2 --ranking attention_mass --label cat
        vitreous explain runs/mine photo.jpg --compare runs/other
        vitreous explain runs/cells slide.png --finding 2
        vitreous explain runs/streets photo.jpg --label road --region 10,200,400,300
        vitreous explain runs/demo --data shapes --score --limit 200 --out faithfulness
        vitreous explain runs/demo --data shapes --atlas --like photo.jpg --cluster 3 --out atlas

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous info).
        images: Files, folders, patterns such as 'photos/*.jpg', or samples of the embedded data: shapes:val:0-7. In
            Python also pictures in memory.
        method: Methods to compare, by name, or all; default: the run's own and a few quick ones, with --score all. An
            unknown name lists all that fit the model.
        ranking: How clusters are ranked: ablation (default), logit_gate, value_gate, integrated, attention_mass,
            masking (the paper's, and the only one for --source attention) or random. With --atlas: integrated
            (default), ablation, value_gate or logit_gate (the quickest).
        compare: Another run, shown side by side.
        data: Data set for --score or --atlas: shapes, a folder with val/<class>/, or another layout (docs/data.md).
        score: Measure faithfulness over --data instead of explaining single images.
        atlas: Show what every cluster does over --data instead.
        like: With --atlas: an image; found are those of the data in which a cluster fires as in this one.
        cluster: Of --like: the cluster, counted from 0; default: the one most important in the image.
        split: Split of the data to use.
        follow: Open pictures that the files of --data name outside of its folder (.. or an absolute path).
        out: Folder to write to.
        stage: Stage to look into, counted from 1 as in the paper; default: the last one with clusters.
        block: Block of the stage, counted from 1; default: the last one that has maps of its own.
        source: Rank the cluster maps, or the attention each position pays to the clusters.
        head: Attention head, counted from 1; default: the mean of all heads.
        top_k: Number of clusters to draw.
        limit: Most images to explain (default 50), to score (default 200) or to look at for the atlas (default all);
            of more, a selection evenly spread over them is taken.
        label: True class of the images. Detection and segmentation: the class whose best box or largest region is
            explained.
        finding: Detection, segmentation and keypoints: which finding is explained, by rank; default: the best.
        joint: Keypoints: the joint that is explained, by name; default: the most certain.
        region: Segmentation: left,top,right,bottom in pixels of the image; what the model says there is explained.
        mask_space: Of the ranking masking: hide with black (pixels) or with the mean colour of the training data
            (normalised).
        mask_fill: Of the ranking masking: hide with that colour (constant) or with a blurred copy (blur).
        interpolation: Of the ranking masking: how maps are enlarged to the image.
        tie_tolerance: Of the ranking masking: scores closer than this are ordered by entropy.
        batch_size: Images per forward pass; the result does not depend on it.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where it does not tell it itself.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.

    Returns:
        The path of the report, or of the numbers where there is none.
    """
    require_positive(top_k=top_k, batch_size=batch_size, **({} if limit is None else {"limit": limit}))
    if not tie_tolerance >= 0:  # NaN is refused too
        raise InputError(f"--tie-tolerance {tie_tolerance} cannot be used; it is a difference of scores, 0 or more")
    if not atlas and (like is not None or cluster is not None):
        given = f"--like {like}" if like is not None else f"--cluster {cluster}"
        raise InputError(f"{given} goes with --atlas; use: vitreous explain RUN --data DATA --atlas --like IMAGE")
    if cluster is not None and like is None:
        raise InputError(f"--cluster {cluster} goes with --like IMAGE, in which it is looked at")
    if score and atlas:
        raise InputError("--score and --atlas were given; each is a run of its own, with an --out of its own")
    if score or atlas:
        option = "--score measures" if score else "--atlas looks at clusters"
        if data is None or images:
            given = f"images ({images[0]}, ...)" if images else "no --data"
            raise InputError(
                f"{option} over a data set, but {given} given; use: vitreous explain RUN --data DATA "
                f"{'--score' if score else '--atlas'}"
            )
        single = {"compare": compare, "label": label, "finding": finding, "joint": joint, "region": region}
        if score:
            refuse("--score", **single, ranking=ranking, stage=stage, block=block, head=head)
        else:
            refuse("--atlas", **single, method=" ".join(method) or None)
        trained = load_model(model, architecture=architecture, model_args=model_args, size=size, device=device)
        if atlas:
            if source != "clusters" or head is not None:
                raise InputError("--atlas looks at the maps of clusters; leave out --source and --head")
            return write_atlas(
                model,
                trained,
                data,
                opened(trained, data, split, follow),
                split=split,
                limit=limit,
                measure=ranking or MEASURE,
                plan=Plan(stage=stage, block=block),
                like=like,
                cluster=cluster,
                batch_size=batch_size,
                out=out,
            )
        return score_run(
            model,
            trained,
            data,
            opened(trained, data, split, follow),
            split=split,
            limit=SCORED if limit is None else limit,
            methods=method,
            batch_size=min(batch_size, 8),
            out=out,
        )
    if follow:
        raise InputError("--follow goes with --data, whose files may name pictures elsewhere; leave it out")
    if data is not None:
        raise InputError(f"--data {data} goes with --score or --atlas; images to explain are given without an option")
    plan = Plan(
        methods=method,
        ranking=ranking or ("masking" if source == "attention" else "ablation"),
        stage=stage,
        block=block,
        source=source,
        head=head,
        masking=Masking(mask_space, interpolation, tie_tolerance, batch_size, fill=mask_fill),
    )
    shown = SHOWN if limit is None else limit
    both = [run for run in (model, compare) if run is not None]
    loaded = [(run, load_one(run, both, architecture, model_args, size, device)) for run in both]
    trained, wanted = loaded[0][1], Wanted(finding, label, joint, None if region is None else read_region(region))
    with result_folder(out, RESULT) as aside:
        runs = [ready(run, one, plan, ranking, wanted) for run, one in loaded]
        if compare is not None:  # two runs may be of the same architecture
            runs = [(one._replace(name=run), own) for run, (one, own) in zip((model, compare), runs, strict=True)]
            if runs[1][0].task != trained.task:
                raise InputError(f"{model} is for the task '{trained.task}', {compare} for '{runs[1][0].task}'")
        pictures = select(find_pictures(images, size=trained.preprocess.size), shown)
        explanations: list[tuple[Explanation, ...]] = [
            tuple(explain_one(one, picture, image, own, wanted) for one, own in runs)
            for picture, image in load_readable(track(pictures, total=len(pictures), label="explain"))
        ]
        report_skipped(len(pictures) - len(explanations), len(pictures))
        first, *beside = zip(*explanations, strict=True)
        write_explanations(
            aside,
            first,
            about={"model": model, **({} if compare is None else {"compare": compare}), "ranking": plan.ranking},
            plan=plan,
            top_k=top_k,
            beside=beside[0] if beside else (),
        )
    print_summary(first, out / REPORT)
    return out / REPORT


def load_one(
    run: str, both: Sequence[str], architecture: str | None, model_args: tuple[str, ...], size: int | None, device: str
) -> TrainedModel:
    """Of two runs, what is said about files is meant for those that are files; where none is, it is refused."""
    if not is_weights_file(run) and any(is_weights_file(other) for other in both):
        return load_model(run, size=size, device=device)
    return load_model(run, architecture=architecture, model_args=model_args, size=size, device=device)


def refuse(option: str, **given: object) -> None:
    """What would be passed over in silence."""
    for name, value in given.items():
        if value is not None:
            raise InputError(f"--{name} {value} does not go with {option}; leave it out")


def opened(trained: TrainedModel, data: str, split: str, follow: bool) -> ImageSet:
    """The data for the model's task, with label pictures read as in training."""
    reading, task = label_reading(trained, data, (), False), load_task(trained.task)
    images = open_data(
        data,
        split,
        size=trained.preprocess.size,
        targets=task.targets,
        val_fraction=trained.val_fraction,
        follow=follow,
        wording=task.wording(),
        **reading,
    )
    print(describe(data, task.targets, **{split: images}))
    return images


def ready(
    run: str, trained: TrainedModel, plan: Plan, ranking: str | None, wanted: Wanted
) -> tuple[TrainedModel, Plan]:
    """A model and what to compute with it; what it cannot do shows here, before the work."""
    wanted.check(trained.task, trained.build_task())
    own = read_chosen(run).applied(plan)
    if cluster_layer_of(trained.model, own) is None and ranking is not None:
        raise InputError(f"--ranking {ranking} ranks clusters, and {without_clusters(trained.model)}")
    if trained.task != "classify":
        return trained, dense_plan(trained.model, own)
    chosen_methods(trained.model, own)
    return trained, own


def explain_one(trained: TrainedModel, picture: Picture, image: Image.Image, plan: Plan, wanted: Wanted) -> Explanation:
    if trained.task == "classify":
        return explain_picture(trained, picture, image, plan, wanted.label)
    return explain_dense(trained, look(trained, image, picture.name), wanted=wanted, plan=plan)


def select(pictures: Sequence[Picture], limit: int) -> list[Picture]:
    """At most `limit` pictures, evenly spread, so that a folder of classes is not represented by its first class."""
    if len(pictures) > limit:
        print(f"{limit} of {len(pictures)} images are explained; --limit {len(pictures)} explains all")
    return [pictures[index] for index in selection(len(pictures), limit)]


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
    ranking: str = "ablation",
    stage: int | None = None,
    preprocessed: bool = False,
    preprocess: Preprocess | None = None,
    classes: tuple[str, ...] | None = None,
) -> Explanation:
    """Explain one image with a model in memory.

        model = timm.create_model("paca_tiny", pretrained=True).eval()
        explanation = vitreous.explain(model, "photo.jpg")
        explanation.show()

    Args:
        model: A module, or what `vitreous.load_model("runs/demo")` gives.
        image: A path, a PIL image, bytes as an array (H, W, 3) or a tensor (3, H, W), or the same as floats from 0 to
            1: a picture, which is brought to the size and the colours that the model was trained with.
        target: What to explain: a class by number or name, or a `vitreous.attribution.target.Target`, in pixels as the
            model sees them; default: the predicted class, or the best finding.
        finding: Of a detector, segmenter or keypoint model: which finding to explain, by rank; default: the best.
        label: The class whose best box or largest region is explained.
        joint: Of a keypoint model: the joint that is explained.
        region: Of a segmenter: left, top, right, bottom in pixels; what the model says there is explained.
        method: Names of methods to compare, or "all"; default: a few quick ones that suit the model.
        ranking: How clusters are ranked, a name of `vitreous.clusters.importance.RANKINGS`.
        stage: Stage whose clusters are shown, from 1; default: the last with clusters.
        preprocessed: `image` is no picture but what the network is fed with, a normalised float tensor (3, H, W).
        preprocess: How the model wants pictures; default: what timm's configuration of the model says.
        classes: Names of the outputs; default as above.
    """
    trained = model if isinstance(model, TrainedModel) else in_memory(model, preprocess, classes)
    if trained.model.training:
        raise InputError("the model is in training mode, where dropout makes maps random; call model.eval() first")
    plan = Plan(methods=method, ranking=ranking, stage=stage)
    wanted = Wanted(finding, label, joint, read_region(region) if isinstance(region, str) else region)
    wanted.check(trained.task, trained.build_task())
    if trained.task != "classify":
        own = dense_plan(trained.model, plan)
        looked = look_at_input(trained, image) if preprocessed else look(trained, as_picture(image), name_of(image))
        return explain_dense(trained, looked, wanted=wanted, plan=own, target=target)
    if isinstance(target, str):
        target = class_number(target, trained.classes)
    if label is not None and target is None:
        target = trained.classes.index(label)
    return explain_with(trained, image, target=target, plan=plan, preprocessed=preprocessed)


def class_number(name: str, classes: Sequence[str]) -> int:
    if name not in classes:
        raise InputError(f"target={name!r} given; unknown class; nearest: {nearest(name, list(classes))}")
    return classes.index(name)


def in_memory(model: nn.Module, preprocess: Preprocess | None, classes: tuple[str, ...] | None) -> TrainedModel:
    if preprocess is None or classes is None:
        found = known(model)
        preprocess, classes = preprocess or found.preprocess, found.classes if classes is None else classes
    return TrainedModel(model, type(model).__name__, "classify", tuple(classes), preprocess)
