"""Applications around small models, and a way to ask them with a body that arrives piece by piece."""

import asyncio
import io
import json
import threading
from collections.abc import Awaitable, Callable, Generator, Iterable
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
import uvicorn
from PIL import Image
from torch import Tensor

from tests.support.tiny_model import MODEL_ARGS, save_tiny_model
from vitreous.data.shapes.samples import Shapes
from vitreous.explanations.default_method import DefaultMethod, store_default_method
from vitreous.faithfulness.intervals import Interval
from vitreous.runs.model_folder import load_model, save_model
from vitreous.serve import find_examples, listen, open_explorer
from vitreous.web.app import create_app
from vitreous.web.explorer import Explorer
from vitreous.web.guard import Limits

HOST = "http://localhost"
REASON = "Of 2 methods it is the most faithful on 9 images of photos (val)."


def application(model: str, *, limits: Limits | None = None, examples: str | None = None) -> tuple[Any, Explorer]:
    explorer = open_explorer(model)
    return create_app(explorer, examples=find_examples(explorer, examples), limits=limits), explorer


def png(index: int = 0, *, side: int = 64) -> bytes:
    buffer = io.BytesIO()
    Image.fromarray(Shapes("val", size=side)[index].image).save(buffer, "PNG")
    return buffer.getvalue()


def save_lively_model(folder: Path, **arguments: Any) -> str:
    """Weights four times as large as fresh ones, or no cluster would matter."""
    changes = {"clusters": (6, 6, 12, 0), **arguments}
    trained = load_model(save_tiny_model(folder, **changes))
    with torch.no_grad():
        for parameter in trained.model.parameters():
            if parameter.ndim > 1:
                parameter.mul_(4)
    save_model(
        folder,
        trained.model,
        name=trained.name,
        model_args=MODEL_ARGS | changes,
        task=trained.task,
        classes=trained.classes,
        preprocess=trained.preprocess,
    )
    return str(folder)


def save_chosen(folder: str, method: str, *, beaten: str = "occlusion") -> str:
    """As if the method had been measured as the best, and another had lost to its controls."""
    content = {"method": method, "reason": REASON, "beats_controls": {method: True, beaten: False}, "images": 9}
    (Path(folder) / "explain.json").write_text(json.dumps(content | {"data": "somewhere/photos (val)"}))
    return folder


def save_refinement(folder: str, by_budget: dict[int, str], *, beaten: str = "grad_cam") -> str:
    """As if the methods had been measured, each more faithful than the one before, the last the best of all."""
    *_, best = by_budget.values()
    chosen = DefaultMethod(
        best,
        REASON,
        {best: True, beaten: False},
        "somewhere/photos (val)",
        9,
        by_budget,
        {
            name: Interval(0.1 * place, 0.1 * place - 0.05, 0.1 * place + 0.05)
            for place, name in enumerate(by_budget.values())
        },
    )
    store_default_method(folder, chosen)
    return folder


def steps_of(work: Generator[None, None, Any]) -> tuple[int, Any]:
    """How many steps long work takes, and its result."""
    count = 0
    while True:
        try:
            next(work)
        except StopIteration as end:
            return count, end.value
        count += 1


def as_inputs(explorer: Explorer, content: bytes) -> Tensor:
    """A picture of the model's size as the model sees it, put together by hand."""
    pixels = torch.from_numpy(np.array(Image.open(io.BytesIO(content)).convert("RGB"))).permute(2, 0, 1)
    return explorer.trained.preprocess.normalise(pixels / 255)[None]


class Reply(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def error(self) -> str:
        return json.loads(self.body)["error"]


def post(
    app: Any, path: str, pieces: Iterable[bytes], *, pause: float = 0, headers: dict[str, str] | None = None
) -> Reply:
    """Send a body in pieces, without a length, with a pause before each."""
    source = iter(pieces)

    async def receive() -> dict[str, Any]:
        await asyncio.sleep(pause)
        piece = next(source, None)
        return {"type": "http.request", "body": piece or b"", "more_body": piece is not None}

    sent = {"content-type": "application/octet-stream"} | (headers or {})
    return exchange(app, path, receive, method="POST", headers=sent)


def exchange(
    app: Any,
    path: str,
    receive: Callable[[], Awaitable[dict[str, Any]]],
    *,
    method: str = "GET",
    query: bytes = b"",
    headers: dict[str, str] | None = None,
) -> Reply:
    """Ask with what the client sends, or does, given as messages."""
    sent = {"host": "localhost"} | (headers or {})
    scope = {
        "type": "http",
        "method": method,
        "path": path,
        "raw_path": path.encode(),
        "query_string": query,
        "headers": [(name.encode(), value.encode()) for name, value in sent.items()],
        "http_version": "1.1",
        "scheme": "http",
        "server": ("localhost", 80),
        "client": ("127.0.0.1", 1),
    }
    messages = []

    async def send(message: dict[str, Any]) -> None:
        messages.append(message)

    asyncio.run(app(scope, receive, send))
    head = {name.decode().lower(): value.decode() for name, value in messages[0]["headers"]}
    return Reply(messages[0]["status"], head, b"".join(message.get("body", b"") for message in messages[1:]))


@contextmanager
def running(app):
    """The application on a free port, served by a thread."""
    with listen("127.0.0.1", 0) as listener:
        server = uvicorn.Server(uvicorn.Config(app, log_level="critical"))
        thread = threading.Thread(target=server.run, kwargs={"sockets": [listener]})
        thread.start()
        try:
            yield f"http://127.0.0.1:{listener.getsockname()[1]}"
        finally:
            server.should_exit = True
            thread.join()


def ranked(page, by="ablation"):
    """Everything about the picture has arrived, the exact order last."""
    page.wait("document.getElementById('clusters').getAttribute('aria-busy') === 'false'")
    anyway = "document.getElementById('idle').hidden || document.getElementById('show-anyway').click()"
    page.wait(f"({anyway}, document.getElementById('ranking-text').textContent.startsWith({json.dumps(by)}))")
    page.wait("document.getElementById('load').textContent !== ''")
