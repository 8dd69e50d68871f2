"""COCO's average precision and recall of boxes, masks and keypoints, computed by faster-coco-eval.

Everything is in pixels of the picture as it was annotated. Figures are those of pycocotools, to the last digit, and -1
where there is nothing to find, e.g. no small object.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal

import numpy as np
from torch import Tensor

from vitreous.errors import InputError, to_install_extra
from vitreous.metrics.accuracy import unique_names

CocoKind = Literal["bbox", "segm", "keypoints"]
_BOX_FIGURES = ("AP", "AP50", "AP75", "APs", "APm", "APl", "AR1", "AR10", "AR100", "ARs", "ARm", "ARl")
FIGURE_NAMES: dict[CocoKind, tuple[str, ...]] = {
    "bbox": _BOX_FIGURES,
    "segm": _BOX_FIGURES,
    "keypoints": ("AP", "AP50", "AP75", "APm", "APl", "AR", "AR50", "AR75", "ARm", "ARl"),
}
PERSON_KEYPOINTS = 17  # keypoints of COCO's people, for which faster-coco-eval knows how precisely each can be placed
OTHER_SIGMA = 0.05  # for keypoints of other objects: about that of people's shoulders and wrists, times two


class CocoMetric:
    """Collects annotations and answers, so that parts of the data can be scored apart and merged.

    Args:
        kind: What overlaps are measured with: "bbox", "segm" (masks) or "keypoints".
        classes: Their names.
        category_ids: Number of each class in result files; from 1 if not given.
    """

    def __init__(self, kind: CocoKind, classes: tuple[str, ...], category_ids: Sequence[int] = ()) -> None:
        if kind not in FIGURE_NAMES:
            raise InputError(f"kind={kind!r} given; accepted: {', '.join(FIGURE_NAMES)}")
        self.kind, self.classes = kind, classes
        self.category_ids = tuple(category_ids) or tuple(range(1, len(classes) + 1))
        if len(self.category_ids) != len(classes):
            raise InputError(f"{len(self.category_ids)} category ids given for {len(classes)} classes")
        try:
            import faster_coco_eval  # noqa: F401
        except ImportError as error:
            raise InputError(f"scoring detections needs faster-coco-eval: {to_install_extra('det')}") from error
        self.images: dict[int, dict[str, int]] = {}
        self.truth: dict[tuple[int, int], list[dict[str, Any]]] = {}  # by picture and, for keypoints, object
        self.answers: dict[tuple[int, int], list[dict[str, Any]]] = {}

    def update(self, predictions: Sequence[Mapping[str, Tensor]], targets: Mapping[str, Any]) -> None:
        """Add answers for pictures, or for objects where keypoints are asked for.

        A picture's: `boxes` (n, 4) x0 y0 x1 y1, `labels`, `scores` and, for "segm", `masks` (n, H, W) of booleans.
        Targets: `image_ids`, `original_sizes` (B, 2) and `objects`, a list of `data.annotations.Objects`.
        An object's: `keypoints` (K, 3) and `scores`, a number. Targets: `image_ids`, `ids`, `labels`, and either
        `annotated`, a list of all `Objects` of each one's picture, or its own `area`, `boxes` (B, 4) and `keypoints`
        (B, K, 3).
        """
        add = self._add_object if self.kind == "keypoints" else self._add_picture
        for place, prediction in enumerate(predictions):
            add(prediction, targets, place)

    def _add_picture(self, prediction: Mapping[str, Tensor], targets: Mapping[str, Any], place: int) -> None:
        image, objects = int(targets["image_ids"][place]), targets["objects"][place]
        height, width = map(int, targets["original_sizes"][place])
        self.images[image] = {"id": image, "height": height, "width": width}
        boxes = box_sides(objects.boxes)
        masks = objects.masks
        if masks is None and self.kind == "segm":
            raise InputError(f"image {image} has no annotated masks; masks can be scored only on data that have them")
        self.truth[image, 0] = [
            {
                "image_id": image,
                "category_id": self.category_ids[int(objects.labels[i])],
                "bbox": boxes[i],
                "area": float(objects.area[i]),
                "iscrowd": int(objects.crowd[i]),
                **({"segmentation": masks[i]} if self.kind == "segm" else {}),
            }
            for i in range(len(boxes))
        ]
        self.answers[image, 0] = self._answers(image, prediction)

    def _answers(self, image: int, prediction: Mapping[str, Tensor]) -> list[dict[str, Any]]:
        labels, scores = prediction["labels"].tolist(), prediction["scores"].cpu().double().tolist()
        if self.kind == "segm":
            shapes: list[Any] = encode_masks(prediction["masks"])
        else:
            shapes = box_sides(prediction["boxes"].cpu().double().numpy())
        key = "segmentation" if self.kind == "segm" else "bbox"
        return [
            {"image_id": image, "category_id": self.category_ids[label], "score": score, key: shape}
            for label, score, shape in zip(labels, scores, shapes, strict=True)
        ]

    def _add_object(self, prediction: Mapping[str, Tensor], targets: Mapping[str, Any], place: int) -> None:
        image, number = int(targets["image_ids"][place]), int(targets["ids"][place])
        label = int(targets["labels"][place])
        category = self.category_ids[label]
        if "annotated" in targets:
            self.expect(image, targets["annotated"][place])
        else:
            box, points = targets["boxes"][place].cpu().double().numpy(), targets["keypoints"][place].cpu().double()
            self._expect_object(image, number, label, box, float(targets["area"][place]), 0, points.numpy())
        found, score = prediction["keypoints"].cpu().double().flatten().tolist(), float(prediction["scores"])
        self.answers[image, number] = [{"image_id": image, "category_id": category, "score": score, "keypoints": found}]

    def expect(self, image: int, objects: Any) -> None:
        """Add the annotations of a picture, all `Objects` in it: those without keypoints and crowds are no one's fault.

        Where each annotated object is asked about, `update` does that; a picture that nobody asks about needs it.
        """
        if image in self.images:
            return  # with another object of the picture
        self.images[image] = {"id": image}
        for place, number in enumerate(objects.ids.tolist()):
            points, area, crowd = objects.keypoints[place], float(objects.area[place]), int(objects.crowd[place])
            self._expect_object(image, number, int(objects.labels[place]), objects.boxes[place], area, crowd, points)

    def _expect_object(
        self, image: int, number: int, label: int, box: Any, area: float, crowd: int, points: Any
    ) -> None:
        self.images[image] = {"id": image}
        self.truth[image, number] = [
            {
                "image_id": image,
                "category_id": self.category_ids[label],
                "bbox": box_sides(box)[0],
                "area": area,
                "iscrowd": crowd,
                "keypoints": points.astype(np.float64).flatten().tolist(),
                "num_keypoints": int((points[:, 2] > 0).sum()),
            }
        ]

    def merge(self, other: "CocoMetric") -> None:
        """Add what was collected on another part of the data. What both have seen counts once."""
        self.images |= other.images
        self.truth |= other.truth
        self.answers |= other.answers

    def compute(self) -> dict[str, float]:
        return coco_figures(self.dataset(), self.results(), self.kind)

    def per_class(self) -> dict[str, float | None]:
        """AP of each class; None where there is nothing to find."""
        evaluation = _evaluated(self.dataset(), self.results(), self.kind)
        precision = evaluation.eval["precision"][:, :, :, 0, -1]  # (thresholds, recalls, categories)
        means = [part[part > -1] for part in np.moveaxis(precision, 2, 0)]
        # In the order of their numbers; of keypoints only the categories that some annotation has.
        found = dict(zip(evaluation.params.catIds, means, strict=True))
        names = zip(self.category_ids, unique_names(self.classes), strict=True)
        return {name: float(found[i].mean()) if i in found and found[i].size else None for i, name in names}

    def dataset(self) -> dict[str, Any]:
        """The annotations as a COCO file has them."""
        if not self.images:
            raise InputError("no image was scored; the data set is empty")
        # Numbered anew: data may have no number, or 0, which COCO's evaluation takes for "not found".
        annotations = [{"id": i + 1, **row} for i, row in enumerate(_in_order(self.truth))]
        categories = [{"id": i, "name": name} for i, name in zip(self.category_ids, self.classes, strict=True)]
        return {"images": list(self.images.values()), "annotations": annotations, "categories": categories}

    def results(self) -> list[dict[str, Any]]:
        """The answers in COCO's result format."""
        return list(_in_order(self.answers))


