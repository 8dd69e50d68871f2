"""What `vitreous evaluate` is asked for."""

from collections.abc import Callable
from dataclasses import KW_ONLY, dataclass
from functools import partial
from pathlib import Path
from typing import Annotated, Any, Literal

from typing_extensions import Doc

from vitreous.data.image_set import ImageSet
from vitreous.data.layouts.coco_anywhere import with_annotations
from vitreous.data.source import describe, open_data, recognise
from vitreous.errors import InputError
from vitreous.metrics.neighbours import VOTING_NEIGHBOURS, NeighbourAccuracy
from vitreous.runs.model_folder import load_classifier, load_model
from vitreous.runs.run_folder import RUN
from vitreous.runs.trained_model import TrainedModel, is_classifier
from vitreous.tasks.base import load_task
from vitreous.training.linear_probe import EPOCHS

OpenAtSize = Callable[..., ImageSet]  # opens the data at a size

_EVALUATION_FOLDER = "evaluation"  # of a run that is compared with an earlier one


@dataclass(frozen=True)
class EvaluateSettings:
    model: Annotated[
        str,
        Doc("Run folder, model folder, file of weights (.pth, .safetensors), or model name for its published ones."),
    ]
    data: Annotated[
        str,
        Doc(
            "shapes, shapes:hard, shapes:corner_mark=0.9, a folder with val/<class>/, or another layout: docs/data.md."
        ),
    ]
    _: KW_ONLY
    split: Annotated[str, Doc("val, test or train.")] = "val"
    size: Annotated[
        int | None,
        Doc(
            "Height and width in pixels, or the shorter side for detectors and segmenters; default: what the model was "
            "trained with."
        ),
    ] = None
    sizes: Annotated[
        tuple[int, ...],
        Doc("Measure at these sizes as well, to see how the model takes images larger or smaller than in training."),
    ] = ()
    groups: Annotated[
        tuple[str, ...],
        Doc(
            "Classification: accuracy in groups of images too, by columns of metadata.csv (of shapes with a planted "
            "shortcut: mark, agrees) or by class; several columns combine."
        ),
    ] = ()
    before: Annotated[
        str | None,
        Doc(
            "With --groups: another model, measured on the same images, to see what changed in every group. The report "
            "goes to the folder evaluation of the run, unless --out says where."
        ),
    ] = None
    knn: Annotated[
        bool,
        Doc(
            "Measure the model's features, not its answers: by their nearest neighbours among the training pictures. "
            "The data need labels and the model none."
        ),
    ] = False
    neighbours: Annotated[tuple[int, ...], Doc("With --knn: how many neighbours vote.")] = VOTING_NEIGHBOURS
    linear: Annotated[
        bool,
        Doc(
            "The same by a linear classifier, trained on the features of the training pictures with the learning rate "
            "that does best on a tenth of them."
        ),
    ] = False
    linear_epochs: Annotated[int, Doc("With --linear: passes over the features of the training pictures.")] = EPOCHS
    worst: Annotated[int, Doc("How many of the wrong answers with the largest confidence to list.")] = 10
    flip: Annotated[bool, Doc("Segmentation and keypoints: the mean with the answer about the mirrored picture.")] = (
        False
    )
    scales: Annotated[tuple[float, ...], Doc("Segmentation: the mean over the picture at these scales.")] = ()
    slide: Annotated[
        bool,
        Doc("Segmentation: windows of the size of the training crops, instead of the whole picture at once."),
    ] = False
    ignore: Annotated[
        tuple[int, ...],
        Doc("Values of label pictures that stand for no class; default: as in training, where that is 255 by default."),
    ] = ()
    reduce_zero_label: Annotated[
        bool,
        Doc(
            "In label pictures 0 stands for no class, and 1 for the first; default: as in training. Of these two, one "
            "that is given takes the place of both."
        ),
    ] = False
    batch_size: Annotated[int, Doc("Images per forward pass.")] = 64
    count: Annotated[int | None, Doc("How many images of `shapes` to draw.")] = None
    train_count: Annotated[
        int | None, Doc("With --knn and --linear: how many training images of `shapes` to draw.")
    ] = None
    quarantine: Annotated[
        Path | None, Doc("List of images to leave out; default: quarantine.txt in the data's folder, if there is one.")
    ] = None
    annotations: Annotated[tuple[str, ...], Doc("COCO files of the pictures below DATA, as in train.")] = ()
    val_fraction: Annotated[
        float | None,
        Doc(
            "Share held out as val of data without splits; default: as in training, and all of it for a model that was "
            "not trained on such data, such as a published one."
        ),
    ] = None
    boxes: Annotated[
        Path | None,
        Doc(
            "Keypoints: a list of COCO's results, or predictions.json of a detector: where it found objects in the "
            "data. All of them count, with the product of the detector's score and the keypoints' as score."
        ),
    ] = None
    follow: Annotated[
        bool, Doc("Open pictures that the data's own files name outside of the data's folder (.. or an absolute path).")
    ] = False
    workers: Annotated[int, Doc("Processes that prepare images; 0 = the main one does it.")] = 2
    device: Annotated[str, Doc("cpu, cuda, cuda:1, mps; auto takes the best there is.")] = "auto"
    architecture: Annotated[str | None, Doc("Of a file: the name of its model, where it does not tell it itself.")] = (
        None
    )
    model_args: Annotated[
        tuple[str, ...],
        Doc("Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2."),
    ] = ()
    amp: Annotated[Literal["off", "bf16", "fp16"], Doc("Mixed precision.")] = "off"
    json: Annotated[Path | None, Doc("Write the figures to this file too.")] = None
    markdown: Annotated[Path | None, Doc("Write the tables to this file too.")] = None
    out: Annotated[
        Path | None, Doc("Write figures, tables and pictures to this folder; an earlier evaluation there is replaced.")
    ] = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "data", with_annotations(self.data, self.annotations))
        if self.batch_size < 1:
            raise InputError(f"batch size {self.batch_size} cannot be used; it must be at least 1")
        if self.workers < 0:
            raise InputError(f"--workers {self.workers} cannot be used; give 0 (the main process does it) or more")
        if self.worst < 0:
            raise InputError(f"--worst {self.worst} cannot be used; give 0 (none) or more")
        if self.before is not None and not self.groups:
            raise InputError(
                f"--before {self.before} goes with --groups, which says what to compare; add --groups class"
            )

        if self.on_features:
            self._check_features()

    def _check_features(self) -> None:
        NeighbourAccuracy(1, self.neighbours)
        if self.linear_epochs < 1:
            raise InputError(f"--linear-epochs {self.linear_epochs} cannot be used; it must be at least 1")
        for name in ("sizes", "groups", "flip", "scales", "slide", "boxes"):
            if getattr(self, name):
                raise InputError(f"--{name} is about answers, and --knn and --linear are about features; leave one out")

    @property
    def on_features(self) -> bool:
        """Whether features are measured, not answers."""
        return self.knn or self.linear

    def load(self) -> TrainedModel:
        return load_model(
            self.model,
            architecture=self.architecture,
            model_args=self.model_args,
            size=self.size,
            features=self.on_features,
        )

    def load_before(self, trained: TrainedModel) -> TrainedModel | None:
        """The model to compare with; both must be classifiers, which alone have groups."""
        if self.groups and not is_classifier(trained):
            raise InputError(f"--groups is for classifiers, and '{self.model}' was trained for the task {trained.task}")
        return None if self.before is None else load_classifier(self.before, size=self.size, device="cpu")

    @property
    def report_folder(self) -> Path | None:
        run = Path(self.model)
        beside = self.before is not None and (run / RUN).is_file()
        return run / _EVALUATION_FOLDER if self.out is None and beside else self.out

    def data_opener(self, trained: TrainedModel) -> OpenAtSize:
        """Opens the data for the model's task; label pictures are read as is asked for, or else as in training."""
        task = load_task(trained.task)
        return partial(
            open_data,
            self.data,
            split=self.split,
            count=self.count,
            quarantine=self.quarantine,
            targets=task.targets,
            wording=task.wording(),
            val_fraction=trained.val_fraction if self.val_fraction is None else self.val_fraction,
            follow=self.follow,
            **label_reading(trained, self.data, self.ignore, self.reduce_zero_label),
        )


def label_reading(trained: TrainedModel, data: str, ignore: tuple[int, ...], reduce_zero_label: bool) -> dict[str, Any]:
    """What the values of label pictures stand for: as is asked for, or else as in training."""
    if ignore or reduce_zero_label:
        return {"ignore": ignore or None, "reduce_zero_label": reduce_zero_label}
    task = trained.build_task()
    return task.reading() if recognise(data, task.targets, task.wording()).class_values else {}


def open_for_task(
    trained: TrainedModel, data: str, split: str, follow: bool = False, val_fraction: float | None = None
) -> ImageSet:
    """The data for the model's task; label pictures are read, and val is held out by default, as in training."""
    task = load_task(trained.task)
    return open_data(
        data,
        split,
        size=trained.preprocess.size,
        targets=task.targets,
        val_fraction=trained.val_fraction if val_fraction is None else val_fraction,
        follow=follow,
        wording=task.wording(),
        **label_reading(trained, data, (), False),
    )


def open_for(trained: TrainedModel, data: str, split: str, follow: bool) -> ImageSet:
    """The same, and a line that says what it is."""
    images = open_for_task(trained, data, split, follow)
    print(describe(data, load_task(trained.task).targets, **{split: images}))
    return images
