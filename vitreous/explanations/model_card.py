"""What a model folder, and the run around it, know about a model; written beside its weights as README.md.

Each verb that finds something out leaves it in a file of its own and has the card written again:

config.json                  what the model is                        (train, mend)
../run.json, metrics.jsonl   how it was trained, and its figures      (train)
mended.json                  what was mended, before and after        (mend)
explain.json                 which map is the most faithful           (score)
suspects.json                shortcuts that it may take               (shortcuts)
../evaluation/               accuracy in groups of images             (evaluate --groups --before)

None of this is part of the manifest, which is about weights and description alone. A file that cannot be read says
nothing; a README.md that somebody else wrote is left alone.
"""

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from vitreous.errors import InputError, printable
from vitreous.exports.folder import is_exported
from vitreous.files.storage import json_text, read_stored_json, replace_file
from vitreous.reports.model_card import OURS, MethodNote, ModelCard, SuspectNote, card_markdown, shortcut_notes
from vitreous.reports.shortcuts import Shortcuts, suspect_headline
from vitreous.runs.hub import is_hub_address
from vitreous.runs.model_config import ModelConfig, read_config
from vitreous.runs.model_folder import PREFERRED, find_model_folder, is_weights_file
from vitreous.runs.run_folder import RUN, read_metrics
from vitreous.tasks.base import load_task

CARD, SUSPECTS = "README.md", "suspects.json"
DEFAULT_METHOD_FILE, MENDED, EVALUATION = "explain.json", "mended.json", "evaluation/evaluation.json"
MOST_TEXT, MOST_LINES = 1000, 100  # characters of a text from a file; texts
TOLD = {  # settings of a run that the card tells -> in words
    "data": "data",
    "epochs": "epochs",
    "recipe": "recipe",
    "weights": "starting from",
    "pretrained": "starting from published weights",
    "balance_groups": "groups drawn equally often",
    "seed": "seed",
}
NOT_FIGURES = ("step", "epoch", "split", "seconds", "images_per_second", "bad_images")


def write_model_card(folder: Path) -> None:
    """Write the card of a model folder, or write it again, unless somebody else did."""
    card = folder / CARD
    if not card.exists() or OURS in _text_of(card):
        replace_file(card, card_markdown(known_about(folder)))


def refresh_card(model: str, suspects: Shortcuts | None = None) -> None:
    """Write the card of what a verb was given again, with suspects that were found.

    A model known by name or file only has no folder for it, and one that cannot be written keeps the card it has: the
    verb's own result is elsewhere.
    """
    try:
        folder = None if is_hub_address(model) else folder_of(model)
        if folder is None:
            return
        if suspects is not None:
            store_suspects(folder, suspects)
        write_model_card(folder)
    except InputError as reason:
        print(printable(f"not noted beside the model: {reason}"))


def folder_of(model: str) -> Path | None:
    return None if is_weights_file(model) else find_model_folder(model)


def store_suspects(folder: Path, found: Shortcuts) -> None:
    """What deserves a look, and in what it was found."""
    suspects = [
        {"name": one.name, "verdict": one.verdict, "headline": suspect_headline(one)}
        for one in found.suspects
        if one.verdict != "harmless"
    ]
    content = {"data": data_name(found.data), "split": found.split, "pictures": found.pictures, "suspects": suspects}
    replace_file(folder / SUSPECTS, json_text(content))


def shortcuts_known(model: str) -> list[str]:
    """What is known of the shortcuts of a model that a verb was given."""
    folder = folder_of(model)
    return [] if folder is None else shortcut_notes(known_about(folder))


def known_about(folder: Path) -> ModelCard:
    config, run = read_config(folder, exported=is_exported(folder)), folder.parent
    settings = _stored(run / RUN).get("arguments")
    settings = settings if folder.name in PREFERRED and isinstance(settings, Mapping) else {}
    mended, suspects = _stored(folder / MENDED), _stored(folder / SUSPECTS)
    origin = mended.get("origin")
    origin = origin if isinstance(origin, Mapping) else {}
    before, after = _numbers(mended.get("before")), _numbers(mended.get("after"))
    mended_on = _data_and_split(mended)
    figures, on = (after, mended_on) if after else _validated(folder, config, settings)
    evaluation = _stored(run / EVALUATION) if settings and _is_meant(folder) else {}
    return ModelCard(
        architecture=config.architecture,
        task=config.task,
        classes=config.classes,
        size=config.preprocess.size,
        reads_clusters="readout" in config.architecture or config.model_args.get("readout") == "clusters",
        hides_regions=bool(config.preprocess.hidden),
        training=_training(settings) or _words(origin.get("training")),
        figures={name: value for name, value in figures.items() if name not in NOT_FIGURES and "=" not in name},
        measured_on=on,
        groups=_groups(evaluation),
        grouped_on=_data_and_split(evaluation),
        faithfulness=_faithfulness(_stored(folder / DEFAULT_METHOD_FILE)),
        explained=_text(_stored(folder / DEFAULT_METHOD_FILE).get("reason")),
        searched=f"{_text(suspects.get('pictures'))} images of {_data_and_split(suspects)}" if suspects else "",
        suspects=_suspects(suspects),
        taught=_taught(settings),
        earlier=_lines(origin.get("shortcuts")),
        mended=changes(config),
        before=before,
        mended_on=mended_on,
        after=after,
    )