def coco_figures(annotations: dict[str, Any], results: list[dict[str, Any]], kind: CocoKind) -> dict[str, float]:
    """Figures of rows in COCO's result format against the content of an annotation file."""
    evaluation = _evaluated(annotations, results, kind)
    evaluation.summarize()
    return dict(zip(FIGURE_NAMES[kind], map(float, evaluation.stats[: len(FIGURE_NAMES[kind])]), strict=True))


def _evaluated(truth: dict[str, Any], results: list[dict[str, Any]], kind: CocoKind) -> Any:
    from faster_coco_eval import COCO, COCOeval_faster

    annotations = COCO(truth)
    # Loading adds to the rows it is given.
    found = annotations.loadRes([dict(row) for row in results])
    points = [len(row["keypoints"]) // 3 for row in annotations.dataset["annotations"][:1] if "keypoints" in row]
    sigmas = [OTHER_SIGMA] * points[0] if points and points[0] != PERSON_KEYPOINTS else None
    evaluation = COCOeval_faster(annotations, found, kind, kpt_oks_sigmas=sigmas)
    evaluation.evaluate()
    evaluation.accumulate()
    return evaluation


def encode_masks(masks: Tensor) -> list[dict[str, Any]]:
    """Masks (n, H, W) in COCO's compressed form, as text that JSON can hold."""
    from faster_coco_eval.core.mask import encode

    if not len(masks):
        return []
    columns = np.asfortranarray(masks.cpu().numpy().astype(np.uint8).transpose(1, 2, 0))  # (H, W, n)
    return [
        {"size": row["size"], "counts": row["counts"].decode() if isinstance(row["counts"], bytes) else row["counts"]}
        for row in encode(columns)
    ]


def box_sides(boxes: Any) -> list[list[float]]:
    """Boxes (n, 4), x0 y0 x1 y1 -> x y width height, as COCO writes them."""
    boxes = np.asarray(boxes, np.float64).reshape(-1, 4)
    return np.concatenate([boxes[:, :2], boxes[:, 2:] - boxes[:, :2]], 1).tolist()


def _in_order(rows: Mapping[tuple[int, int], Iterable[dict[str, Any]]]) -> Iterable[dict[str, Any]]:
    """By picture and object, so that the order in which they were seen makes no difference."""
    return (row for key in sorted(rows) for row in rows[key])
