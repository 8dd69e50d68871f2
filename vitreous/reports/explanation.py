"""One image explained: the decision, what carried it, and how far each map can be trusted.

    explanation = vitreous.explain(model, "photo.jpg")
    explanation.maps["grad_cam"]                    # (H, W), on the method's own grid
    explanation.clusters.importance["ablation"]     # (M,)
    explanation.scores["grad_cam"]                  # {"insertion_blur": ..., "insertion_minus_deletion": ...}
    explanation.save("photo.html")                  # or .png, .json

Shapes: M clusters, G groups, H W grid.
"""

import json
import webbrowser
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from tempfile import mkdtemp
from typing import Any, NamedTuple

from markupsafe import Markup
from PIL import Image
from torch import Tensor

from vitreous.clusters.importance import RANKINGS
from vitreous.clusters.layer import Layer
from vitreous.drawing.display import shown_in_notebook
from vitreous.errors import InputError
from vitreous.faithfulness.scoring import DECIDES
from vitreous.files.writing import write_output

NOTEBOOK_HEIGHT = 900  # pixels of the frame in which a notebook shows the page


class MethodMap(NamedTuple):
    """The map of one method and its measures on this image."""

    name: str
    summary: str
    heat: Tensor  # (H, W)
    scores: dict[str, float]
    insertion: tuple[float, ...]  # probability as ever more of the image is shown, blurred elsewhere
    deletion: tuple[float, ...]  # ... and as ever more of it is blurred
    control: bool = False
    beats_controls: bool | None = None  # over a data set; None: never measured

    @property
    def difference(self) -> float:
        return self.scores[DECIDES]


class StageLoad(NamedTuple):
    """Log-odds lost when the clusters of a stage are made useless, each in its own way."""

    stage: int
    drop: dict[str, float]
    flips: dict[str, bool]
    carries: bool
    layer: str = ""  # in words, where it is no stage


class LogitParts(NamedTuple):
    """A logit as the sum of a bias and what each cluster contributes, where the classifier reads clusters only."""

    logit: float
    bias: float
    others: float  # contributed by clusters of other stages, where several are read
    values: tuple[float, ...]  # of each cluster
    maps: Tensor  # (M, H, W): where they come from; each adds up to its contribution

    @property
    def order(self) -> list[int]:
        """Clusters by falling contribution."""
        return sorted(range(len(self.values)), key=lambda m: -self.values[m])

    def to_dict(self) -> dict[str, Any]:
        clusters = [{"number": m, "contribution": self.values[m]} for m in self.order]
        return {"logit": self.logit, "bias": self.bias, "other_stages": self.others, "clusters": clusters}


@dataclass(frozen=True)
class Clusters:
    """The clusters of one layer on one image, ranked."""

    layer: Layer
    head: int | None  # of attention maps; None: the mean of all
    maps: Tensor  # (M, H, W), each sums to one
    entropy: Tensor  # (M,) nats; small = concentrated
    ranking: str  # which of `importance` decides the order
    importance: dict[str, Tensor]  # by name of the ranking, each (M,)
    order: tuple[int, ...]  # all of them, most important first
    attention: Tensor | None = None  # (M, H, W): how much every position looks at each cluster
    groups: tuple[tuple[int, ...], ...] = ()  # clusters that look alike, the group that matters most first
    group_drop: tuple[float, ...] = ()  # log-odds lost when all of a group are removed
    counts: tuple[int, ...] = ()  # how many of the most important clusters were removed together ...
    left: dict[str, tuple[float, ...]] = field(default_factory=dict)  # ... and the log-odds left, by ranking
    before: float = 0.0  # log-odds with all clusters
    hole: str = "grey"  # what hidden places look like, where the ranking hides them

    @property
    def unit(self) -> str:
        """What the numbers of the ranking are, in words."""
        return RANKINGS[self.ranking].unit

    def to_dict(self) -> dict[str, Any]:
        """All numbers, without the maps."""
        scores = {name: values.tolist() for name, values in self.importance.items()}
        spread = self.entropy.tolist()
        return {
            "ranking": self.ranking,
            "clusters": [
                {
                    "rank": rank,
                    "number": m,
                    "importance": scores[self.ranking][m],
                    "entropy": spread[m],
                    "rankings": {name: values[m] for name, values in scores.items()},
                }
                for rank, m in enumerate(self.order, 1)
            ],
            "groups": [
                {"clusters": list(group), "log_odds_lost": lost}
                for group, lost in zip(self.groups, self.group_drop, strict=True)
            ],
            "removal": {"log_odds": self.before, "removed": list(self.counts), "left": self.left},
        }

    def removal_area(self, ranking: str) -> float:
        """Mean log-odds lost over the removals: the higher, the more the ranking is right."""
        return self.before - sum(self.left[ranking]) / len(self.left[ranking])


