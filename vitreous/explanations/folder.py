"""An explanation of pictures as a folder: the report, a contact sheet for each picture, and all numbers."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from vitreous.errors import printable
from vitreous.explanations.explaining import ON_THIS_IMAGE
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports.explanation import Explanation
from vitreous.reports.explanation_page import draw_sheet, named, render_explanations
from vitreous.runs.results import file_name

EXPLANATION_JSON, REPORT_PAGE = "explanation.json", "report.html"


def write_explanations(
    folder: Path,
    explanations: Sequence[Explanation],
    *,
    about: dict[str, Any],
    hole: str,
    top_k: int,
    beside: Sequence[Explanation] = (),
    shortcuts: Sequence[str] = (),
) -> None:
    """`about` goes into the JSON, `hole` is what hidden places look like, `beside` are the same pictures explained for
    another model, `shortcuts` what is known of the model's shortcuts.
    """
    sheets = []
    for index, item in enumerate(explanations, 1):
        sheets.append(file_name(index, item.name))
        draw_sheet(item, top_k).save(folder / sheets[-1])
    models = " and ".join(dict.fromkeys(item[0].facts["model"] for item in (explanations, beside) if item))
    page = render_explanations(
        explanations,
        title=f"What decided for {models}",
        facts=shared_facts([*explanations, *beside]),
        hidden_with=hole,
        top_k=top_k,
        beside=beside,
        shortcuts=shortcuts,
    )
    write_text(folder / REPORT_PAGE, page)
    numbers = [item.to_dict() | {"sheet": sheet} for item, sheet in zip(explanations, sheets, strict=True)]
    others = {"beside": [item.to_dict() for item in beside]} if beside else {}
    about |= {"shortcuts": list(shortcuts)} if shortcuts else {}
    write_json(folder / EXPLANATION_JSON, {**about, "images": numbers, **others, "files": [*sheets, REPORT_PAGE]})


def shared_facts(explanations: Sequence[Explanation]) -> dict[str, str]:
    """Those that hold for every picture; what differs between pictures or models stands with each."""
    first, *others = [item.facts for item in explanations]
    return {key: value for key, value in first.items() if all(facts.get(key) == value for facts in others)}


def print_summary(explanations: Sequence[Explanation], report: Path) -> None:
    width = max(len(printable(item.name)) for item in explanations)
    for item in explanations:
        shown = f"{printable(item.name):<{width}}  {printable(answered(item)):<28}  {printable(most_important(item))}"
        print(shown.rstrip())
    idle = sum(1 for item in explanations if shown_stage_is_idle(item))
    if idle:
        print(f"\nthe clusters shown carry nothing for {idle} of {len(explanations)} images: try another --stage")
    first = next((item for item in explanations if item.default is not None), None)
    if first is not None and first.reason.startswith(ON_THIS_IMAGE):
        print(f"\ndefault map: on each image the most faithful.{first.reason.removeprefix(ON_THIS_IMAGE)}")
    elif first is not None:
        print(printable(f"\ndefault map: {first.default}. {first.reason}", keep="\n"))
    print(printable(f"\nreport: {report}", keep="\n"))


def answered(item: Explanation) -> str:
    if not item.probabilities:
        return item.watched
    verdict = "" if item.true is None else " (right)" if item.true == item.predicted else f" (it is {item.true})"
    return f"{item.predicted} {item.probabilities[0][1]:.1%}{verdict}"


def most_important(item: Explanation) -> str:
    if item.answer is not None and item.answer.nothing:
        return item.answer.nothing
    clusters = item.clusters
    if clusters is None:
        found = next((method for method in item.methods if method.name == item.default), item.methods[0])
        return f"{found.name}: insertion − deletion {found.difference:+.2f}"
    if clusters.groups:
        return f"top group: {named(clusters.groups[0])}; {clusters.group_drop[0]:+.2f} log-odds lost without it"
    best = clusters.order[0]
    return f"top cluster {best}, score {clusters.importance[clusters.ranking][best].item():+.3f}"


def shown_stage_is_idle(item: Explanation) -> bool:
    shown = None if item.clusters is None else item.clusters.layer.stage
    return any(load.stage == shown and not load.carries for load in item.load)
