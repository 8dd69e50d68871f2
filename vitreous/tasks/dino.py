"""Features without labels, learned as DINO and XCiT's DINO models learned them (arXiv 2104.14294, 2106.09681).

What stays is a backbone without a classifier, the teacher's: for `vitreous embed`, `evaluate --knn` and `--linear`, and
for other tasks to start from.
"""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, Self

from PIL import Image
from torch import Tensor, nn

from vitreous.data.detector_boxes import Found
from vitreous.data.layouts.base import PICTURES
from vitreous.data.loader import stack
from vitreous.data.multi_crop import MultiCrop, UnlabelledViews, stack_views
from vitreous.data.source import ImageSet
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.heads import check_arguments
from vitreous.heads.dino import Answers, SelfDistillation, contrast_loss, cross_view_loss, feature_spread
from vitreous.metrics.spread import FeatureSpread
from vitreous.models.pooled import forward_pooled, pooled_width
from vitreous.tasks.base import Assessment, PictureView, Prediction, Targets, Task
from vitreous.tasks.results import PictureResult

HEAD_ARGUMENTS = ["outputs", "hidden", "bottleneck", "layers", "batch_norm"]
SETTLED = 0.1  # share of a run after which the figures of collapse mean something
CONTRAST_TEMPERATURE = 0.2  # MoCo v3's (arXiv 2104.02057)
COLLAPSED_SPREAD = 0.005  # spread below which features count as all the same
COLLAPSED_INFORMATION = 0.005  # below which answers count as all the same
UNIFORM, SINGLE = 0.95, 0.05  # entropy of the teacher's answers: nearly all outputs alike, nearly one output


@dataclass(frozen=True)
class DinoOptions:
    """What only training needs to know."""

    sides: tuple[int, ...] = (224,)
    student_temperature: float = 0.1
    teacher_temperature: tuple[float, float] = (0.04, 0.04)  # from the start to the end of its warm-up
    teacher_warmup_epochs: float = 0.0
    teacher_momentum: float = 0.996  # at the start; it rises to 1 along half a cosine
    centre_momentum: float = 0.9
    sharing_rounds: int = 0  # in which answers are shared out over the outputs
    contrast: float = 0.0  # weight of telling views of one picture from those of others
    freeze_last: float = 1.0  # epochs without an update of the head's last layer
    head: Mapping[str, Any] = field(default_factory=dict)

    def temperature(self, epoch: float) -> float:
        """Of the teacher, after so many epochs."""
        first, last = self.teacher_temperature
        done = min(1.0, epoch / self.teacher_warmup_epochs) if self.teacher_warmup_epochs else 1.0
        return first + (last - first) * done

    def momentum(self, progress: float) -> float:
        return 1 - (1 - self.teacher_momentum) * 0.5 * (1 + math.cos(math.pi * progress))


