"""An explainer on disk: a folder beside the weights that it was taught for, complete or absent.

best/explainer/                       of a run or model folder; of a file weights.pth: weights.explainer/
  explainer.safetensors   its weights
  explainer.json          how it is built, the fingerprint of the model's weights, what it was taught on and how
  manifest.json           size and sha256 of both
"""

import hashlib
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import nn

from vitreous.attribution.explainer import LearnedExplainer
from vitreous.errors import InputError
from vitreous.files.reading import reading
from vitreous.files.storage import find_published, publish_folder, read_stored_json, verify_folder, write_json
from vitreous.version import __version__

EXPLAINER_WEIGHTS, EXPLAINER_JSON = "explainer.safetensors", "explainer.json"
REMEDY = "learn again (vitreous score RUN DATA --learn), or remove the folder"


def weights_fingerprint(model: nn.Module) -> str:
    """sha256 of all weights and statistics of a model, whatever file they came from."""
    digest = hashlib.sha256()
    for name, value in sorted(model.state_dict().items()):
        digest.update(f"{name} {value.dtype} {tuple(value.shape)}\n".encode())
        digest.update(value.detach().cpu().contiguous().flatten().view(torch.uint8).numpy().data)
    return digest.hexdigest()


def save_explainer(folder: Path, explainer: LearnedExplainer, model: nn.Module, about: dict[str, Any]) -> None:
    """One that is already there is replaced only when the new one is complete. `about`: what it was taught on."""
    state = {name: value.detach().cpu().contiguous() for name, value in explainer.state_dict().items()}
    content = {"fingerprint": weights_fingerprint(model), "explainer": explainer.settings, "learned": about}

    def write(staging: Path) -> tuple[str, ...]:
        save_file(state, staging / EXPLAINER_WEIGHTS)
        write_json(staging / EXPLAINER_JSON, content | {"vitreous": __version__})
        return EXPLAINER_WEIGHTS, EXPLAINER_JSON

    publish_folder(folder, write)


def read_explainer(folder: Path, model: nn.Module) -> LearnedExplainer | None:
    """The explainer in a folder, checked against its manifest and against the model; None if there is none."""
    found = find_published(folder)
    if found is None:
        return None
    try:
        verify_folder(found, (EXPLAINER_WEIGHTS, EXPLAINER_JSON))
        content = read_stored_json(found / EXPLAINER_JSON)
    except InputError as reason:
        raise InputError(f"{reason}; {REMEDY}") from reason
    with reading(f"the explainer in {found}", remedy=REMEDY):
        if content["fingerprint"] != weights_fingerprint(model):
            raise InputError(f"the explainer in {found} was learned for other weights than these; {REMEDY}")
        with torch.device("meta"):  # whatever its file says about sizes takes no memory
            explainer = LearnedExplainer(**content["explainer"])
        if not all(type(stage) is int and stage >= 0 for stage in explainer.stages):
            raise ValueError(f"stages {list(explainer.stages)} are no numbers of maps")
        state = load_file(found / EXPLAINER_WEIGHTS)
        if not all(value.isfinite().all() for value in state.values()):
            raise ValueError("it holds values that are no numbers")
        explainer.load_state_dict(state, assign=True)
        return explainer.requires_grad_(False).eval()
