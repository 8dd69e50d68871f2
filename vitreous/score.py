"""How faithful each explanation method is to a model, over a data set.

vitreous score runs/demo shapes
"""

from pathlib import Path

from vitreous.data.image_set import ImageSet
from vitreous.data.source import describe, open_data
from vitreous.evaluate import label_reading
from vitreous.explanations.scores import score_run
from vitreous.runs.model_folder import load_model
from vitreous.runs.results import require_positive
from vitreous.runs.trained_model import TrainedModel
from vitreous.tasks.base import load_task


def score(
    model: str,
    data: str,
    *,
    method: tuple[str, ...] = (),
    split: str = "val",
    follow: bool = False,
    limit: int = 200,
    batch_size: int = 8,
    size: int | None = None,
    device: str = "auto",
    architecture: str | None = None,
    model_args: tuple[str, ...] = (),
    out: Path = Path("faithfulness"),
) -> Path:
    """Measure over a data set how faithful each explanation method is to a model.

    Every method and its controls are measured by insertion and deletion, by stability, by likeness to the map of random
    weights and, where the data know the object, by how well the map lies on it; with bootstrap intervals. Of a
    detector, a segmenter or a keypoint model the best finding of every image is explained; images in which nothing is
    found are left out.

    Written to --out: faithfulness.md, faithfulness.json and two charts: all methods, and the frontier, which shows how
    faithful a map can be for how many passes. An earlier result there is replaced; any other content is left alone and
    refused. The most faithful method is stored beside the model's weights as its default, which explanations then show
    first, and so is the best for every number of passes (vitreous explain --budget).

    Examples:
        vitreous score runs/demo shapes
        vitreous score runs/mine photos --limit 50 --method grad_cam occlusion --out runs/mine/faithfulness

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous info).
        data: shapes, a folder with val/<class>/, or another layout (docs/data.md).
        method: Methods to measure, by name; default: all that fit the model. A wrong name lists them.
        split: Split of the data to use.
        follow: Open pictures that the files of the data name outside of its folder (.. or an absolute path).
        limit: Most images to measure on; of more, a selection evenly spread over them is taken.
        batch_size: Images per forward pass; the result does not depend on it.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where the file does not tell.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.
        out: Folder to write to.

    Returns:
        The path of the table.
    """
    require_positive(limit=limit, batch_size=batch_size)
    trained = load_model(model, architecture=architecture, model_args=model_args, size=size, device=device)
    images = open_for(trained, data, split, follow)
    return score_run(
        model, trained, data, images, split=split, limit=limit, methods=method, batch_size=batch_size, out=out
    )


def open_for(trained: TrainedModel, data: str, split: str, follow: bool) -> ImageSet:
    """The data for the model's task, with label pictures read as in training."""
    task = load_task(trained.task)
    images = open_data(
        data,
        split,
        size=trained.preprocess.size,
        targets=task.targets,
        val_fraction=trained.val_fraction,
        follow=follow,
        wording=task.wording(),
        **label_reading(trained, data, (), False),
    )
    print(describe(data, task.targets, **{split: images}))
    return images
