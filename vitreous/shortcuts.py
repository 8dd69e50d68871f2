"""Does a model take shortcuts? What its answers hang on besides the object, over a data set.

vitreous shortcuts runs/demo shapes
"""

from pathlib import Path

from vitreous.errors import printable
from vitreous.evaluations.settings import open_for
from vitreous.explanations.default_method import read_default_method
from vitreous.explanations.model_card import refresh_card
from vitreous.reports.shortcuts import Shortcuts, shortcuts_in_words
from vitreous.runs.model_folder import load_model
from vitreous.runs.results import require_positive, result_folder
from vitreous.suspects.finding import find_shortcuts
from vitreous.suspects.folder import SHORTCUTS_JSON, write_shortcuts


def shortcuts(
    model: str,
    data: str,
    *,
    split: str = "val",
    follow: bool = False,
    limit: int | None = 400,
    masks: bool = True,
    batch_size: int = 64,
    size: int | None = None,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
    out: Path = Path("shortcuts"),
) -> Shortcuts:
    """Look for shortcuts that a classifier takes: a watermark, a ruler beside the lesion, grass behind the cow.

    Half of the pictures propose suspects: places and looks that the model's maps point at again and again, the colour
    of the picture, its background, clusters. The other half tries them: each is hidden in all pictures and the changed
    answers are counted, beside as much hidden elsewhere; then it is exchanged between pictures, which tells a mark from
    an object. Where the data know the object, it is left untouched. Memory does not grow with the data.

    Written to --out: index.html, a page for each suspect that deserves a look, and shortcuts.json with all numbers and
    the regions, which vitreous mend --hide and vitreous train --attend-away read. An earlier result there is replaced;
    any other content is left alone and refused. What deserves a look is also noted beside the model's weights, for its
    card (README.md) and for reports of vitreous explain.

    Examples:
        vitreous shortcuts runs/demo shapes
        vitreous shortcuts runs/mine photos --limit 1000 --out runs/mine/shortcuts
        vitreous shortcuts runs/mine photos --split train

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous info).
        data: shapes, a folder with val/<class>/, or another layout (docs/data.md).
        split: Split of the data to use.
        follow: Open pictures that the files of the data name outside of its folder (.. or an absolute path).
        limit: Most images to use, evenly spread over the data.
        masks: Use the masks of objects, where the data know them.
        batch_size: Images per forward pass.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where the file does not tell.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.
        out: Folder to write to.

    Returns:
        The suspects, the worst first, and the path of the page.
    """
    require_positive(batch_size=batch_size, **({} if limit is None else {"limit": limit}))
    trained = load_model(model, architecture=architecture, model_args=model_args, size=size, device=device)
    images = open_for(trained, data, split, follow)
    with result_folder(out, SHORTCUTS_JSON) as staging:
        found = find_shortcuts(
            model,
            trained,
            data,
            images,
            read_default_method(model),
            split=split,
            limit=limit,
            masks=masks,
            batch_size=batch_size,
        )
        result = write_shortcuts(staging, found, trained, images, out)
    refresh_card(model, result)
    for line in shortcuts_in_words(result):
        print(printable(f"\n{line}", keep="\n"))
    print(printable(f"\nshortcuts: {result.page}", keep="\n"))
    return result
