"""Put a trained model on the Hugging Face hub.

vitreous push runs/photos anna/my-cats --licence apache-2.0
"""

import json
import re
import shutil
import tempfile
from dataclasses import replace
from pathlib import Path

from vitreous.errors import InputError, command, printable
from vitreous.explain import explain
from vitreous.explanations.folder import EXPLANATION_JSON
from vitreous.explanations.model_card import CARD, DEFAULT_METHOD_FILE, data_name, known_about
from vitreous.files.storage import MANIFEST, json_text, read_stored_json
from vitreous.files.writing import write_text
from vitreous.reports.model_card import card_markdown
from vitreous.runs.hub import checked_repository, push_folder, require_token
from vitreous.runs.model_config import CONFIG, WEIGHTS, read_config
from vitreous.runs.model_folder import EXPLAINER_FOLDER, find_model_folder, is_weights_file

PICTURE = "explanation.png"
LICENCE = re.compile(r"[a-z0-9][a-z0-9.-]*")  # as the hub names them


def push(
    model: str,
    repository: str,
    *,
    licence: str | None = None,
    picture: str | None = None,
    private: bool = False,
    message: str = "Add the model",
    dry_run: bool = False,
) -> str:
    """Put a trained model on the Hugging Face hub, where others load it by name.

    The repository gets the weights, their description in timm's format, and a model card: what the model is, how it was
    trained, its figures, how faithful its maps are (after `vitreous score`), what is known of its shortcuts, and a
    picture of an explanation if one is given. No other picture, and no path of this machine, leaves it.

    It needs a token that may write: HF_TOKEN, or `hf auth login`. HF_ENDPOINT names a hub of your own. Afterwards:
    `vitreous explain hf:owner/name photo.jpg`, `vitreous.load_model("hf:owner/name")`, and for classifiers
    `timm.create_model("hf-hub:owner/name", pretrained=True)`.

    Examples:
        vitreous push runs/demo anna/shapes --dry-run
        vitreous push runs/photos anna/my-cats --licence apache-2.0 --picture cat.jpg
        vitreous push runs/photos/final anna/my-cats --private --message "Ten more epochs"

    Args:
        model: Run folder or model folder.
        repository: Where it goes: owner/name. It is made if it is not there.
        licence: Under which others may use it, in the hub's words: apache-2.0, mit, cc-by-4.0, …
        picture: A picture to explain for the card. It becomes public with the model.
        private: Make a new repository private.
        message: What the commit says.
        dry_run: Show the card and the files, and send nothing.

    Returns:
        The address of the repository.
    """
    checked_repository(repository)
    if licence is not None and not LICENCE.fullmatch(licence):
        raise InputError(
            f"--licence '{licence}' is not how the hub names one; give apache-2.0, mit, cc-by-4.0 or other"
        )
    folder = None if is_weights_file(model) else find_model_folder(model)
    if folder is None:
        raise InputError(f"'{model}' is not a folder; give a run or a model folder, which say what the weights are for")
    read_config(folder)
    if not dry_run:
        require_token()
    with tempfile.TemporaryDirectory(prefix="vitreous-push-") as place:
        staging = Path(place)
        collect_files(model, folder, repository, staging, licence, picture)
        files = sorted(path for path in staging.rglob("*") if path.is_file())
        if dry_run:
            print(printable((staging / CARD).read_text(encoding="utf-8"), keep="\n"))
        for file in files:
            print(f"{file.stat().st_size:>12,} bytes  {file.relative_to(staging).as_posix()}")
        if dry_run:
            print(f"nothing was sent; {command('push', model, repository)} would send these to {repository}")
            return repository
        address = push_folder(staging, repository, private=private, message=message)
    print(printable(f"pushed: {address}\nnext: {command('explain', f'hf:{repository}', 'photo.jpg')}", keep="\n"))
    return address


def collect_files(
    model: str, folder: Path, repository: str, staging: Path, licence: str | None, picture: str | None
) -> None:
    """Everything that is sent, in a folder."""
    for name in (WEIGHTS, CONFIG, MANIFEST):
        shutil.copyfile(folder / name, staging / name)
    if (folder / EXPLAINER_FOLDER).is_dir():
        shutil.copytree(folder / EXPLAINER_FOLDER, staging / EXPLAINER_FOLDER)
    if (folder / DEFAULT_METHOD_FILE).is_file():  # it may hold the path of the data
        measured = read_stored_json(folder / DEFAULT_METHOD_FILE)
        measured["data"] = data_name(str(measured.get("data", "")))
        write_text(staging / DEFAULT_METHOD_FILE, json_text(measured))
    if picture is not None:
        write_picture(model, picture, staging / PICTURE)
    known = replace(
        known_about(folder),
        address=repository,
        licence=licence or "",
        picture="" if picture is None else PICTURE,
    )
    write_text(staging / CARD, card_markdown(known))


def write_picture(model: str, picture: str, file: Path) -> None:
    """The sheet of an explanation of this picture."""
    with tempfile.TemporaryDirectory(prefix="vitreous-push-") as place:
        explain(model, (picture,), out=Path(place) / "explanation")
        content = json.loads((Path(place) / "explanation" / EXPLANATION_JSON).read_text(encoding="utf-8"))
        shutil.copyfile(Path(place) / "explanation" / content["images"][0]["sheet"], file)