def origin_of(folder: Path) -> dict[str, Any]:
    """What a mended model takes over from the one it was: how that was trained, and what was known of its shortcuts."""
    card = known_about(folder)
    return {"training": dict(card.training), "shortcuts": shortcut_notes(card)}


def changes(config: ModelConfig) -> list[str]:
    """What was mended in a model of this description, for the reader."""
    closed = config.model_args.get("closed_clusters") or {}
    told = [f"closed in {path}: clusters {', '.join(map(str, numbers))}" for path, numbers in closed.items()]
    names = dict.fromkeys(region.name for region in config.preprocess.hidden)
    return told + ([f"painted over: {', '.join(names)}"] if names else [])


def data_name(data: str) -> str:
    """Without the folders above: what is said is shown to others, in reports and on pages."""
    return Path(data).name or data


def _is_meant(folder: Path) -> bool:
    """Whether this is the model that is meant by the name of its run."""
    return folder.name == next((name for name in PREFERRED if (folder.parent / name).is_dir()), None)


def _training(settings: Mapping[str, Any]) -> dict[str, str]:
    told = {}
    for name, words in TOLD.items():
        value = settings.get(name)
        if value in (None, "", [], ()) or value is False:
            continue
        value = "yes" if value is True else value
        shown = data_name(str(value)) if name in ("data", "weights", "recipe") else value
        told[words] = _text(", ".join(map(str, shown)) if isinstance(shown, list | tuple) else str(shown))
    return told


def _taught(settings: Mapping[str, Any]) -> list[str]:
    """What training did about where the model looks."""
    told: list[str] = []
    if not settings.get("attend_weight"):  # a control: grounds are exchanged, and nothing is asked for
        return told
    if settings.get("attend_to"):
        told.append(f"Trained to look at the object (--attend-to {_text(settings['attend_to'])}).")
    if settings.get("attend_away"):
        told.append(f"Trained to look away from regions (--attend-away {data_name(_text(settings['attend_away']))}).")
    return told


def _validated(folder: Path, config: ModelConfig, settings: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """The figures of the validation that made a model the best of its run, or of the last one."""
    if not settings:
        return {}, ""
    try:
        lines = [line for line in read_metrics(folder.parent) if line.get("split") == "val"]
        main = load_task(config.task).main_metric
        lines = [line for line in lines if isinstance(line.get(main), int | float)]
    except InputError:
        return {}, ""
    if not lines:
        return {}, ""
    line = max(lines, key=lambda line: line[main]) if folder.name == "best" else lines[-1]
    return _numbers(line), f"{data_name(_text(settings.get('data')))} (val), after epoch {line.get('epoch')}"


def _groups(evaluation: Mapping[str, Any]) -> list[tuple[str, int, float]]:
    try:
        rows = evaluation["groups"]["rows"]
        return [
            (_text(row["name"]), int(row["images"]), float(row["accuracy"]))
            for row in rows
            if row["accuracy"] is not None
        ]
    except (LookupError, TypeError, ValueError):
        return []


def _faithfulness(stored: Mapping[str, Any]) -> list[MethodNote]:
    try:
        beaten = stored["beats_controls"]
        notes = [
            MethodNote(_text(name), float(one["mean"]), float(one["low"]), float(one["high"]), bool(beaten[name]))
            for name, one in stored["measured"].items()
        ]
    except (LookupError, TypeError, ValueError, AttributeError):
        return []
    return sorted(notes, key=lambda note: -note.mean)[:MOST_LINES]


def _suspects(stored: Mapping[str, Any]) -> list[SuspectNote]:
    try:
        return [
            SuspectNote(*(_text(one[name]) for name in ("name", "verdict", "headline"))) for one in stored["suspects"]
        ]
    except (LookupError, TypeError):
        return []


def _data_and_split(stored: Mapping[str, Any]) -> str:
    return f"{data_name(_text(stored.get('data')))} ({_text(stored.get('split'))})"


def _stored(path: Path) -> dict[str, Any]:
    """What a file holds; nothing if it is not there or cannot be read."""
    try:
        content = read_stored_json(path)
    except InputError:
        return {}
    return content if isinstance(content, dict) else {}


def _numbers(stored: Any) -> dict[str, float]:
    found = stored.items() if isinstance(stored, Mapping) else ()
    numbers = {_text(name): value for name, value in found if isinstance(value, int | float)}
    return {name: float(value) for name, value in numbers.items() if abs(value) <= sys.float_info.max}


def _words(stored: Any) -> dict[str, str]:
    return {_text(name): _text(value) for name, value in stored.items()} if isinstance(stored, Mapping) else {}


def _lines(stored: Any) -> list[str]:
    return [_text(line) for line in stored[:MOST_LINES]] if isinstance(stored, list) else []


def _text(value: Any) -> str:
    return str(value)[:MOST_TEXT] if value is not None else ""


def _text_of(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return ""