class DenseAnswer(NamedTuple):
    """What a detector, a segmenter or a keypoint model says about a picture, and which finding of it is explained."""

    drawing: Image.Image  # all of it, drawn into the whole picture
    marked: Image.Image  # as the model saw it, with the finding outlined
    findings: tuple[dict[str, Any], ...]  # the first of them, best first, in pixels of the whole picture
    total: int  # how many there are
    finding: dict[str, Any] | None  # the one that is explained
    nothing: str = ""  # why there is none, in words


@dataclass(frozen=True)
class Explanation:
    """Everything the report shows, as numbers and tensors."""

    name: str
    picture: Image.Image  # as the model saw it
    probabilities: tuple[tuple[str, float], ...]  # most probable classes first; none if the target is no class
    watched: str  # what is explained
    true: str | None = None
    parts: LogitParts | None = None  # of the explained class, where the classifier reads clusters
    clusters: Clusters | None = None
    load: tuple[StageLoad, ...] = ()
    methods: tuple[MethodMap, ...] = ()
    default: str | None = None  # the method to look at first
    reason: str = ""  # why that one
    answer: DenseAnswer | None = None  # of models that do more than to classify
    facts: dict[str, str] = field(default_factory=dict)  # model, layer, ...: what a reader must know to repeat it

    @property
    def shown(self) -> Image.Image:
        """The picture that maps are laid over."""
        return self.picture if self.answer is None else self.answer.marked

    @property
    def predicted(self) -> str:
        return self.probabilities[0][0] if self.probabilities else self.watched

    @property
    def maps(self) -> dict[str, Tensor]:
        """The map of every method, (H, W) on its own grid."""
        return {method.name: method.heat for method in self.methods}

    @property
    def importance(self) -> dict[str, Tensor]:
        """Of the clusters, by ranking; empty for a model without them."""
        return {} if self.clusters is None else self.clusters.importance

    @property
    def scores(self) -> dict[str, dict[str, float]]:
        """Faithfulness on this image, by method and measure."""
        return {method.name: method.scores for method in self.methods}

    def to_dict(self) -> dict[str, Any]:
        """All numbers, without the maps."""
        content: dict[str, Any] = {
            "image": self.name,
            "predicted": self.predicted,
            "true": self.true,
            "watched": self.watched,
            "probabilities": dict(self.probabilities),
            "default": {"method": self.default, "reason": self.reason},
            "methods": [
                {"method": m.name, "control": m.control, "beats_controls": m.beats_controls, **m.scores}
                for m in self.methods
            ],
            "load": [load._asdict() for load in self.load],
        }
        if self.parts is not None:
            content["contributions"] = self.parts.to_dict()
        if self.answer is not None:
            answer = self.answer
            found = {"finding": answer.finding, "findings": list(answer.findings), "found": answer.total}
            content |= found | {"nothing": answer.nothing or None}
        return content if self.clusters is None else content | self.clusters.to_dict()

    def html(self, *, top_k: int = 6) -> str:
        """The report of this image: one page that needs nothing else."""
        from vitreous.reports.explanation_page import render_explanations  # draws this class

        hole = "grey" if self.clusters is None else self.clusters.hole
        return render_explanations(
            [self], title=f"What decided: {self.watched}", facts=self.facts, top_k=top_k, hidden_with=hole
        )

    def save(self, path: str | Path, *, top_k: int = 6) -> Path:
        """Write the report (.html), a contact sheet (.png) or the numbers (.json)."""
        from vitreous.reports.explanation_page import draw_sheet

        path = Path(path)
        if path.suffix == ".html":
            write_output(path, self.html(top_k=top_k))
        elif path.suffix == ".png":
            sheet = BytesIO()
            draw_sheet(self, top_k).save(sheet, "PNG")
            write_output(path, sheet.getvalue())
        elif path.suffix == ".json":
            write_output(path, json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n")
        else:
            raise InputError(f"cannot save an explanation as {path.name!r}; its name must end in .html, .png or .json")
        return path

    def show(self) -> None:
        """In a notebook, the report below the cell; elsewhere, in the browser."""
        if not shown_in_notebook(self):
            webbrowser.open(self.save(Path(mkdtemp()) / "explanation.html").as_uri())

    def _repr_html_(self) -> str:
        """A frame keeps the page's style and script apart from the notebook's."""
        frame = Markup('<iframe srcdoc="{}" width="100%" height="{}" title="Explanation"></iframe>')
        return frame.format(self.html(), NOTEBOOK_HEIGHT)
