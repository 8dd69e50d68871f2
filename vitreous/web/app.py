"""The application: addresses, and what each status code means.

200 answered, 201 uploaded, 403 asked by another site's page, 404 unknown address or picture, 408 the upload took too
long, 413 it is too large, 415 it is not sent as a file, 421 a foreign host name, 422 unusable value or picture,
503 busy: try again. Every refusal is JSON with one sentence under "error". No request reads from disk: the files of
the page are in memory, and pictures have ids.
"""

import asyncio
import json
from collections.abc import AsyncIterator, Callable, Collection, Generator, Iterable
from contextlib import asynccontextmanager
from functools import partial
from importlib.resources import files
from typing import Annotated, Any, NamedTuple

from fastapi import APIRouter, FastAPI, Path, Query, Request, Response
from fastapi.exceptions import RequestValidationError
from starlette.exceptions import HTTPException
from starlette.types import ASGIApp

from vitreous.errors import InputError
from vitreous.web.explorer import Explorer
from vitreous.web.guard import BROKEN, BUSY, Guard, Limits, RefusedRequest, Uploads, refusal_body
from vitreous.web.heads import head_routes
from vitreous.web.pictures import Pictures, ServedPicture, UnknownPicture
from vitreous.web.places import place_routes
from vitreous.web.worker import AnswerCache, Busy, Urgency, Worker

_SCRIPTS = (
    *("address", "api", "app", "beside", "clusters", "draw", "heads", "methods", "pictures", "places", "terms"),
    "viewer",
)
STATIC_FILES = {  # address -> package, file and media type
    "/": ("vitreous.web", "static/index.html", "text/html"),
    **{f"/{name}.css": ("vitreous.web", f"static/{name}.css", "text/css") for name in ("style", "subject", "places")},
    **{f"/{name}.js": ("vitreous.web", f"static/{name}.js", "text/javascript") for name in _SCRIPTS},
    "/page.css": ("vitreous.reports", "templates/page.css", "text/css"),  # these are the same as in a report
    "/heat.js": ("vitreous.reports", "templates/heat.js", "text/javascript"),
}
BESIDE = "/beside"
LONGEST_UPLOAD_NAME = 200  # letters
_JSON = "application/json"
_CACHED = {"Cache-Control": "private, max-age=3600"}

_Stage = Annotated[int, Path(ge=1, le=99)]
_StageOrNone = Annotated[int | None, Query(ge=1, le=99)]
_Target = Annotated[int | None, Query(ge=0, le=999_999)]  # number of a class; default: the predicted one
_TopK = Annotated[int, Query(ge=1, le=50)]
_Share = Annotated[float, Query(ge=0, le=1)]
_Word = Annotated[str, Query(max_length=100)]


class Service(NamedTuple):
    """The model, the pictures it is asked about, and the queue before it."""

    explorer: Explorer
    limits: Limits
    worker: Worker
    answers: AnswerCache
    pictures: Pictures
    uploads: Uploads

    async def answer(
        self, question: tuple[Any, ...], work: Callable[[], Any], urgency: Urgency = Urgency.NOW
    ) -> Response:
        return Response(await self.answers.get(question, partial(encoded, work), urgency), media_type=_JSON)

    async def answer_in_background(
        self, request: Request, question: tuple[Any, ...], work: Callable[[], Any]
    ) -> Response:
        """Whenever nothing else is to be done, and only as long as the client waits for it."""
        answer = asyncio.ensure_future(self.answer(question, work, Urgency.IDLE))
        gone = asyncio.ensure_future(disconnected(request))
        try:
            await asyncio.wait({answer, gone}, return_when=asyncio.FIRST_COMPLETED)
            return answer.result() if answer.done() else Response(status_code=204)  # which nobody reads
        finally:
            for task in (answer, gone):
                task.cancel()


def create_app(
    explorer: Explorer,
    *,
    examples: Iterable[ServedPicture] = (),
    beside: tuple[Explorer, Iterable[ServedPicture]] | None = None,
    limits: Limits | None = None,
    hosts: Collection[str] = (),
) -> ASGIApp:
    """The application around a model.

    Args:
        explorer: The model and what can be asked of it.
        examples: Pictures offered on the page.
        beside: A second model and the same examples as it sees them; it answers under /beside.
        limits: What is refused.
        hosts: Names under which the server may be asked, besides localhost and numeric addresses.
    """
    limits = limits or Limits()
    uploads = Uploads(limits)
    services = {"": make_service(explorer, examples, limits, uploads)}
    if beside is not None:
        services[BESIDE] = make_service(*beside, limits, uploads)

    @asynccontextmanager
    async def lifespan(_app: FastAPI) -> AsyncIterator[None]:
        yield
        for service in services.values():
            service.worker.close()

    # No generated documentation: its page loads scripts from elsewhere.
    app = FastAPI(lifespan=lifespan, docs_url=None, redoc_url=None, openapi_url=None)
    add_refusals(app)
    app.include_router(page_routes())
    for prefix, service in services.items():
        other = BESIDE if prefix == "" and beside is not None else None
        for routes in (model_routes(service, other), picture_routes(service), explanation_routes(service)):
            app.include_router(routes, prefix=prefix)
        for routes in (place_routes(service), head_routes(service)):
            app.include_router(routes, prefix=prefix)
    return Guard(app, hosts={"localhost", *hosts}, concurrent=limits.concurrent)