class DinoTask(Task):
    name, purpose, targets = "dino", "learn without labels", PICTURES
    settings = frozenset(
        {
            *("head_args", "local_crops", "local_size", "global_scale", "local_scale", "student_temperature"),
            *("teacher_temperature", "teacher_warmup_epochs", "teacher_momentum", "centre_momentum", "freeze_last"),
            *("sharing_rounds", "contrast", "grey", "recolour", "crop_ratio", "knn_every"),
        }
    )
    main_metric = "knn_20"
    shown = ("spread", "knn_20")
    on_feature_maps = has_findings = False
    batch_size = 32
    watched = ("spread", "teacher_entropy", "teacher_information", "kl")

    def __init__(self, classes: tuple[str, ...] = (), *, options: DinoOptions | None = None) -> None:
        """There are no classes, whatever the data know; `options` are for training."""
        super().__init__(())
        self.options = options if options is not None else DinoOptions()
        self._watched: dict[str, Tensor] = {}

    @classmethod
    def from_settings(cls, settings: Any, images: ImageSet) -> Self:
        if settings.ema:
            raise InputError(f"--ema {settings.ema} given; the task dino averages weights itself: --teacher-momentum")
        terms = [
            name
            for name in ("cluster_overlap", "cluster_map_entropy", "cluster_place_entropy")
            if getattr(settings, name)
        ]
        if terms:
            raise InputError(f"{terms[0]} given, which the task dino has no term for; leave it out")
        head = settings.head_arguments()
        check_arguments("dino", head, HEAD_ARGUMENTS)
        sides = (settings.size, settings.local_size) if settings.local_crops else (settings.size,)
        names = [entry.name for entry in fields(DinoOptions) if entry.name not in ("sides", "head")]
        return cls(options=DinoOptions(sides, head=head, **{name: getattr(settings, name) for name in names}))

    def sides(self, settings: Any) -> tuple[int, ...]:
        return self.options.sides

    def learner(self, model: nn.Module) -> SelfDistillation:
        side = self.options.sides[0]
        return SelfDistillation(model, pooled_width(model, (side, side), type(model).__name__), **self.options.head)

    def kept(self, learner: nn.Module) -> nn.Module:
        assert isinstance(learner, SelfDistillation)
        return learner.teacher.backbone

    # ---- learning ------------------------------------------------------------------------------------------------

    def training_view(self, preprocess: Preprocess, settings: Any) -> PictureView:
        return MultiCrop(
            preprocess,
            local_crops=settings.local_crops,
            local_size=settings.local_size,
            global_scale=settings.global_scale,
            local_scale=settings.local_scale,
            color_jitter=settings.color_jitter,
            flip=settings.flip,
            grey=settings.grey,
            recolour=settings.recolour,
        )

    def evaluation_view(self, preprocess: Preprocess) -> PictureView:
        return preprocess.pixels

    def dataset(self, images: ImageSet, view: PictureView) -> UnlabelledViews:
        return UnlabelledViews(images, view)

    def collate(self, samples: list[Any]) -> tuple[Any, Any]:
        if isinstance(samples[0][0], list):
            return stack_views(samples)[0], {"pictures": len(samples)}
        return stack(samples)

    def losses(self, model: nn.Module, images: Any, targets: Targets) -> dict[str, Tensor]:
        answers: Answers = model(images, targets["pictures"])
        temperature = self.options.temperature(self.moment.epoch)
        rounds = self.options.sharing_rounds
        found = cross_view_loss(answers, self.options.student_temperature, temperature, sharing_rounds=rounds)
        spread = feature_spread(answers.features)
        about = {"teacher_entropy": found.entropy, "teacher_information": found.information, "kl": found.divergence}
        self._watched = {"spread": spread} | about
        terms = {"cross_view": found.loss}
        if self.options.contrast:
            terms["contrast"] = self.options.contrast * contrast_loss(
                answers.unit, targets["pictures"], CONTRAST_TEMPERATURE
            )
        return terms

    def watch(self) -> dict[str, Tensor]:
        return self._watched

    def doubts(self, figures: Mapping[str, float]) -> tuple[str, ...]:
        if self.moment.progress < SETTLED or not figures:
            return ()
        if figures["spread"] < COLLAPSED_SPREAD:
            return (f"all pictures get nearly the same features: {likely_cause(figures)}",)
        if figures["teacher_information"] < COLLAPSED_INFORMATION:
            return (f"the teacher gives all pictures nearly the same answer: {likely_cause(figures)}",)
        return ()

    def before_update(self, learner: nn.Module) -> None:
        assert isinstance(learner, SelfDistillation)
        if self.moment.epoch < self.options.freeze_last:
            learner.student.head.directions.grad = None

    def after_step(self, learner: nn.Module) -> None:
        assert isinstance(learner, SelfDistillation)
        learner.follow(self.options.momentum(self.moment.progress))
        learner.move_centre(self.options.centre_momentum)

    # ---- measuring -----------------------------------------------------------------------------------------------

    def features(self, model: nn.Module, images: Tensor) -> Tensor:
        return model(images) if isinstance(model, SelfDistillation) else forward_pooled(model, images)

    def predict(self, model: nn.Module, images: Tensor, targets: Targets) -> list[Prediction]:
        return [{"features": row} for row in self.features(model, images).float().cpu()]

    def assess(self, model: nn.Module, images: Tensor, targets: Targets) -> Assessment:
        return Assessment({}, self.predict(model, images, targets))

    def metric(self) -> FeatureSpread:
        return FeatureSpread()

    # ---- answering -----------------------------------------------------------------------------------------------

    def blank_targets(self, picture: Image.Image, found: Sequence[Found]) -> list[Targets]:
        raise InputError("a model that learned without labels has features, not answers; use vitreous embed")

    def result(self, picture: Image.Image, predictions: list[Prediction], targets: list[Targets]) -> PictureResult:
        raise NotImplementedError


def likely_cause(figures: Mapping[str, float]) -> str:
    """Why features or answers become the same."""
    if figures["teacher_entropy"] > UNIFORM:
        return (
            "its answers are nearly uniform, so that it tells nothing; lower --teacher-temperature, or in a short run "
            "--teacher-momentum"
        )
    if figures["teacher_entropy"] < SINGLE:
        return (
            "it always answers with one output; raise --teacher-temperature, or lower --centre-momentum, so that the "
            "centre follows faster"
        )
    return "lower --lr, or give a longer --warmup-epochs; --teacher-momentum may not fit the length of the run either"


TASK = DinoTask
