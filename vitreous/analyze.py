"""What networks do: the investigations of the papers, for any run or model.

vitreous analyze fourier runs/demo shapes
"""

from dataclasses import KW_ONLY, dataclass, fields, replace
from pathlib import Path
from typing import Annotated, Any

from rich.console import Console
from typing_extensions import Doc

from vitreous.errors import InputError, nearest, printable
from vitreous.files.storage import write_json
from vitreous.investigations.base import (
    Inquiry,
    Investigated,
    Investigation,
    all_investigated,
    load_investigations,
    require_defined,
)
from vitreous.registry import resolve_name
from vitreous.reports.investigation import Findings, findings_table, write_charts_and_text
from vitreous.runs.model_folder import find_model_folder, is_weights_file
from vitreous.runs.results import require_positive, result_folder
from vitreous.runtime.calling import takes
from vitreous.train import train

ANALYSIS_JSON, ANALYSIS_TEXT = "analysis.json", "analysis.md"


@dataclass(frozen=True)
class AnalyzeSettings:
    kind: Annotated[str, Doc("What is asked; see above.")]
    model: Annotated[
        str,
        Doc("Run folder, model folder, file of weights (.pth, .safetensors), or model name for its published ones."),
    ]
    data: Annotated[
        str, Doc("shapes, a folder with val/<class>/, or another layout (docs/data.md); scaling needs none.")
    ] = "shapes"
    _: KW_ONLY
    beside: Annotated[tuple[str, ...], Doc("Further models, shown in the same charts.")] = ()
    split: Annotated[str, Doc("Split of the data to use.")] = "val"
    limit: Annotated[
        int | None,
        Doc("Most pictures, spread over the data; default: 32, and all for ablate. Attention looks at the first."),
    ] = None
    size: Annotated[
        int | None, Doc("Height and width the images are brought to; default: what each model was trained with.")
    ] = None
    sizes: Annotated[tuple[int, ...], Doc("Of resolution and scaling: heights and widths to measure at.")] = ()
    block: Annotated[str | None, Doc("Of attention: layers with this in their name only.")] = None
    head: Annotated[int | None, Doc("Of attention: this head only, from 1.")] = None
    query: Annotated[
        tuple[float, float], Doc("Of attention: the place from which is looked, across and down, from 0 to 1.")
    ] = (0.5, 0.5)
    corruptions: Annotated[tuple[str, ...], Doc("Of robustness: some kinds only. A wrong name lists the nearest.")] = ()
    also: Annotated[
        tuple[str, ...], Doc("Of robustness: other data of the same classes, as ImageNet-V2 or -A in class folders.")
    ] = ()
    rounds: Annotated[int, Doc("Of scaling: how often each model is timed.")] = 5
    epochs: Annotated[int, Doc("Of ablate: how long each row is trained, by the recipe quick.")] = 2
    seeds: Annotated[tuple[int, ...], Doc("Of ablate: each row is trained once with each.")] = (0,)
    switches: Annotated[tuple[str, ...], Doc("Of ablate: some rows only, beside the whole model.")] = ()
    runs: Annotated[Path, Doc("Of ablate: folder of the runs; those that are there are not trained again.")] = Path(
        "runs/ablate"
    )
    batch_size: Annotated[int, Doc("Images per forward pass.")] = 8
    seed: Annotated[int, Doc("Of what is drawn at random; the same seed gives the same figures.")] = 0
    device: Annotated[str, Doc("cpu, cuda, cuda:1, or mps.")] = "cpu"
    out: Annotated[
        Path | None, Doc("Folder to write to; an earlier result there is replaced. Default: analysis/KIND.")
    ] = None

    def __post_init__(self) -> None:
        require_positive(limit=self.limit, batch_size=self.batch_size, rounds=self.rounds, epochs=self.epochs)
        find_investigation(self.kind)
        if not self.seeds:
            raise InputError("--seeds given without a value; give one or more")
        if not all(0 <= place < 1 for place in self.query):
            across, down = self.query
            raise InputError(f"--query {across:g} {down:g} is outside of the picture; give two numbers from 0 to 0.99")

    def inquiry(self) -> Inquiry:
        shared = {
            field.name: getattr(self, field.name)
            for field in fields(Inquiry)
            if field.name not in ("subjects", "train", "answers")
        }
        kind = find_investigation(self.kind)
        shared["limit"] = kind.usual_limit if self.limit is None else self.limit
        given = self.model, *self.beside
        subjects = all_investigated(given, self.size, self.device, any_task=kind.any_task, answers=kind.answers)
        return Inquiry(subjects, **shared, train=train, answers=kind.answers)