def make_service(explorer: Explorer, examples: Iterable[ServedPicture], limits: Limits, uploads: Uploads) -> Service:
    worker = Worker(limits.waiting)
    answers, pictures = AnswerCache(worker, limits.answer_bytes), Pictures(examples, limits.picture_bytes)
    return Service(explorer, limits, worker, answers, pictures, uploads)


def page_routes() -> APIRouter:
    """The files of the page, read once."""
    router = APIRouter()

    def add(address: str, content: bytes, kind: str) -> None:
        @router.get(address)
        async def page() -> Response:
            return Response(content, media_type=kind, headers={"Cache-Control": "no-cache"})

    for address, (package, name, kind) in STATIC_FILES.items():
        add(address, files(package).joinpath(name).read_bytes(), kind)
    return router


def model_routes(service: Service, beside: str | None = None) -> APIRouter:
    """`beside`: where another model answers about the same pictures."""
    router = APIRouter(prefix="/api")

    @router.get("/model")
    async def model() -> Response:
        extra = {"examples": [{"id": e.id, "name": e.name} for e in service.pictures.examples.values()]}
        more = extra | {"upload_bytes": service.limits.upload_bytes, "beside": beside}
        return await service.answer(("model",), lambda: service.explorer.card() | more)

    @router.get("/health")
    async def health() -> dict[str, Any]:
        return {"status": "ok", "unfinished": service.worker.unfinished}

    return router


def picture_routes(service: Service) -> APIRouter:
    """Uploads, and what is shown of a picture as it is."""
    explorer, pictures = service.explorer, service.pictures
    router = APIRouter(prefix="/api/images")

    @router.post("", status_code=201)
    async def upload(request: Request, name: str = "picture") -> dict[str, str]:
        kind = request.headers.get("content-type", "application/octet-stream").lower()
        if not kind.startswith(("image/", "application/octet-stream")):
            raise RefusedRequest(
                415, f"{kind[:80]!r} was sent; send the bytes of the picture itself as image/* or octet-stream"
            )
        content = await service.uploads.read(request)
        shown = "".join(letter if letter.isprintable() else " " for letter in name)[:LONGEST_UPLOAD_NAME] or "picture"
        item = await asyncio.wrap_future(service.worker.submit(partial(explorer.receive, content, shown)).future)
        pictures.add(item)
        return {"id": item.id, "name": item.name}

    @router.get("/{id}")
    async def predict(id: str) -> Response:
        return await service.answer(("predict", id), partial(explorer.predict, pictures[id]))

    @router.get("/{id}/picture.png")
    async def picture(id: str, target: _Target = None) -> Response:
        item = pictures[id]
        marked = partial(explorer.png, item, target)
        content = item.png if target is None else await service.answers.get(("png", id, target), marked)
        return Response(content, media_type="image/png", headers=_CACHED)

    @router.get("/{id}/sharp.jpg")
    async def sharp(id: str) -> Response:
        content = pictures[id].sharp
        if content is None:
            raise UnknownPicture(id)
        return Response(content, media_type="image/jpeg", headers=_CACHED)

    @router.get("/{id}/drawing.png")
    async def drawing(id: str) -> Response:
        return Response(explorer.drawing(pictures[id]), media_type="image/png", headers=_CACHED)

    @router.get("/{id}/pointed")
    async def pointed(id: str, x: _Share, y: _Share) -> Response:
        return await service.answer(("pointed", id, x, y), partial(explorer.pointed, pictures[id], x, y))

    return router


