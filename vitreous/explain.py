"""Why a model answered as it did, and how far each map of that can be trusted.

vitreous explain runs/demo photo.jpg
vitreous explain runs/demo --data shapes --score
"""

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from torch import nn

from vitreous.data.pictures import Picture, find_pictures
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError, nearest
from vitreous.explanations.chosen import read_chosen
from vitreous.explanations.dataset import score_run, spread
from vitreous.explanations.dense import explain_dense
from vitreous.explanations.folder import REPORT, RESULT, print_summary, write_explanations
from vitreous.explanations.picture import Pictured, explain_picture, explain_with, known
from vitreous.maps.clusters import Interpolation, MaskFill, Masking, MaskSpace, Source
from vitreous.maps.explaining import Plan, chosen_methods, cluster_layer_of, without_clusters
from vitreous.maps.explanation import Explanation
from vitreous.maps.target import Target
from vitreous.training.model_folder import TrainedModel, load_classifier, load_model, require_classifier
from vitreous.training.progress import track
from vitreous.training.results import readable, report_skipped, require_positive, result_folder

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
    split: str = "val",
    out: Path = Path("explanation"),
    stage: int | None = None,
    block: int | None = None,
    source: Source = "clusters",
    head: int | None = None,
    top_k: int = 6,
    limit: int | None = None,
    label: str | None = None,
    mask_space: MaskSpace = "normalised",
    mask_fill: MaskFill = "constant",
    interpolation: Interpolation = "bilinear",
    tie_tolerance: float = 1e-3,
    batch_size: int = 64,
    size: int | None = None,
    device: str = "auto",
) -> Path:
    """Show why a classifier answered as it did on images, or measure how faithful its maps are on a data set.

    With IMAGES: maps of several methods, each with insertion and deletion measured on that image; for a PaCa model also
    whether its clusters matter at all (causal load), which do, alone and in groups, and which ranking of them is right.
    The class is the true one where it is known (--label, or the image lies in a folder named like one of the model's
    classes), otherwise the predicted one. Written to --out: report.html (one file, opens anywhere, needs no network),
    one contact sheet per image, and explanation.json with all numbers.

    With --data DATA --score: every method and its controls over the data, with bootstrap intervals, as a table, JSON,
    Markdown and a chart. The most faithful method is stored beside the model's weights as its default, which
    explanations then show first.

    A model for another task has no single decision to lose: of each image its clusters are drawn, the most
    concentrated first, beside what the model found.

    An earlier result in --out is replaced; any other content is left alone and refused.

    Examples:
        vitreous explain runs/demo photo.jpg
        vitreous explain runs/demo shapes:val:0-7 --method grad_cam occlusion --out explanation
        vitreous explain runs/mine photos/ --stage 2 --ranking attention_mass --label cat
        vitreous explain runs/mine photo.jpg --compare runs/other
        vitreous explain runs/demo --data shapes --score --limit 200 --out faithfulness

    Args:
        model: Run folder, model folder or model name (see: vitreous info).
        images: Files, folders, patterns such as 'photos/*.jpg', or samples of the embedded data: shapes:val:0-7.
        method: Methods to compare, by name, or all; default: the run's own and a few quick ones. An unknown name lists
            all that fit the model.
        ranking: How clusters are ranked: ablation (default), logit_gate, value_gate, integrated, attention_mass,
            masking (the paper's, and the only one for --source attention) or random.
        compare: Another run, shown side by side.
        data: Data set to score on: shapes, a folder with val/<class>/, or another layout (docs/data.md).
        score: Measure faithfulness over --data instead of explaining single images.
        split: Split of the data to score on.
        out: Folder to write to.
        stage: Stage to look into, counted from 1 as in the paper; default: the last one with clusters.
        block: Block of the stage, counted from 1; default: the last one that has maps of its own.
        source: Rank the cluster maps, or the attention each position pays to the clusters.
        head: Attention head, counted from 1; default: the mean of all heads.
        top_k: Number of clusters to draw.
        limit: Most images to explain (default 50) or to score (default 200); of more, a selection evenly spread over
            them is taken.
        label: True class of the images.
        mask_space: Of the ranking masking: hide with black (pixels) or with the mean colour of the training data
            (normalised).
        mask_fill: Of the ranking masking: hide with that colour (constant) or with a blurred copy (blur).
        interpolation: Of the ranking masking: how maps are enlarged to the image.
        tie_tolerance: Of the ranking masking: scores closer than this are ordered by entropy.
        batch_size: Images per forward pass; the result does not depend on it.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.

    Returns:
        The path of the report, or of the numbers where there is none.
    """
    require_positive(top_k=top_k, batch_size=batch_size, **({} if limit is None else {"limit": limit}))
    if not tie_tolerance >= 0:  # NaN is refused too
        raise InputError(f"--tie-tolerance {tie_tolerance} cannot be used; it is a difference of scores, 0 or more")
    if score:
        if data is None or images:
            given = f"images ({images[0]}, ...)" if images else "no --data"
            raise InputError(
                f"--score measures over a data set, but {given} given; use: vitreous explain RUN --data DATA --score"
            )
        trained = load_classifier(model, size=size, device=device)
        return score_run(
            model,
            trained,
            data,
            split=split,
            limit=SCORED if limit is None else limit,
            methods=method,
            batch_size=min(batch_size, 8),
            out=out,
        )
    if data is not None:
        raise InputError(f"--data {data} goes with --score; images to explain are given without an option")
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
    loaded = [(run, load_model(run, size=size, device=device)) for run in (model, compare) if run is not None]
    trained = loaded[0][1]
    with result_folder(out, RESULT) as aside:
        if trained.task != "classify":
            if label is not None:
                raise InputError(f"--label {label} given, but this model gives images no label; leave it out")
            pictures = select(find_pictures(images, size=trained.preprocess.size), shown)
            explain_dense(aside, model, trained, pictures, plan, top_k)
            return out / RESULT
        runs = [ready(run, one, plan, ranking) for run, one in loaded]
        if compare is not None:  # two runs may be of the same architecture
            runs = [(one._replace(name=run), own) for run, (one, own) in zip((model, compare), runs, strict=True)]
        if label is not None and label not in trained.classes:
            raise InputError(f"unknown class {label!r}; nearest: {nearest(label, list(trained.classes))}")
        pictures = select(find_pictures(images, size=trained.preprocess.size), shown)
        explanations: list[tuple[Explanation, ...]] = [
            tuple(explain_picture(one, picture, image, own, label) for one, own in runs)
            for picture, image in readable(track(pictures, total=len(pictures), label="explain"))
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


def ready(run: str, trained: TrainedModel, plan: Plan, ranking: str | None) -> tuple[TrainedModel, Plan]:
    """A model and what to compute with it; what it cannot do shows here, before the work."""
    require_classifier(run, trained)
    chosen = read_chosen(run)
    own = replace(plan, default=chosen.method, reason=chosen.reason, verdicts=chosen.verdicts)
    if cluster_layer_of(trained.model, own) is None and ranking is not None:
        raise InputError(f"--ranking {ranking} ranks clusters, and {without_clusters(trained.model)}")
    chosen_methods(trained.model, own)
    return trained, own


def select(pictures: Sequence[Picture], limit: int) -> list[Picture]:
    """At most `limit` pictures, evenly spread, so that a folder of classes is not represented by its first class."""
    if len(pictures) > limit:
        print(f"{limit} of {len(pictures)} images are explained; --limit {len(pictures)} explains all")
    return [pictures[index] for index in spread(len(pictures), limit)]


def explain_model(
    model: nn.Module | TrainedModel,
    image: Pictured,
    *,
    target: Target | int | None = None,
    methods: Sequence[str] = (),
    ranking: str = "ablation",
    stage: int | None = None,
    preprocess: Preprocess | None = None,
    classes: Sequence[str] | None = None,
) -> Explanation:
    """Explain one image with a model in memory.

        model = timm.create_model("paca_tiny", pretrained=True).eval()
        explanation = vitreous.explain(model, "photo.jpg")
        explanation.show()

    Args:
        model: A module, or what `vitreous.load_model("runs/demo")` gives.
        image: A file, a picture, or a normalised input (3, height, width).
        target: What to explain: a class by number, or a `vitreous.maps.target.Target`; default: the predicted class.
        methods: Names of methods to compare, or "all"; default: a few quick ones that suit the model.
        ranking: How clusters are ranked, a name of `vitreous.maps.importance.RANKINGS`.
        stage: Stage whose clusters are shown, from 1; default: the last with clusters.
        preprocess: How the model wants pictures; default: what timm's configuration of the model says.
        classes: Names of the outputs; default as above.
    """
    trained = model if isinstance(model, TrainedModel) else in_memory(model, preprocess, classes)
    if trained.model.training:
        raise InputError("the model is in training mode, where dropout makes maps random; call model.eval() first")
    plan = Plan(methods=tuple([methods] if isinstance(methods, str) else methods), ranking=ranking, stage=stage)
    return explain_with(trained, image, target=target, plan=plan)


def in_memory(model: nn.Module, preprocess: Preprocess | None, classes: Sequence[str] | None) -> TrainedModel:
    if preprocess is None or classes is None:
        found = known(model)
        preprocess, classes = preprocess or found.preprocess, found.classes if classes is None else classes
    return TrainedModel(model, type(model).__name__, "classify", tuple(classes), preprocess)
