"""Explore a model in the browser: drop a picture, see its clusters, switch them off, watch the prediction change.

vitreous serve
vitreous serve runs/demo
"""

import socket
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from PIL import Image

from vitreous.attribution.learned import explainer_of
from vitreous.data.pictures import Picture, find_pictures
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.errors import InputError
from vitreous.explanations.default_method import read_default_method
from vitreous.runs.default_model import DEFAULT_MODEL, announce_default
from vitreous.runs.model_folder import load_model
from vitreous.runs.results import load_readable, report_skipped, require_positive
from vitreous.runs.trained_model import TrainedModel
from vitreous.web.explorer import Explorer
from vitreous.web.finder import Finder
from vitreous.web.pictures import ServedPicture, as_sharp_jpeg

EXAMPLES = 12  # offered on the page; of a larger folder a selection spread over it
EMBEDDED = "shapes:val:0-9"  # each class once


def serve(
    model: str = DEFAULT_MODEL,
    *,
    beside: str | None = None,
    examples: str | None = None,
    host: str = "127.0.0.1",
    port: int = 8000,
    allow_host: tuple[str, ...] = (),
    size: int | None = None,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
    max_upload_mb: int = 20,
    concurrent: int = 64,
    waiting: int = 16,
) -> None:
    """Explore a model in the browser, until Ctrl-C.

    The page shows the prediction for a picture, the maps of clusters ranked by what they do to it, and every other
    method that fits the model; clusters can be switched off one by one or in groups. Of a detector, a segmenter or a
    keypoint model it lists the findings, each of which can be explained. With --beside a second model answers about
    the same picture, and about the same picture with a part hidden. It needs no network, and only this machine can
    open it unless --host says otherwise. There is no login: whoever can reach the address can use it.

    Examples:
        vitreous serve
        vitreous serve runs/demo
        vitreous serve runs/mine --examples photos/val --port 8080
        vitreous serve runs/mine --beside runs/mended
        vitreous serve runs/mine --host 0.0.0.0 --allow-host lab-machine

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous info). Left
            out: a public PaCa that knows ImageNet's classes, downloaded once.
        beside: Another model, as `model`, whose answers stand beside.
        examples: Pictures to offer: a folder, a pattern, or samples of the embedded data such as shapes:val:0-7.
            Default: embedded samples if the model knows their classes.
        host: Address to listen on; 0.0.0.0 for every machine that can reach this one.
        port: Port to listen on; 0 takes a free one.
        allow_host: Names under which other machines may ask, besides numeric addresses.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where it does not tell it itself.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.
        max_upload_mb: Largest file accepted, in megabytes.
        concurrent: Most requests in work at once; more are asked to try again.
        waiting: Most questions that wait for the model; more are asked to try again.
    """
    # Here, so that `import vitreous` does without these packages, and before a model is loaded in vain.
    from vitreous.web.app import create_app
    from vitreous.web.connection import make_server
    from vitreous.web.guard import Limits

    require_positive(max_upload_mb=max_upload_mb, concurrent=concurrent, waiting=waiting)
    if model == DEFAULT_MODEL:
        announce_default("vitreous serve MODEL")
    explorer = open_explorer(model, architecture=architecture, model_args=model_args, size=size, device=device)
    limits = Limits(upload_bytes=max_upload_mb * 1_000_000, concurrent=concurrent, waiting=waiting)
    other = None if beside is None else open_explorer(beside, device=device)
    shown = find_examples(explorer, examples)
    same = None if other is None else (other, find_examples(other, examples or EMBEDDED) if shown else [])
    app = create_app(explorer, examples=shown, beside=same, limits=limits, hosts=(host, *allow_host))
    with listen(host, port) as listener:
        address = f"[{host}]" if ":" in host else host
        print(
            f"{explorer.trained.name} is at http://{address}:{listener.getsockname()[1]}  (Ctrl-C ends it)", flush=True
        )
        with suppress(KeyboardInterrupt):
            make_server(app, limits).run(sockets=[listener])


def open_explorer(
    model: str,
    *,
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
    size: int | None = None,
    device: str = "auto",
) -> Explorer:
    trained = load_model(model, architecture=architecture, model_args=model_args, size=size, device=device)
    check_answers(trained)
    explainer_of(trained.model)  # one that is damaged, or of other weights, shows here
    kind = Finder if trained.build_task().has_findings else Explorer
    explorer = kind(trained, read_default_method(model), Path(model).name if Path(model).exists() else "")
    if explorer.chosen.method is not None:
        explorer.method(explorer.chosen.method)  # one that does not fit shows here
    return explorer


def listen(host: str, port: int) -> socket.socket:
    if not 0 <= port <= 65535:
        raise InputError(f"--port {port} cannot be used; give a number from 1 to 65535, or 0 for a free one")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    try:
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as reason:
        why = (reason.strerror or str(reason)).partition(" (")[0]  # Python repeats the address there
        raise InputError(
            f"cannot listen on {host}, port {port} ({why}); choose another --port (0 takes a free one) or --host"
        ) from reason


def check_answers(trained: TrainedModel) -> None:
    """Faults of the model are found before there is a page."""
    if len(trained.classes) < 2 and not trained.build_task().has_findings:
        raise InputError(f"model {trained.name} has one class only; there is no decision to explain")
    trained.predict(Image.new("RGB", (64, 64), "grey"))


def find_examples(explorer: Explorer, given: str | None) -> list[ServedPicture]:
    trained = explorer.trained
    if given is None:
        if not set(CATEGORIES) <= set(trained.classes):
            return []
        given = EMBEDDED
    pictures = within(given, find_pictures([given], size=trained.preprocess.size))
    step = max(1.0, len(pictures) / EXAMPLES)
    chosen = [pictures[int(index * step)] for index in range(min(EXAMPLES, len(pictures)))]
    found = [
        replace(explorer.see(image, shown_name(one.name, given), one.label), sharp=as_sharp_jpeg(image))
        for one, image in load_readable(chosen)
    ]
    report_skipped(len(chosen) - len(found), len(chosen))
    return found


def within(given: str, pictures: list[Picture]) -> list[Picture]:
    """Without links that lead out of the folder: what is in it is to be shown, and nothing else."""
    if not Path(given).is_dir():
        return pictures
    root = Path(given).resolve()
    inside = [picture for picture in pictures if Path(picture.name).resolve().is_relative_to(root)]
    if not inside:
        raise InputError(f"every image in folder {given!r} is a link to somewhere else; copy the images there")
    return inside


def shown_name(name: str, given: str) -> str:
    """Without the folders above: they are nobody's business who looks at the page."""
    return Path(name).relative_to(given).as_posix() if Path(given).is_dir() else Path(name).name
