"""What if a place were hidden? The user marks one: what does any model then say, and which examples use it?

It is hidden as `vitreous shortcuts` hides it. The answer about all examples also holds the mark as a region, as files
of regions keep it (`data.regions`).
"""

import math
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import torch
from fastapi import APIRouter, Query, Response
from torch import Tensor

from vitreous.data.regions import Box, region_of_picture
from vitreous.errors import InputError
from vitreous.suspects.candidates import place_in_words
from vitreous.suspects.changes import Place, Seen
from vitreous.web.explorer import Answer, Explorer, Steps
from vitreous.web.pictures import ServedPicture
from vitreous.web.worker import Urgency

if TYPE_CHECKING:
    from vitreous.web.app import Service

SMALLEST_MARK = 0.02  # of the picture: less was hardly meant, and hides nothing


def place_routes(service: "Service") -> APIRouter:
    router = APIRouter(prefix="/api/images/{id}")

    @router.get("/hidden")
    async def hidden(
        id: str,
        box: Annotated[str, Query(max_length=100)],
        target: Annotated[int | None, Query(ge=0, le=999_999)] = None,
    ) -> Response:
        marked = parse_box(box)
        work = partial(hide, service.explorer, service.pictures[id], target, marked)
        return await service.answer(("hidden", id, marked, target), work)

    @router.get("/place")
    async def place(id: str, box: Annotated[str, Query(max_length=100)]) -> Response:
        marked, item = parse_box(box), service.pictures[id]
        others = [one for one in service.pictures.examples.values() if one.id != id]
        work = partial(pictures_using, service.explorer, item, others, marked)
        return await service.answer(("place", id, marked), work, Urgency.LATER)

    return router


def pictures_using(explorer: Explorer, item: ServedPicture, others: Sequence[ServedPicture], box: Box) -> Steps:
    """What hiding a box does to this picture and to others; those that lose most come first."""
    if explorer.trained.build_task().has_findings:
        raise InputError("places are hidden for classifiers only; this model finds things")
    rows = []
    for one in (item, *others):
        rows.append(without_place(explorer, one, box))
        yield  # other questions get a chance between two pictures
    first, *rest = rows
    rest.sort(key=lambda row: row["after"] - row["before"])
    changed = sum(row["changed"] for row in rest)
    name = place_in_words(box)
    return {"name": name, "box": list(box), "own": first, "pictures": rest, "changed": changed} | as_regions(
        item, name, box
    )


def without_place(explorer: Explorer, item: ServedPicture, box: Box) -> Answer:
    """The answer about a picture with and without what is in the box."""
    with torch.no_grad():
        before = explorer.model(explorer.inputs(item)).softmax(1)
        answer = before.argmax(1)
        after = explorer.model(without_box(explorer, item, box)).softmax(1)
    number, classes = int(answer), explorer.trained.classes
    return {
        "id": item.id,
        "name": item.name,
        "answer": classes[number],
        "before": before[0, number].item(),
        "after": after[0, number].item(),
        "becomes": classes[int(after.argmax(1))],
        "changed": bool(after.argmax(1) != answer),
    }


def hide(explorer: Explorer, item: ServedPicture, number: int | None, box: Box) -> Answer:
    """The answer of any model about the picture with a box hidden."""
    before, network = explorer.output(item), explorer.network(item)
    target = explorer.target(item, number, before).on("log_odds")
    with torch.no_grad():
        after = network(without_box(explorer, item, box))
        scores = {"log_odds": target(after).item(), "log_odds_before": target(before).item()}
    return explorer.compared(item, target, before, after) | {"name": place_in_words(box), "box": list(box)} | scores


def without_box(explorer: Explorer, item: ServedPicture, box: Box) -> Tensor:
    """(1, 3, H, W) as the model sees it, the box filled with a blur of its surroundings."""
    images = explorer.inputs(item)
    known, everywhere = torch.zeros(1, dtype=torch.bool), torch.ones_like(images[:, :1])
    return Place(box).hidden(Seen(images, everywhere, known, torch.zeros(1, dtype=torch.long)))


def as_regions(item: ServedPicture, name: str, box: Box) -> Answer:
    """The mark by its place and, where it has one that can be found again, by its look."""
    place = {"name": name, "box": list(box), "match": "place"}
    try:
        return {"region": place, "look": region_of_picture(name, item.picture, box).to_dict()}
    except InputError:  # of one colour, it would be found everywhere
        return {"region": place, "look": None}


def parse_box(text: str) -> Box:
    """A box as written in an address: 0,0,0.25,0.25."""
    accepted = "write left,top,right,bottom in shares of the picture, as in box=0,0,0.25,0.25"
    try:
        left, top, right, bottom = (float(word) for word in text.split(","))
    except ValueError:
        raise InputError(f"box={text!r} was given; {accepted}") from None
    if not all(math.isfinite(side) and 0 <= side <= 1 for side in (left, top, right, bottom)):
        raise InputError(f"box={text!r} lies outside of the picture; {accepted}")
    if right - left < SMALLEST_MARK or bottom - top < SMALLEST_MARK:
        raise InputError(f"box={text!r} is too small to hide anything; drag a larger one")
    return left, top, right, bottom
