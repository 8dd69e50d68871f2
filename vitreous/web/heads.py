"""What each head of an attention layer reads, of the whole picture or from one place in it.

Shapes: h heads, H W grid.
"""

from functools import partial
from typing import TYPE_CHECKING, Annotated

from fastapi import APIRouter, Query, Response
from torch import Tensor

from vitreous.attribution.views import TapView, same, view_stacks
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
    known = explorer.head_views()
    if number >= len(known):
        raise InputError(f"view={number} was given; attention that can be seen here: {len(known)} layers, from 0")
    view = known[number]
    raw = view_stacks(explorer.model, explorer.inputs(item), [with_heads(view)])[view.tap][0].cpu()
    maps = raw if raw.ndim == 3 else of_queries(raw, point)
    return {"view": number, "heads": len(maps), "highest": maps.max().item(), "map": packed(stretch(reduced(maps)))}


def with_heads(view: TapView) -> TapView:
    return view._replace(kind=view.kind._replace(stack=same))


def of_queries(weights: Tensor, point: tuple[float, float] | None) -> Tensor:
    """(h, H W keys, H, W queries) -> (h, H, W): what is read by all queries, or by the one at a point."""
    rows, columns = weights.shape[2:]
    if point is None:
        read = weights.mean((2, 3))
    else:
        column, row = (min(int(share * side), side - 1) for share, side in zip(point, (columns, rows), strict=True))
        read = weights[:, :, row, column]
    return read.unflatten(1, (rows, columns))  # (h, H, W)
