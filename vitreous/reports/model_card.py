"""The model card: what a model is and what is known about it, as README.md in Hugging Face's form.

The head in YAML holds fixed words alone; whatever comes from files is shown as plain text below it.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from vitreous.metrics.figures import figure_text
from vitreous.reports.evaluation import Grid, markdown_rows, plain

PIPELINES = {  # task -> what the hub calls it
    "classify": "image-classification",
    "detect": "object-detection",
    "segment": "image-segmentation",
    "keypoints": "keypoint-detection",
}
MOST_CLASSES = 100  # that are named
OURS = "<!-- Written by vitreous, and again whenever more is known. Without this line it is left alone. -->"
NOT_LOOKED = "Nobody has looked for shortcuts yet."


@dataclass(frozen=True)
class SuspectNote:
    """A suspect in short."""

    name: str
    verdict: str
    headline: str


@dataclass(frozen=True)
class MethodNote:
    """How faithful the maps of a method are: insertion − deletion, its interval, and whether ignorance is beaten."""

    name: str
    mean: float
    low: float
    high: float
    beats_controls: bool


@dataclass(frozen=True)
class ModelCard:
    """What is known about a model; whatever is not known is left out."""

    architecture: str
    task: str
    classes: tuple[str, ...]
    size: tuple[int, int]
    reads_clusters: bool = False
    hides_regions: bool = False
    training: Mapping[str, str] = field(default_factory=dict)  # what it learned from and how, in words
    figures: Mapping[str, float] = field(default_factory=dict)
    measured_on: str = ""
    groups: Sequence[tuple[str, int, float]] = ()  # name, images and accuracy of groups of images ...
    grouped_on: str = ""  # ... of these data
    faithfulness: Sequence[MethodNote] = ()  # the best first
    explained: str = ""  # which map is the most faithful, and how that is known
    searched: str = ""  # in which data shortcuts were looked for
    suspects: Sequence[SuspectNote] = ()  # those that deserve a look
    taught: Sequence[str] = ()  # what training did about shortcuts
    earlier: Sequence[str] = ()  # what was known before it was mended without training
    mended: Sequence[str] = ()  # what was mended without training
    before: Mapping[str, float] = field(default_factory=dict)  # figures of the model that was mended
    mended_on: str = ""
    after: Mapping[str, float] = field(default_factory=dict)
    address: str = ""  # of its repository on the hub: owner/name
    licence: str = ""  # as the hub names it
    picture: str = ""  # a file beside the card: an explanation


def shortcut_notes(card: ModelCard) -> list[str]:
    """What is known of a model's shortcuts, a sentence each; nothing if nobody looked and nothing was mended."""
    notes = []
    if card.searched:
        serious = sum(one.verdict == "serious" for one in card.suspects)
        none = "no serious suspect" if card.suspects else "no suspect"
        said = none if not serious else "one serious suspect" if serious == 1 else f"{serious} serious suspects"
        notes.append(f"Shortcuts were looked for in {card.searched}: {said}.")
        notes += [f"{one.name[:1].upper()}{one.name[1:]} ({one.verdict}): {one.headline}" for one in card.suspects]
    notes += card.taught
    notes += [f"Before it was mended: {each}" for each in card.earlier]
    notes += [f"Mended: {each}." for each in card.mended]
    compared = [name for name in ("top1", "worst_group") if name in card.before and name in card.after]
    if compared:
        words = {"top1": "right", "worst_group": "right in the worst group"}
        told = [
            f"{words[name]} {figure_text(name, card.before[name])} before, {figure_text(name, card.after[name])} after"
            for name in compared
        ]
        notes.append(f"On {card.mended_on}: {'; '.join(told)}.")
    return notes


