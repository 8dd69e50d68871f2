"""Models on the Hugging Face hub: `hf:owner/name`, or `hf:owner/name@revision`, stands for a folder of it.

The folder is in timm's hub format, as our model folders are: config.json and model.safetensors, with our manifest
beside them. What is downloaded stays in the hub's own cache. HF_ENDPOINT names another server, HF_TOKEN says who
is asking.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from vitreous.errors import InputError
from vitreous.files.storage import MANIFEST
from vitreous.runs.model_config import CONFIG, WEIGHTS

ADDRESS = re.compile(r"(?:hf|hf-hub):(?P<repository>[^@]*)(?:@(?P<revision>.+))?")  # timm writes hf-hub:
REPOSITORY = re.compile(r"[A-Za-z0-9][\w.-]*/[A-Za-z0-9][\w.-]*", re.ASCII)
TRANSPORTS = ("httpx", "httpx2", "httpcore", "requests", "urllib3")  # packages by which the hub's client asks
NEEDED = (CONFIG, WEIGHTS, MANIFEST, "explain.json", "explainer/*")  # of a repository; pictures and cards are not


def is_hub_address(source: str | Path) -> bool:
    return ADDRESS.fullmatch(str(source)) is not None


def checked_repository(given: str) -> str:
    """The name of a repository, whose form is right."""
    if not REPOSITORY.fullmatch(given):
        raise InputError(f"'{given}' is no repository of the hub; give owner/name, such as anna/my-cats")
    return given


def hub_folder(source: str) -> Path:
    """The folder that an address stands for, downloaded unless the hub's cache has it."""
    found = ADDRESS.fullmatch(source)
    assert found is not None
    return _downloaded(checked_repository(found["repository"]), found["revision"], os.environ.get("HF_ENDPOINT"))


@cache  # several parts of a verb ask for it, and the hub's cache asks the server each time
def _downloaded(repository: str, revision: str | None, endpoint: str | None) -> Path:
    from huggingface_hub import snapshot_download

    with hub_failures_explained(repository, revision):
        found = Path(snapshot_download(repository, revision=revision, endpoint=endpoint, allow_patterns=list(NEEDED)))
    for name in (CONFIG, WEIGHTS):
        if not (found / name).is_file():
            raise InputError(
                f"the repository {repository} of the hub has no {name}; vitreous loads what vitreous push or timm's "
                "push_to_hf_hub wrote there"
            )
    return found


def require_token() -> None:
    """Before any work: nothing can be pushed without one."""
    from huggingface_hub import get_token

    if not get_token():
        raise InputError(
            "no token of the hub is known, and pushing needs one that may write; make one on "
            "https://huggingface.co/settings/tokens and set HF_TOKEN, or run: hf auth login"
        )


def push_folder(folder: Path, repository: str, *, private: bool, message: str) -> str:
    """Make the repository, unless it is there, and commit the folder's files to it; its address on the web."""
    from huggingface_hub import CommitOperationAdd, HfApi

    api = HfApi(endpoint=os.environ.get("HF_ENDPOINT") or None)
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    added: list[Any] = [CommitOperationAdd(file.relative_to(folder).as_posix(), str(file)) for file in files]
    with hub_failures_explained(repository):
        api.create_repo(repository, private=private, exist_ok=True)
        api.create_commit(repository, operations=added, commit_message=message)
    return f"{api.endpoint}/{repository}"


@contextmanager
def hub_failures_explained(repository: str, revision: str | None = None) -> Iterator[None]:
    """What the hub refuses, or that it cannot be reached, in one line."""
    from huggingface_hub import errors

    try:
        yield
    except errors.GatedRepoError as reason:
        raise InputError(
            f"the repository {repository} asks for an agreement first; give it on its page, and set HF_TOKEN"
        ) from reason
    except errors.RevisionNotFoundError as reason:
        raise InputError(f"the repository {repository} has no revision '{revision}'") from reason
    except errors.RepositoryNotFoundError as reason:
        raise InputError(
            f"there is no repository {repository} on the hub, or it is private and HF_TOKEN may not see it"
        ) from reason
    except errors.HfHubHTTPError as reason:
        status = getattr(reason.response, "status_code", None)
        if status in (401, 403):
            raise InputError(
                f"the hub refuses this token for {repository} ({status}); set HF_TOKEN to one that may write there"
            ) from reason
        raise InputError(f"the hub answered with an error about {repository} ({_first_line(reason)})") from reason
    except Exception as reason:
        package = type(reason).__module__.partition(".")[0]
        if not isinstance(reason, errors.LocalEntryNotFoundError | OSError) and package not in TRANSPORTS:
            raise
        raise InputError(
            f"the hub cannot be reached for {repository} ({_first_line(reason)}); check the network and HF_ENDPOINT, "
            f"or fetch {CONFIG} and {WEIGHTS} by other means and give their folder"
        ) from reason


def _first_line(reason: BaseException) -> str:
    return (str(reason).strip().splitlines() or [type(reason).__name__])[0][:200]
