"""How faithful each explanation method is to a model, over a data set.

vitreous score runs/demo shapes
"""

import time
from dataclasses import asdict, replace
from pathlib import Path

from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.held_out import VAL_FRACTION
from vitreous.errors import InputError, printable
from vitreous.evaluations.settings import open_for
from vitreous.explanations.learning import Lessons, checksums, learn_explainer, require_explainable
from vitreous.explanations.scores import ScoreSettings, score_run, scores_interrupted
from vitreous.runs.model_folder import explainer_folder_of, load_model
from vitreous.runs.results import require_positive
from vitreous.runs.trained_model import TrainedModel
from vitreous.runtime.console import format_duration
from vitreous.runtime.distributed import World, processes

TRAIN = "train"
DOUBTED_IMAGES = 50  # on which --learn measures what a method that has learned could flatter itself with


def score(
    model: str,
    data: str,
    *,
    method: tuple[str, ...] = (),
    split: str = "val",
    follow: bool = False,
    limit: int = 200,
    learn: bool = False,
    learn_steps: int | None = None,
    learn_limit: int = Lessons.limit,
    learn_seed: int = Lessons.seed,
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

    With --learn, a small network is first taught to explain the model, on pictures of the train split and without their
    labels. It is kept beside the weights: the map "learned" then costs one pass in every verb. It is scored on other
    pictures, and all methods also by what it was not taught: other ways to hide, and the class that came second.

    Several processes divide the images: torchrun --standalone --nproc-per-node 2 -m vitreous score runs/mine photos.
    After a kill, the same command does only what is missing, with any number of processes.

    Written to --out: faithfulness.md, faithfulness.json and two charts: all methods, and the frontier, which shows how
    faithful a map can be for how many passes. An earlier result there is replaced; any other content is left alone and
    refused. The most faithful method is stored beside the model's weights as its default, which explanations then show
    first, and so is the best for every number of passes (vitreous explain --budget).

    Examples:
        vitreous score runs/demo shapes
        vitreous score runs/mine photos --limit 50 --method grad_cam occlusion --out runs/mine/faithfulness
        vitreous score runs/mine photos --learn

    Args:
        model: Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous info).
        data: shapes, a folder with val/<class>/, or another layout (docs/data.md).
        method: Methods to measure, by name; default: all that fit the model. A wrong name lists them.
        split: Split of the data to use.
        follow: Open pictures that the files of the data name outside of its folder (.. or an absolute path).
        limit: Most images to measure on; of more, a selection evenly spread over them is taken.
        learn: Teach an explainer of this model first; one that is there is replaced.
        learn_steps: Of --learn: steps of 8 pictures. Default: 1,000, for pictures below 128 x 128 up to 3,000.
        learn_limit: Of --learn: most pictures of the train split to learn from.
        learn_seed: Of --learn: the same seed and pictures give the same explainer.
        batch_size: Images per forward pass; the result does not depend on it.
        size: Height and width the images are brought to; default: what the model was trained with.
        device: cpu, cuda, cuda:1, mps, or auto.
        architecture: Of a file: the name of its model, where the file does not tell.
        model_args: Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2.
        out: Folder to write to.

    Returns:
        The path of the table.
    """
    require_positive(limit=limit, batch_size=batch_size, learn_steps=learn_steps, learn_limit=learn_limit)
    with processes(device) as world:
        trained = world.agree(lambda: load_divided(world, model, architecture, model_args, size))
        trained, method = (with_held_out(trained), with_learned(method)) if learn else (trained, method)
        images = world.agree(lambda: open_for(trained, data, split, follow))
        asked = ScoreSettings(split, limit, method, batch_size, doubts=DOUBTED_IMAGES if learn else 0)
        if learn:
            lessons = Lessons(learn_steps, learn_limit, learn_seed)
            asked = world.on_main(lambda: learn_for(model, trained, data, images, asked, out, lessons, follow=follow))
        return score_run(model, trained, data, images, asked, out=out, world=world)


def load_divided(
    world: World, model: str, architecture: str | None, model_args: tuple[str, ...], size: int | None
) -> TrainedModel:
    """The model on the device of this process."""
    device = str(world.device)
    return load_model(model, architecture=architecture, model_args=model_args, size=size, device=device)


def with_learned(named: tuple[str, ...]) -> tuple[str, ...]:
    """What was just learned is scored too, whatever methods are named."""
    return tuple(dict.fromkeys((*named, "learned"))) if named else ()


def with_held_out(trained: TrainedModel) -> TrainedModel:
    """A part of data without splits must be left to learn from, also for a model that could be measured on all."""
    require_explainable(trained)
    return trained._replace(val_fraction=VAL_FRACTION) if trained.val_fraction == 1.0 else trained


def learn_for(
    model: str,
    trained: TrainedModel,
    data: str,
    scored: ImageSet,
    asked: ScoreSettings,
    out: Path,
    lessons: Lessons,
    *,
    follow: bool,
) -> ScoreSettings:
    """Teach an explainer on the train split, without the pictures that will be scored, and keep it.

    The settings of the score come back with the lessons. An explainer that was taught by the same command, of whose
    score there are parts, is not taught again.
    """
    place = explainer_folder_of(model)
    if place is None:
        raise InputError(
            f"--learn keeps what it learns beside the weights, and '{model}' is a name; give a run folder, a model "
            "folder or a file of weights"
        )
    start, train = time.perf_counter(), open_for(trained, data, TRAIN, follow)
    asked = replace(asked, lessons=asdict(lessons) | {"pictures": train.fingerprint})
    if scores_interrupted(trained, scored, asked, out):
        print(printable(f"explainer: {place}, learned before this score was interrupted"))
        return asked
    seen = checksums(trained, scored, asked.limit)
    learn_explainer(trained, train, place, data=f"{data} ({TRAIN})", scored=seen, lessons=lessons)
    print(printable(f"explainer: {place}, learned in {format_duration(time.perf_counter() - start)}"))
    return asked
