"""Suspects as a folder: a page for all, one for each that deserves a look, and all numbers with the regions to mend."""

from collections.abc import Collection, Sequence
from dataclasses import replace
from pathlib import Path

from PIL import Image
from torch import Tensor

from vitreous.clusters.layer import stretch
from vitreous.data.image_set import ImageSet
from vitreous.data.regions import Box, Region, region_of_picture
from vitreous.errors import InputError, command
from vitreous.explanations.dataset import read_batches
from vitreous.explanations.dense import picture_of_pixels
from vitreous.explanations.model_card import folder_of
from vitreous.files.storage import write_json
from vitreous.files.writing import write_text
from vitreous.reports.shortcuts import Shortcuts, Suspect, SuspectExample
from vitreous.reports.shortcuts_page import render_shortcuts, render_suspect
from vitreous.runs.model_folder import is_weights_file
from vitreous.runs.trained_model import TrainedModel, labelled_for
from vitreous.suspects.changes import Alike
from vitreous.suspects.finding import FoundShortcuts, Looked, seen_with_map
from vitreous.suspects.looks import grid_of_looks
from vitreous.suspects.verdict import HARMLESS, SERIOUS

SHORTCUTS_JSON, SHORTCUTS_PAGE = "shortcuts.json", "index.html"
HIDEABLE = ("place", "look")  # of suspects that can be hidden in any picture


def write_shortcuts(
    folder: Path, found: FoundShortcuts, trained: TrainedModel, images: ImageSet, out: Path
) -> Shortcuts:
    """Write everything into `folder`, which will become `out`; comes back with the examples drawn."""
    drawn = draw_examples(found, trained, images)
    suspects = tuple(
        with_examples(one, examples, look) for one, (examples, look) in zip(found.result.suspects, drawn, strict=True)
    )
    result = replace(found.result, suspects=suspects, page=out / SHORTCUTS_PAGE)
    pages = {number: f"suspect_{number:02d}.html" for number, one in enumerate(suspects, 1) if one.verdict != HARMLESS}
    regions = regions_of_suspects(suspects)
    stored = {region.name for region in regions}
    ways = {number: ways_to_mend(suspects[number - 1], result, trained.name, out, stored) for number in pages}
    write_text(folder / SHORTCUTS_PAGE, render_shortcuts(result, pages))
    for number, page in pages.items():
        write_text(folder / page, render_suspect(result, suspects[number - 1], ways[number], SHORTCUTS_PAGE))
    files = [SHORTCUTS_PAGE, *pages.values()]
    content = result.to_dict() | {"regions": [region.to_dict() for region in regions], "files": files}
    write_json(folder / SHORTCUTS_JSON, content)
    return result


def with_examples(one: Suspect, examples: Sequence[SuspectExample], look: Region | None) -> Suspect:
    """A look is looked for at the size of its box, so both come from the same picture."""
    drawn = replace(one, examples=tuple(examples))
    return drawn if look is None else replace(drawn, look=look.look, box=look.box)


def draw_examples(
    found: FoundShortcuts, trained: TrainedModel, images: ImageSet
) -> list[tuple[list[SuspectExample], Region | None]]:
    """Of suspects that get a page: the pictures whose answers lost most, read once more, and what they look like."""
    with_page = [one.verdict != HARMLESS for one in found.judged]
    numbers = sorted({one.number for lost, page in zip(found.lost, with_page, strict=True) if page for one in lost})
    known = labelled_for(trained, images)
    looked: dict[int, Looked] = {}
    for batch in read_batches(trained, known, numbers, 16, label="draw") if numbers else ():
        seen = seen_with_map(trained, batch, found.method, masks=found.masks)
        for row, number in enumerate(batch.numbers.tolist()):
            looked[number] = seen.row(row)
    drawn: list[tuple[list[SuspectExample], Region | None]] = []
    for judged, lost, page in zip(found.judged, found.lost, with_page, strict=True):
        change, own = judged.trial.candidate.change, [one for one in lost if page and one.number in looked]
        examples = []
        for one in own:
            hidden = change.hidden(looked[one.number].seen)
            examples.append(
                SuspectExample(
                    name=known.name(one.number),
                    picture=shown(trained, looked[one.number].seen.images[0]),
                    heat=stretch(looked[one.number].heat[0].clamp_min(0)).cpu().numpy(),
                    hidden=None if hidden is None else shown(trained, hidden[0]),
                    label=trained.classes[known.target(one.number)["labels"]],
                    answer=trained.classes[one.answer],
                    probability=one.probability,
                    answer_without=trained.classes[one.answer_without],
                    probability_without=one.probability_without,
                )
            )
        look = None
        if isinstance(change, Alike) and own:
            look = look_of(change, looked[own[0].number], examples[0])
        drawn.append((examples, look))
    return drawn