def explanation_routes(service: Service) -> APIRouter:
    """Clusters, maps and the report of a picture."""
    explorer, pictures, answer = service.explorer, service.pictures, service.answer
    router = APIRouter(prefix="/api/images/{id}")

    @router.get("/stages/{stage}")
    async def stage(id: str, stage: _Stage, target: _Target = None) -> Response:
        return await answer(("stage", id, stage, target), partial(explorer.stage, pictures[id], stage, target))

    @router.get("/stages/{stage}/importance")
    async def importance(id: str, stage: _Stage, by: _Word, target: _Target = None) -> Response:
        work = partial(explorer.importance, pictures[id], stage, target, by)
        return await answer(("importance", id, stage, target, by), work, Urgency.LATER)

    @router.get("/stages/{stage}/ablation")
    async def ablation(id: str, stage: _Stage, off: str = "", target: _Target = None) -> Response:
        removed = cluster_numbers(off)
        work = partial(explorer.ablate, pictures[id], stage, target, removed)
        return await answer(("ablation", id, stage, target, removed), work)

    @router.get("/load")
    async def load(id: str, target: _Target = None) -> Response:
        return await answer(("load", id, target), partial(explorer.load, pictures[id], target), Urgency.LATER)

    @router.get("/heat")
    async def heat(
        request: Request,
        id: str,
        method: _Word,
        stage: _StageOrNone = None,
        target: _Target = None,
        background: bool = False,
    ) -> Response:
        work, question = (
            partial(explorer.heat, pictures[id], method, stage, target),
            ("heat", id, method, stage, target),
        )
        if background:
            return await service.answer_in_background(request, question, work)
        return await answer(question, work, Urgency.LATER)

    @router.get("/faithfulness")
    async def faithfulness(
        request: Request, id: str, method: _Word, target: _Target = None, background: bool = False
    ) -> Response:
        work = partial(explorer.faithfulness, pictures[id], method, target)
        question = ("faithfulness", id, method, target)
        if background:
            return await service.answer_in_background(request, question, work)
        return await answer(question, work, Urgency.LATER)

    @router.get("/report.html")
    async def report(id: str, stage: _StageOrNone = None, target: _Target = None, top_k: _TopK = 6) -> Response:
        item = pictures[id]
        html = await service.answers.get(
            ("report", id, stage, target, top_k),
            lambda: explorer.report(item, stage, target, top_k).encode(),
            Urgency.LATER,
        )
        name = {"Content-Disposition": 'attachment; filename="report.html"'}
        return Response(html, media_type="text/html", headers=name)

    return router


def encoded(work: Callable[[], Any]) -> Generator[None, None, bytes]:
    """The answer as JSON, made on the model's thread so that the one that serves the network stays free."""
    result = work()
    answer = result if isinstance(result, dict) else (yield from result)
    return json.dumps(answer, allow_nan=False, separators=(",", ":")).encode()


async def disconnected(request: Request) -> None:
    """Returns when the client has gone."""
    while (await request.receive())["type"] != "http.disconnect":
        pass


def cluster_numbers(text: str) -> tuple[int, ...]:
    """Clusters as written in an address: 3,7."""
    words = [word for word in text.split(",") if word]
    wrong = [word for word in words if not (word.isascii() and word.isdigit() and len(word) < 7)]
    if wrong:
        raise InputError(f"off={text[:80]!r} was given; write numbers of clusters with commas between them: off=3,7")
    return tuple(sorted({int(word) for word in words}))


def add_refusals(app: FastAPI) -> None:
    """Every error as one sentence for the person before the page."""

    def on(error: type[Exception], refused: Callable[[Request, Any], RefusedRequest]) -> None:
        @app.exception_handler(error)
        async def answer(request: Request, raised: Exception) -> Response:
            what = refused(request, raised)
            return Response(refusal_body(what), what.status, what.headers, _JSON)

    unknown = "this picture is not, or no longer, on the server; choose or upload it again"
    on(RefusedRequest, lambda _, raised: raised)
    on(Busy, lambda *_: RefusedRequest(503, BUSY, retry=True))
    on(HTTPException, bad_address)
    on(InputError, lambda _, raised: RefusedRequest(422, str(raised)))
    on(RequestValidationError, bad_value)
    on(UnknownPicture, lambda *_: RefusedRequest(404, unknown))
    on(Exception, lambda *_: RefusedRequest(500, BROKEN))


def bad_address(request: Request, raised: HTTPException) -> RefusedRequest:
    words = {404: "there is nothing at this address", 405: f"{request.method} is not possible at this address"}
    return RefusedRequest(raised.status_code, words.get(raised.status_code, str(raised.detail)))


def bad_value(_request: Request, raised: RequestValidationError) -> RefusedRequest:
    first = raised.errors()[0]
    where = ".".join(str(part) for part in first["loc"][1:])
    return RefusedRequest(422, f"{where}: {first['msg'].lower()}; given: {str(first.get('input'))[:80]!r}")
