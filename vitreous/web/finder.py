"""The same questions about a detector, a segmenter or a keypoint model: what is explained is a finding, by its rank.

Where a classifier has classes with probabilities, such a model has findings with scores: to the page they are the same.
"""

from dataclasses import dataclass, field
from typing import Any

from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.method import Method
from vitreous.attribution.target import Target
from vitreous.errors import InputError
from vitreous.explanations.dense import (
    LISTED_FINDINGS,
    Inspection,
    explain_finding,
    explained_model,
    finding_plan,
    inspect_picture,
)
from vitreous.explanations.explaining import FEWER_PASSES, Plan, lighter
from vitreous.tasks.findings import FindingQuery, finding_score
from vitreous.web.explorer import Answer, Explorer
from vitreous.web.pictures import ServedPicture, as_png, served_picture


@dataclass(frozen=True, eq=False, kw_only=True)
class ServedFindings(ServedPicture):
    """A picture with the first findings in it, each with its target."""

    inspection: Inspection = field(repr=False)
    drawing: bytes = field(repr=False)  # PNG of all that was found
    findings: tuple[tuple[dict[str, Any], Target], ...]
    classes: tuple[int, ...]  # of the findings
    nothing: str  # what is said where nothing is sure

    @property
    def footprint(self) -> int:
        kept = [value for value in self.inspection.prediction.values() if isinstance(value, Tensor)]
        regions = [value for _, target in self.findings for value in target.tensors().values()]
        drawing = self.inspection.drawing.width * self.inspection.drawing.height * 3
        return super().footprint + len(self.drawing) + drawing + sum(value.nbytes for value in (*kept, *regions))


class Finder(Explorer):
    portions = FEWER_PASSES["portions"]

    def size(self) -> tuple[int, int]:
        return self.trained.build_task().input_size(self.trained.preprocess)

    def methods(self) -> list[Method]:
        return [lighter(method) for method in super().methods()]

    def method(self, name: str) -> Method:
        return lighter(super().method(name))

    # ---- a picture -----------------------------------------------------------------------------------------------

    def see(self, image: Image.Image, name: str, label: str | None = None) -> ServedFindings:
        """The label of a whole picture says nothing about its findings."""
        inspection = inspect_picture(self.trained, image, name)
        # Masks are drawn already, and a hundred of them take a hundred pictures' room.
        kept = {key: value for key, value in inspection.prediction.items() if key != "masks"}
        bare, default = served_picture(name, inspection.view.picture), inspection.choose(FindingQuery())
        ranked = default.findings[:LISTED_FINDINGS]
        choices = [inspection.choose(FindingQuery(finding=rank)) for rank in range(1, len(ranked) + 1)]
        return ServedFindings(
            id=bare.id,
            name=name,
            label=None,
            picture=bare.picture,
            png=bare.png,
            inspection=inspection._replace(prediction=kept),
            drawing=as_png(inspection.drawing),
            findings=tuple(
                (finding, choice.target.to(self.device))
                for finding, choice in zip(ranked, choices, strict=True)
                if choice.target is not None
            ),
            classes=tuple(dict.fromkeys(self.trained.classes.index(one["class"]) for one in ranked if "class" in one)),
            nothing=default.nothing.partition("; the best is ")[0],  # the page lists them itself
        )

    def network(self, item: ServedPicture) -> nn.Module:
        assert isinstance(item, ServedFindings)
        return explained_model(self.trained, item.classes or (0,), item.inspection.view)

    def finding(self, item: ServedPicture, number: int | None) -> tuple[dict[str, Any], Target]:
        assert isinstance(item, ServedFindings)
        if not item.findings:
            raise InputError(f"there is nothing to explain: {item.nothing}")
        if number is not None and number >= len(item.findings):
            raise InputError(
                f"finding {number} does not exist; this picture has findings 0 to {len(item.findings) - 1}"
            )
        return item.findings[number or 0]

    def png(self, item: ServedPicture, number: int | None) -> bytes:
        assert isinstance(item, ServedFindings)
        marked = item.inspection.choose(FindingQuery(finding=self.finding(item, number)[0]["rank"])).marked
        return item.png if marked is None else as_png(marked)

    def drawing(self, item: ServedPicture) -> bytes:
        assert isinstance(item, ServedFindings)
        return item.drawing

    def pointed(self, item: ServedPicture, across: float, down: float) -> Answer:
        """The number of the listed finding at a point of the picture; None: there is none."""
        assert isinstance(item, ServedFindings)
        prediction, view = item.inspection.prediction, item.inspection.view
        rank = item.inspection.task.finding_under(prediction, view, (across, down), LISTED_FINDINGS)
        numbers = {finding["rank"]: number for number, (finding, _) in enumerate(item.findings)}
        return {"number": numbers.get(rank)}

    def target(self, item: ServedPicture, number: int | None, output: Any) -> Target:
        return self.finding(item, number)[1]

    # ---- its findings, in place of classes -----------------------------------------------------------------------

    def predict(self, item: ServedPicture) -> Answer:
        assert isinstance(item, ServedFindings)
        return self.about(item) | {"true": None, "classes": self.rows(item), "nothing": item.nothing}

    def rows(self, item: ServedFindings) -> list[Answer]:
        """With the numbers of `vitreous predict`, in their order; those with a box say where it is."""
        height, width = item.inspection.view.original
        sides = (width, height, width, height)
        return [
            {"number": number, "name": finding["short"], "probability": finding_score(finding)}
            | ({"box": [side / whole for side, whole in zip(box, sides, strict=True)]} if box else {})
            for number, (finding, _) in enumerate(item.findings)
            for box in [finding.get("box")]
        ]

    def compared(self, item: ServedPicture, target: Target, before: Any, after: Any) -> Answer:
        assert isinstance(item, ServedFindings)
        now = item.inspection.task.scores_now(item.findings, item.inspection.view, self.model, after)
        rows = [
            row | {"probability": value, "before": row["probability"]}
            for row, value in zip(self.rows(item), now, strict=True)
        ]
        lost = target.holds(before) & ~target.holds(after)
        return {"classes": rows, "changed": bool(lost[0])}

    def report(self, item: ServedPicture, stage: int | None, number: int | None, top_k: int) -> str:
        assert isinstance(item, ServedFindings)
        query = FindingQuery() if number is None else FindingQuery(finding=self.finding(item, number)[0]["rank"])
        plan = finding_plan(self.model, self.chosen.applied(Plan(stage=stage)))
        return explain_finding(self.trained, item.inspection, query=query, plan=plan).html(top_k=top_k)