def card_markdown(card: ModelCard) -> str:
    parts = [_head(card), f"# {plain(card.address or card.architecture)}", _introduction(card)]
    parts += [f"![What decided, explained by vitreous]({card.picture})"] if card.picture else []
    if card.training:
        parts += ["## Training", "\n".join(f"- {plain(name)}: {plain(value)}" for name, value in card.training.items())]
    if card.figures:
        rows = [(name, figure_text(name, value)) for name, value in card.figures.items()]
        parts += ["## Figures", f"On {plain(card.measured_on)}:", _table(("measure", "value"), rows)]
    if card.groups:
        grouped = [(name, f"{images:,}", f"{share:.2%}") for name, images, share in card.groups]
        parts += [f"In groups of images of {plain(card.grouped_on)}:", _table(("group", "images", "right"), grouped)]
    parts += ["## How it can be explained", _explanations(card)]
    if card.faithfulness:
        parts += [_faithfulness_table(card.faithfulness)]
    notes = shortcut_notes(card)
    parts += ["## Shortcuts", "\n".join(f"- {plain(note)}" for note in notes) if notes else NOT_LOOKED]
    parts += ["## Use", _use(card)]
    if card.address:
        parts += ["## Licence", plain(card.licence) if card.licence else "None was given: ask before you use it."]
    return "\n\n".join(parts) + "\n"


def _head(card: ModelCard) -> str:
    pipeline = PIPELINES.get(card.task)
    lines = ["library_name: timm" if card.task == "classify" else "library_name: vitreous"]
    lines += [f"pipeline_tag: {pipeline}"] if pipeline else []
    lines += [f"license: {card.licence}"] if card.licence else []
    tags = [*([pipeline] if pipeline else []), "timm", "vitreous", "interpretability"]
    return "\n".join(["---", *lines, "tags:", *(f"- {tag}" for tag in tags), "---", OURS])


def _introduction(card: ModelCard) -> str:
    height, width = card.size
    if not card.classes:
        return f"A backbone for images of {height} x {width} pixels, without a classifier: it learned without labels."
    doing = {"classify": "A classifier", "detect": "A detector", "segment": "A segmenter"}.get(card.task, "A model")
    named = ", ".join(plain(name) for name in card.classes[:MOST_CLASSES])
    more = len(card.classes) - MOST_CLASSES
    rest = f" and {more} more" if more > 0 else ""
    count = f"{len(card.classes)} {'class' if len(card.classes) == 1 else 'classes'}"
    return f"{doing} for images of {height} x {width} pixels and {count}: {named}{rest}."


def _explanations(card: ModelCard) -> str:
    said = []
    if card.reads_clusters:
        said.append(
            "The classifier reads clusters and nothing else: every logit is exactly the sum of a bias and one "
            "contribution of each cluster, with a map each."
        )
    said.append(plain(card.explained) if card.explained else "How faithful maps are to it was not measured.")
    if not card.classes:
        return " ".join(said)
    model = _source(card)
    return " ".join(
        [*said, f"`vitreous explain {model} photo.jpg` writes a report, and `vitreous serve {model}` a page."]
    )


def _source(card: ModelCard) -> str:
    """What verbs are given for this model."""
    return f"hf:{card.address}" if card.address else "FOLDER"


def _faithfulness_table(methods: Sequence[MethodNote]) -> str:
    rows = [
        (one.name, f"{one.mean:.2f}", f"{one.low:.2f} to {one.high:.2f}", "yes" if one.beats_controls else "no")
        for one in methods
    ]
    return _table(("map", "insertion − deletion", "95 % interval", "beats its controls"), rows)


def _use(card: ModelCard) -> str:
    model = _source(card)
    lines = ["import vitreous", "", f'model = vitreous.load_model("{model}")', 'print(model.predict("photo.jpg"))']
    if not card.classes:
        lines = ["import vitreous", "", f'features = vitreous.embed("{model}", "photos", out="features")']
    said = ["```python", *lines, "```"]
    if not card.classes:
        said += ["", "`vitreous train NAME DATA --weights FOLDER` starts any task from its folder."]
    if card.task == "classify":
        name = f"hf-hub:{card.address}" if card.address else "local-dir:FOLDER"
        said += ["", f'`timm.create_model("{name}", pretrained=True)` reads it too, after `import vitreous`.']
    if card.hides_regions:
        said += ["It does not hide the regions that this model must not see: they belong to the preprocessing."]
    return "\n".join(said)


def _table(headings: tuple[str, ...], rows: Sequence[tuple[str, ...]]) -> str:
    return "\n".join(markdown_rows(Grid("", headings, rows)))
