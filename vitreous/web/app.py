"""The application: addresses, and what each status code means.

200 answered, 201 uploaded, 403 another site's page asked, 404 unknown address or picture, 408 the upload took too long,
413 it is too large, 415 it is not sent as a file, 421 a foreign host name, 422 a value or picture that cannot be used,
503 busy: try again. Every refusal is JSON with one sentence under "error". Nothing is read from disk to answer: the
files of the page are in memory, and pictures have ids.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Iterable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Annotated, Any

from fastapi import FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from vitreous.errors import InputError
from vitreous.web.explorer import Explorer
from vitreous.web.guard import BROKEN, BUSY, Guard, Limits, Refusal, Uploads, refusal_body
from vitreous.web.pictures import Pictures, Seen, UnknownPicture
from vitreous.web.worker import Answers, Busy, Worker

PAGE = {  # address -> file and kind
    "/": ("index.html", "text/html"),
    "/style.css": ("style.css", "text/css"),
    "/app.js": ("app.js", "text/javascript"),
    "/api.js": ("api.js", "text/javascript"),
    "/draw.js": ("draw.js", "text/javascript"),
    "/clusters.js": ("clusters.js", "text/javascript"),
}
LONGEST_NAME = 200
JSON = "application/json"
KEPT = {"Cache-Control": "private, max-age=3600"}

Stage = Annotated[int, Path(ge=1, le=99)]
StageOrNone = Annotated[int | None, Query(ge=1, le=99)]
Target = Annotated[int | None, Query(ge=0, le=999_999)]  # number of a class; default: the predicted one
Drawn = Annotated[int, Query(ge=1, le=50)]
Word = Annotated[str, Query(max_length=100)]


def create_app(
    explorer: Explorer, *, examples: Iterable[Seen] = (), limits: Limits | None = None, hosts: Collection[str] = ()
) -> ASGIApp:
    """The application around a model.

    Args:
        explorer: The model and what can be asked of it.
        examples: Pictures offered on the page.
        limits: What is refused.
        hosts: Names under which the server may be asked, besides localhost and numeric addresses.
    """
    limits = limits or Limits()
    worker = Worker(limits.waiting)
    answers, pictures, uploads = (
        Answers(worker, limits.answer_bytes),
        Pictures(examples, limits.picture_bytes),
        Uploads(limits),
    )

    @asynccontextmanager
    async def life(_app: FastAPI) -> AsyncIterator[None]:
        yield
        worker.close()

    # No generated documentation: its page loads scripts from elsewhere.
    app = FastAPI(lifespan=life, docs_url=None, redoc_url=None, openapi_url=None)
    add_refusals(app)
    add_page(app)

    async def ask(question: tuple[Any, ...], work: Callable[[], Any], *, later: bool = False) -> Response:
        return Response(await answers.get(question, partial(encoded, work), later=later), media_type=JSON)

    @app.get("/api/model")
    async def model() -> Response:
        extra = {"examples": [{"id": e.id, "name": e.name} for e in pictures.examples.values()]}
        limit = {"upload_bytes": limits.upload_bytes}
        return await ask(("model",), lambda: explorer.card() | extra | limit)

    @app.get("/api/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "unfinished": worker.unfinished}

    @app.post("/api/images", status_code=201)
    async def upload(request: Request, name: str = "picture") -> dict[str, str]:
        kind = request.headers.get("content-type", "application/octet-stream").lower()
        if not kind.startswith(("image/", "application/octet-stream")):
            raise Refusal(
                415, f"{kind[:80]!r} was sent; send the bytes of the picture itself as image/* or octet-stream"
            )
        content = await uploads.read(request)
        shown = "".join(letter if letter.isprintable() else " " for letter in name)[:LONGEST_NAME] or "picture"
        item = await asyncio.wrap_future(worker.submit(partial(explorer.receive, content, shown)))
        pictures.add(item)
        return {"id": item.id, "name": item.name}

    @app.get("/api/images/{id}")
    async def predict(id: str) -> Response:
        return await ask(("predict", id), partial(explorer.predict, pictures[id]))

    @app.get("/api/images/{id}/picture.png")
    async def picture(id: str, target: Target = None) -> Response:
        item = pictures[id]
        content = (
            item.png if target is None else await answers.get(("png", id, target), lambda: explorer.png(item, target))
        )
        return Response(content, media_type="image/png", headers=KEPT)

    @app.get("/api/images/{id}/drawing.png")
    async def drawing(id: str) -> Response:
        return Response(explorer.drawing(pictures[id]), media_type="image/png", headers=KEPT)

    @app.get("/api/images/{id}/stages/{stage}")
    async def stage(id: str, stage: Stage, target: Target = None) -> Response:
        return await ask(("stage", id, stage, target), partial(explorer.stage, pictures[id], stage, target))

    @app.get("/api/images/{id}/stages/{stage}/importance")
    async def importance(id: str, stage: Stage, by: Word, target: Target = None) -> Response:
        work = partial(explorer.importance, pictures[id], stage, target, by)
        return await ask(("importance", id, stage, target, by), work, later=True)

    @app.get("/api/images/{id}/stages/{stage}/ablation")
    async def ablation(id: str, stage: Stage, off: str = "", target: Target = None) -> Response:
        removed = cluster_numbers(off)
        work = partial(explorer.ablate, pictures[id], stage, target, removed)
        return await ask(("ablation", id, stage, target, removed), work)

    @app.get("/api/images/{id}/load")
    async def load(id: str, target: Target = None) -> Response:
        return await ask(("load", id, target), partial(explorer.load, pictures[id], target), later=True)

    @app.get("/api/images/{id}/heat")
    async def heat(id: str, method: Word, stage: StageOrNone = None, target: Target = None) -> Response:
        work = partial(explorer.heat, pictures[id], method, stage, target)
        return await ask(("heat", id, method, stage, target), work, later=True)

    @app.get("/api/images/{id}/faithfulness")
    async def faithfulness(id: str, method: Word, target: Target = None) -> Response:
        work = partial(explorer.faithfulness, pictures[id], method, target)
        return await ask(("faithfulness", id, method, target), work, later=True)

    @app.get("/api/images/{id}/report.html")
    async def report(id: str, stage: StageOrNone = None, target: Target = None, top_k: Drawn = 6) -> Response:
        item = pictures[id]
        html = await answers.get(
            ("report", id, stage, target, top_k),
            lambda: explorer.report(item, stage, target, top_k).encode(),
            later=True,
        )
        return Response(
            html, media_type="text/html", headers={"Content-Disposition": 'attachment; filename="report.html"'}
        )

    return Guard(app, hosts={"localhost", *hosts}, concurrent=limits.concurrent)


def encoded(work: Callable[[], Any]) -> Any:
    """The answer as JSON, made on the model's thread so that the one that talks to the network stays free."""
    result = work()
    return as_json(result) if isinstance(result, dict) else in_steps(result)


