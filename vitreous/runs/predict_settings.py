"""What `vitreous predict` is asked for."""

from dataclasses import KW_ONLY, dataclass
from pathlib import Path
from typing import Annotated

from typing_extensions import Doc

from vitreous.runs.default_model import DEFAULT_MODEL
from vitreous.runs.results import require_positive, require_writable
from vitreous.tasks.base import Inference


@dataclass(frozen=True)
class PredictSettings:
    model: Annotated[
        str,
        Doc(
            "Run folder, model folder, file of weights (.pth, .safetensors) or model name (see: vitreous "
            "info). In Python also what `vitreous.load_model` gives. Left out, pictures first: a public PaCa, fetched "
            "once."
        ),
    ] = DEFAULT_MODEL
    images: Annotated[
        tuple[str, ...],
        Doc(
            "Files, folders, patterns such as 'photos/*.jpg', tar shards, Parquet files with pictures as "
            "bytes, or samples of the embedded data: shapes:val:0-7; or a video. In Python also pictures "
            "in memory."
        ),
    ] = ()
    _: KW_ONLY
    out: Annotated[Path | None, Doc("Folder for predictions.json and one drawing per image, or for the shards.")] = None
    jsonl: Annotated[
        bool, Doc("Write shards of JSON lines, an object for each image; several processes always do.")
    ] = False
    shard_size: Annotated[
        int | None,
        Doc("Of --jsonl: images in a shard; default: 2,048, and fewer where there are few for the processes."),
    ] = None
    top_k: Annotated[int | None, Doc("Classifiers: number of classes to show for each image; default: 5.")] = None
    min_score: Annotated[
        float | None,
        Doc(
            "Detection and keypoints: smallest score of what is shown, and of what --boxes says; default: 0.3, and 0.5 "
            "for several labels."
        ),
    ] = None
    boxes: Annotated[
        Path | None,
        Doc(
            "Keypoints: predictions.json of a detector, or a list of COCO's results, which says where "
            "objects are; scores are then the product with the detector's. Default: an image is one "
            "object."
        ),
    ] = None
    stride: Annotated[int, Doc("Of a video: look at every so many frames.")] = 1
    json: Annotated[Path | None, Doc("Write what is returned to this file too.")] = None
    flip: Annotated[bool, Doc("Segmentation and keypoints: the mean with the answer about the mirrored picture.")] = (
        False
    )
    scales: Annotated[tuple[float, ...], Doc("Segmentation: the mean over the picture at these scales.")] = ()
    slide: Annotated[
        bool, Doc("Segmentation: windows of the size of the training crops, instead of the whole picture at once.")
    ] = False
    batch_size: Annotated[
        int | None, Doc("Images per forward pass; default: 32, and 1 where images differ in size.")
    ] = None
    size: Annotated[
        int | str | None,
        Doc(
            "Height and width the images are brought to, as 448 or 4000x6000, or the shorter side for "
            "detectors and segmenters; default: what the model was trained with."
        ),
    ] = None
    max_memory: Annotated[
        str | None, Doc("Classifiers: most memory to take beside the loaded model, such as 3GB; a plan is told first.")
    ] = None
    device: Annotated[str, Doc("cpu, cuda, cuda:1, mps, or auto.")] = "auto"
    architecture: Annotated[str | None, Doc("Of a file: the name of its model, where it does not tell it itself.")] = (
        None
    )
    model_args: Annotated[
        tuple[str, ...],
        Doc("Of a file: what its model was built with, where that is not the default, e.g. stem_stride=2."),
    ] = ()

    def __post_init__(self) -> None:
        require_positive(top_k=self.top_k, batch_size=self.batch_size, shard_size=self.shard_size, stride=self.stride)
        if self.json is not None:
            require_writable("--json", self.json)

    def inference(self) -> Inference:
        return Inference(self.flip, self.scales, self.slide, self.top_k, self.min_score, self.boxes)
