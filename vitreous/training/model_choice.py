"""Which model `vitreous train photos` takes, where none is named, and why.

Weights that know photographs are worth more than anything else for a few thousand pictures, so they decide first: a
public file that is here already, or can be reached. Then the machine: without a GPU, a model of a fifth of the work.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

from timm import get_pretrained_cfg

from vitreous.data.layouts.coco_anywhere import with_annotations
from vitreous.data.layouts.held_out import VAL_FRACTION
from vitreous.data.source import open_data, recognise
from vitreous.errors import InputError
from vitreous.files.storage import read_stored_json
from vitreous.models.download import cache_path, why_unreachable
from vitreous.runs.default_model import DEFAULT_MODEL
from vitreous.runs.run_folder import RUN
from vitreous.runtime.device import choose_device
from vitreous.tasks.base import load_task

LARGER_MODEL, QUICK_MODEL = "paca_small.ivmcl_in1k", "xcit_nano_12_p16.fb_dist_in1k"
UNTRAINED_MODEL, LARGER_UNTRAINED_MODEL = "paca_b0", "paca_tiny"
MANY_PICTURES = 20_000  # from which a larger model is worth its time on a GPU
FEW_PICTURES = 500  # up to which thirty epochs of the default model end within an hour on a few cores
ENOUGH_PICTURES = 50_000  # from which a model that knows nothing may be larger
FINETUNE_RECIPES = {task: f"finetune_{task}" for task in ("detect", "segment", "keypoints")}
FINETUNE_RECIPES |= dict.fromkeys(("classify", "multilabel", "regress"), "finetune")
RECORDED = ("recipe", "pretrained", "weights")  # of a run that is to be continued, besides its model


class ModelChoice(NamedTuple):
    model: str
    settings: dict[str, Any]  # that go with it, where none are given
    reason: str  # for the user


def choose_model(given: Mapping[str, Any]) -> ModelChoice:
    """The model for what else was given to `train`; what was chosen when a run began stays."""
    if int(os.environ.get("WORLD_SIZE", "1")) > 1:
        raise InputError("no model named, and several processes might choose differently; name one: vitreous info")
    run = Path(given.get("out") or "", RUN)
    if given.get("out") is not None and run.is_file():
        before = read_stored_json(run)["arguments"]
        kept = {name: before[name] for name in RECORDED}
        return ModelChoice(before["model"], kept, f"model: {before['model']}, with which the run in {run.parent} began")
    data, task = (
        with_annotations(str(given["data"]), given.get("annotations", ())),
        load_task(given.get("task", "classify")),
    )
    if recognise(data, task.targets, task.wording()).drawn:
        recipes = FINETUNE_RECIPES | {"classify": "quick"}
        known = {"recipe": recipes[task.name]} if task.name in recipes else {}
        return ModelChoice(UNTRAINED_MODEL, known, f"model: {UNTRAINED_MODEL}, which is enough for drawn shapes")
    count = len(
        open_data(
            data,
            "train",
            size=(64, 64),
            strict=False,
            targets=task.targets,
            val_fraction=given.get("val_fraction", VAL_FRACTION),
            follow=given.get("follow", False),
            wording=task.wording(),
        )
    )
    return fitting_model(task.name, count, gpu=choose_device(given.get("device", "auto")).type != "cpu")


def fitting_model(task: str, pictures: int, *, gpu: bool) -> ModelChoice:
    """By the number of pictures to learn from, the machine, and the weights that can be had."""
    wanted = (LARGER_MODEL if pictures >= MANY_PICTURES else DEFAULT_MODEL) if gpu else QUICK_MODEL
    if not gpu and pictures <= FEW_PICTURES:
        wanted = DEFAULT_MODEL
    others = dict.fromkeys((DEFAULT_MODEL, LARGER_MODEL, QUICK_MODEL))
    trouble = why_unreachable(weights_url(wanted))
    here = next((name for name in others if trouble and cache_path(weights_url(name)).is_file()), None)
    if trouble and here is None:
        name = LARGER_UNTRAINED_MODEL if gpu and pictures >= ENOUGH_PICTURES else UNTRAINED_MODEL
        url = weights_url(wanted)
        return ModelChoice(
            name,
            {},
            f"model: {name}, as none is named; it learns from nothing, and {pictures:,} pictures teach it less than "
            f"public weights would, which cannot be had ({trouble}). To start from them, fetch {url} elsewhere, put it "
            f"at {cache_path(url)}, and give the same command",
        )
    name = here or wanted
    machine = "a GPU" if gpu else "no GPU"
    recipe = {"recipe": FINETUNE_RECIPES[task]} if task in FINETUNE_RECIPES else {}
    return ModelChoice(
        name,
        {"pretrained": True, **recipe},
        f"model: {name}, as none is named: its public weights know photographs, and it fits {pictures:,} pictures and "
        f"{machine}; another: vitreous train NAME DATA",
    )


def weights_url(name: str) -> str:
    return str(getattr(get_pretrained_cfg(name), "url", ""))