def in_steps(steps: Any) -> Any:
    return as_json((yield from steps))


def as_json(answer: dict[str, Any]) -> bytes:
    return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()


def cluster_numbers(text: str) -> tuple[int, ...]:
    """Clusters as written in an address: 3,7."""
    words = [word for word in text.split(",") if word]
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and len(word) < 7)]
    if wrong:
        raise InputError(f"off={text[:80]!r} was given; write numbers of clusters with commas between them: off=3,7")
    return tuple(sorted({int(word) for word in words}))


def add_page(app: FastAPI) -> None:
    folder = files("vitreous.web").joinpath("static")

    def serve(address: str, name: str, kind: str) -> None:
        content = folder.joinpath(name).read_bytes()

        @app.get(address)
        async def page() -> Response:
            return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    for address, (name, kind) in PAGE.items():
        serve(address, name, kind)


def add_refusals(app: FastAPI) -> None:
    """Every error as one sentence for the person before the page."""

    def on(error: type[Exception], status: int, message: Callable[[Any], str]) -> None:
        @app.exception_handler(error)
        async def answer(_request: Request, raised: Exception) -> Response:
            return refusal(Refusal(status, message(raised)))

    @app.exception_handler(Refusal)
    async def refused(_request: Request, raised: Refusal) -> Response:
        return refusal(raised)

    @app.exception_handler(Busy)
    async def busy(_request: Request, _raised: Busy) -> Response:
        return refusal(Refusal(503, BUSY, retry=True))

    @app.exception_handler(HTTPException)
    async def unknown(request: Request, raised: HTTPException) -> Response:
        words = {404: "there is nothing at this address", 405: f"{request.method} is not possible at this address"}
        return refusal(Refusal(raised.status_code, words.get(raised.status_code, str(raised.detail))))

    on(InputError, 422, str)
    on(RequestValidationError, 422, bad_value)
    on(UnknownPicture, 404, lambda _: "this picture is not, or no longer, on the server; choose or upload it again")
    on(Exception, 500, lambda _: BROKEN)


def refusal(what: Refusal) -> Response:
    return Response(refusal_body(what), what.status, what.headers, JSON)


def bad_value(raised: RequestValidationError) -> str:
    first = raised.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return f"{where}: {first['msg'].lower()}; given: {str(first.get('input'))[:80]!r}"
