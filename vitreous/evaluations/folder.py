"""An evaluation as a folder: the page, figures, tables and pictures."""

from pathlib import Path
from typing import Any

from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports import evaluation as report
from vitreous.reports.evaluation import Evaluation
from vitreous.reports.evaluation_page import render_evaluation

EVALUATION_JSON, EVALUATION_PAGE = "evaluation.json", "evaluation.html"
_TABLES, _MATRIX = "report.md", "confusion.csv"


def write_evaluation(folder: Path, evaluation: Evaluation, content: dict[str, Any]) -> None:
    drawn = report.draw_evaluation(evaluation)
    for name, (image, _) in drawn.items():
        image.save(folder / name)
    captions = {name: caption for name, (_, caption) in drawn.items()}
    write_text(folder / EVALUATION_PAGE, render_evaluation(evaluation))
    write_text(folder / _TABLES, report.evaluation_markdown(evaluation, captions))
    files = [*drawn, EVALUATION_PAGE, _TABLES]
    matrix = None if evaluation.details is None else report.confusion_csv(evaluation.details)
    if matrix is not None:
        write_text(folder / _MATRIX, matrix)
        files.append(_MATRIX)
    write_json(folder / EVALUATION_JSON, {**content, "files": files})