@takes(AnalyzeSettings)
def analyze(settings: AnalyzeSettings) -> Path:
    """Investigate what a network does, as the papers of the five families did.

    fourier: which frequencies the maps of each block hold.
    interaction: how much of a picture has to be seen before two patches matter together.
    attention: where a head of a block looks from a place of the picture.
    similarity: how alike the attention of different queries and of different heads is.
    clusters: how many clusters of a PaCa are used, how spread out and alike they are, and how they drift.
    importance: what a model of any task loses over the data without each of its clusters: accuracy, AP or mIoU.
    resolution: how right a classifier is on images of other sizes.
    scaling: how time, memory and multiply-adds grow with the image.
    robustness: how right a classifier is on corrupted pictures, and on other data of the same classes.
    ablate: what each part of a family is worth: its model is trained whole and without it, and compared.

    Written to --out: analysis.json with all figures, analysis.md with a table and a paragraph on how to read it, and
    charts, as PNG and as SVG. A question that has no meaning for a model is answered by the reason.

    Examples:
        vitreous analyze fourier runs/demo shapes
        vitreous analyze interaction runs/demo shapes --beside runs/other --limit 50
        vitreous analyze attention runs/demo photos --query 0.4 0.6 --block stages.2
        vitreous analyze importance runs/detector shapes --limit 200
        vitreous analyze resolution runs/photos photos --sizes 128 224 320
        vitreous analyze robustness runs/photos photos --corruptions jpeg gaussian_noise
        vitreous analyze scaling paca_tiny --beside pvt_v2_b1 --sizes 224 448 896
        vitreous analyze ablate xcit_nano_12_p8 shapes --size 64 --epochs 4 --seeds 0 1 2

    Returns:
        The path of the table.
    """
    asked, inquiry = find_investigation(settings.kind), settings.inquiry()
    suited, unsuited = opened(inquiry) if asked.needs_weights else (inquiry, {})
    folder = settings.out or Path("analysis") / settings.kind
    with result_folder(folder, ANALYSIS_JSON) as staging:
        findings = asked.run(suited)
        findings = replace(findings, undefined={**unsuited, **findings.undefined})
        require_defined(asked.name, findings)
        write_findings(staging, asked, inquiry, findings)
    Console().print(findings_table(asked.name, findings))
    for name, reason in findings.undefined.items():
        print(printable(f"not defined for {name}: {reason}"))
    print(printable(f"written: {folder / ANALYSIS_TEXT} (how to read it), and charts beside it"))
    return folder / ANALYSIS_TEXT


def opened(inquiry: Inquiry) -> tuple[Inquiry, dict[str, str]]:
    """About the models that fit the kind and the data, and why others do not; refused before the work if none does."""
    found: list[Investigated] = []
    unsuited: dict[str, InputError] = {}
    for subject in inquiry.subjects:
        require_there(subject.given)
        try:
            inquiry.images(subject.trained)
            found.append(subject)
        except InputError as reason:
            unsuited[subject.label] = reason
    if not found:
        raise next(iter(unsuited.values()))
    return replace(inquiry, subjects=tuple(found)), {label: str(reason) for label, reason in unsuited.items()}


def require_there(given: str) -> None:
    """A mistyped name or path is no model that does not fit."""
    if not is_weights_file(given) and find_model_folder(given) is None:
        resolve_name(given)


def find_investigation(kind: str) -> Investigation:
    known = load_investigations()
    if kind not in known:
        raise InputError(f"unknown kind '{kind}'; nearest: {nearest(kind, list(known), 1)}; known: {', '.join(known)}")
    return known[kind]


def write_findings(staging: Path, asked: Investigation, inquiry: Inquiry, findings: Findings) -> None:
    files = write_charts_and_text(staging, ANALYSIS_TEXT, asked.name, asked.asks, asked.reading, findings)
    about: dict[str, Any] = {
        "kind": asked.name,
        "models": [subject.given for subject in inquiry.subjects],
        "data": inquiry.data if asked.needs_data else None,
        "split": inquiry.split,
        "limit": inquiry.limit,
        "seed": inquiry.seed,
        "rows": [dict(row) for row in findings.rows],
        "undefined": dict(findings.undefined),
        "reading": asked.reading,
    }
    write_json(staging / ANALYSIS_JSON, about | {"files": files})
