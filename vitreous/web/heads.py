"""What each head of an attention layer reads, of the whole picture or from one place in it.

Shapes: h heads, H W grid.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Response

from vitreous.attribution.looking import read_from
from vitreous.clusters.layer import stretch
from vitreous.errors import InputError
from vitreous.web.explorer import Answer, Explorer, packed, reduced
from vitreous.web.pictures import ServedPicture
from vitreous.web.worker import Urgency

if TYPE_CHECKING:
    from vitreous.web.app import Service

_Number = Annotated[int, Query(ge=0, le=9999)]
_ShareOrNone = Annotated[float | None, Query(ge=0, le=1)]


def head_routes(service: "Service") -> APIRouter:
    router = APIRouter(prefix="/api/images/{id}")

    @router.get("/heads")
    async def heads(id: str, view: _Number, x: _ShareOrNone = None, y: _ShareOrNone = None) -> Response:
        point = None if x is None or y is None else (x, y)
        work = partial(read_by_heads, service.explorer, service.pictures[id], view, point)
        return await service.answer(("heads", id, view, point), work, Urgency.LATER)

    return router


def read_by_heads(explorer: Explorer, item: ServedPicture, number: int, point: tuple[float, float] | None) -> Answer:
    """One map for each head: how much every place is read, by all places or by the one at the point."""
    known = list(explorer.head_views())
    if number >= len(known):
        raise InputError(f"view={number} was given; attention that can be seen here: {len(known)} layers, from 0")
    layer = known[number]
    maps = read_from(explorer.model, explorer.inputs(item), point, only=layer)[layer][0].cpu()  # (h, H, W)
    return {"view": number, "heads": len(maps), "highest": maps.max().item(), "map": packed(stretch(reduced(maps)))}