def shown(trained: TrainedModel, image: Tensor) -> Image.Image:
    """The picture behind an input (3, H, W); what was changed may leave the range of colours."""
    pixels = trained.preprocess.denormalise(image).clamp(0, 1).mul(255).round().byte()
    return picture_of_pixels(pixels.cpu())


def look_of(change: Alike, looked: Looked, example: SuspectExample) -> Region | None:
    """The part of a picture that looks most like the suspect, with a margin."""
    distance = change.look.distance(grid_of_looks(looked.seen.images, change.look.cells))[0]
    try:
        return region_of_picture("look", example.picture, around(int(distance.argmin()), change.look.cells))
    except InputError:  # of one colour: it would be found everywhere
        return None


def around(cell: int, cells: int) -> Box:
    """A cell with half a cell around it: the edge of a plain mark is a part of its look."""
    row, column = divmod(cell, cells)
    sides = (column - 0.5, row - 0.5, column + 1.5, row + 1.5)
    left, top, right, bottom = (min(max(side / cells, 0.0), 1.0) for side in sides)
    return left, top, right, bottom


def regions_of_suspects(suspects: Sequence[Suspect]) -> list[Region]:
    """Those to mend: of the serious suspects or, if none is, of those to look at."""
    located = [one for one in suspects if one.box is not None and one.kind in HIDEABLE]
    serious = [one for one in located if one.verdict == SERIOUS]
    regions = []
    for one in serious or [one for one in located if one.verdict != HARMLESS]:
        assert one.box is not None
        if one.kind == "place":
            regions.append(Region(one.name, one.box, "place", one.classes))
        elif one.look is not None:
            regions.append(Region(one.name, one.box, "look", one.classes, one.look))
    return regions


def ways_to_mend(
    one: Suspect, found: Shortcuts, architecture: str, out: Path, regions: Collection[str]
) -> list[tuple[str, str]]:
    """What to do next: a sentence and the command; `regions` are the names of those that are stored."""
    stored, mended = out / SHORTCUTS_JSON, ("--out", "runs/mended")
    mend = ("mend", found.model, "--data", found.data)
    in_folder = folder_of(found.model) is not None  # whose description `mend` can change
    weights = ("--weights", found.model) if in_folder or is_weights_file(found.model) else ("--pretrained",)
    train = ("train", architecture, found.data, *weights, "--epochs", 2)
    ways = []
    if one.kind in HIDEABLE and one.name in regions:
        quick = "Quick, without training: paint the region over in every picture before the model sees it."
        if in_folder:
            ways.append((quick, command(*mend, "--hide", stored, *mended)))
        lasting = "Lasting: train again, so that what lies there counts for nothing."
        ways.append((lasting, command(*train, "--attend-away", stored, *mended)))
    if one.kind == "cluster" and in_folder:
        number = one.name.split()[1].rstrip(",")
        closed = "Quick, without training: close the cluster for good."
        ways.append((closed, command(*mend, "--without-clusters", number, *mended)))
    if one.kind == "colour":
        varied = "Lasting: train again with colours that vary, so that they tell nothing."
        ways.append((varied, command(*train, "--color-jitter", "0.4", *mended)))
    else:
        known = (
            "the data know the object" if found.masks else "masks of the objects are beside the pictures (docs/data.md)"
        )
        looked = f"Lasting, where {known}: train again, to look at it and nowhere else."
        ways.append((looked, command(*train, "--attend-to", "masks", *mended)))
    return ways
