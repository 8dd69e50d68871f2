"""Self-distillation without labels: a student learns what its own running average, the teacher, says of other views.

Caron et al.: "Emerging Properties in Self-Supervised Vision Transformers", arXiv 2104.14294. XCiT was trained this way.

The teacher sees the two global crops of a picture, the student all; each view of the student is to give the answer that
the teacher gives for another view. The teacher's answers are centred, so that no output wins for all pictures, and
sharpened, so that they are not all alike: one without the other lets all features become the same. Short runs may
share them out evenly over the outputs instead (`shared_out`), and learn from other pictures too (`contrast_loss`).

Shapes: B pictures, V views of each, view after view; C features, D numbers of a short vector, K outputs.
"""

import copy
import math
from collections.abc import Sequence
from functools import cached_property
from itertools import pairwise
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.nn.modules.batchnorm import _BatchNorm

from vitreous.errors import InputError
from vitreous.models.pooled import forward_pooled
from vitreous.runtime.distributed import sum_over_processes
from vitreous.runtime.parallel import local_part

GLOBAL_VIEWS = 2


class ProjectionHead(nn.Module):
    """An MLP from (B, C) to a short unit vector, and its cosine with each of many learned directions."""

    def __init__(
        self,
        width: int,
        *,
        outputs: int = 65536,
        hidden: int = 2048,
        bottleneck: int = 256,
        layers: int = 3,
        batch_norm: bool = False,
    ) -> None:
        """`batch_norm` takes away what all pictures have in common after every layer, which helps short runs."""
        super().__init__()
        if min(outputs, hidden, bottleneck, layers) < 1:
            raise InputError(f"head_args {outputs=} {hidden=} {bottleneck=} {layers=} given; all must be at least 1")
        widths = [width, *[hidden] * (layers - 1), bottleneck]
        parts: list[nn.Module] = []
        for before, after in pairwise(widths):
            parts += [nn.Linear(before, after), *([nn.BatchNorm1d(after)] if batch_norm else []), nn.GELU()]
        parts = parts[: -2 if batch_norm else -1]
        self.mlp = nn.Sequential(*parts, *([nn.BatchNorm1d(bottleneck, affine=False)] if batch_norm else []))
        self.directions = nn.Parameter(torch.empty(outputs, bottleneck))
        nn.init.normal_(self.directions)  # of which only the direction counts
        for module in self.mlp:
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                nn.init.zeros_(module.bias)

    def forward(self, x: Tensor) -> "Projected":
        unit = F.normalize(self.mlp(x).float(), dim=-1)
        return Projected(unit, F.linear(unit, F.normalize(self.directions.float(), dim=-1)))


class Projected(NamedTuple):
    unit: Tensor  # (B, D), vectors of length 1
    cosines: Tensor  # (B, K), with the directions


class Branch(nn.Module):
    """A backbone with a projection head: the student, or the teacher."""

    def __init__(self, backbone: nn.Module, head: ProjectionHead) -> None:
        super().__init__()
        self.backbone, self.head = backbone, head


class Answers(NamedTuple):
    said: Tensor  # (V B, K), by the student
    told: Tensor  # (2 B, K), by the teacher, centred
    features: Tensor  # (2 B, C), of the teacher's backbone
    unit: Tensor  # (V B, D), the short vectors from which the student says it


class SelfDistillation(nn.Module):
    """Student, teacher and centre: all that a run without labels has to keep.

    In evaluation it gives the features (B, C) of the teacher's backbone, which is the model that stays: the average of
    many students is better than the last of them all through training.
    """

    centre: Tensor
    told_sum: Tensor
    told_count: Tensor

    def __init__(self, backbone: nn.Module, width: int, **head: Any) -> None:
        super().__init__()
        self.student = Branch(backbone, ProjectionHead(width, **head))
        self.teacher = copy.deepcopy(self.student).requires_grad_(False)
        outputs = len(self.student.head.directions)
        self.register_buffer("centre", torch.zeros(outputs))
        # Of the teacher's answers in the current step, all pieces of it; empty whenever a checkpoint is written.
        self.register_buffer("told_sum", torch.zeros(outputs), persistent=False)
        self.register_buffer("told_count", torch.zeros(()), persistent=False)
        self.train()

    def train(self, mode: bool = True) -> Self:
        """The teacher drops nothing, but its batch norms take the statistics of the batch, as the student's do."""
        super().train(mode)
        self.teacher.eval()
        for module in self.teacher.modules():
            if isinstance(module, _BatchNorm):
                module.train(mode)
        return self

    def forward(self, views: Tensor | Sequence[Tensor], pictures: int = 0) -> Tensor | Answers:
        """Views of `pictures` pictures, those of one size in one tensor, the global ones first; or images."""
        if isinstance(views, Tensor):
            return forward_pooled(self.teacher.backbone, views)
        seen = torch.cat([forward_pooled(self.student.backbone, size) for size in views])
        with torch.no_grad():
            features = forward_pooled(self.teacher.backbone, views[0][: GLOBAL_VIEWS * pictures])
            told = self.teacher.head(features).cosines
            self.told_sum += told.sum(0)
            self.told_count += len(told)
        projected: Projected = self.student.head(seen)
        return Answers(projected.cosines, told - self.centre, features, projected.unit)

    @torch.no_grad()
    def follow(self, momentum: float) -> None:
        """After a step of the student: the teacher keeps `momentum` of its weights and takes the rest from it."""
        teacher, student = self._pairs
        torch._foreach_lerp_(teacher, student, 1 - momentum)

    @cached_property
    def _pairs(self) -> tuple[list[Tensor], list[Tensor]]:
        """This process's parts of the parameters; collected once, after the model was placed."""
        both = ([local_part(p).detach() for p in branch.parameters()] for branch in (self.teacher, self.student))
        teacher, student = both
        return teacher, student

    @torch.no_grad()
    def move_centre(self, momentum: float) -> None:
        """Towards the mean of the teacher's answers in this step, over the pictures of all processes."""
        sum_over_processes(self.told_sum)
        sum_over_processes(self.told_count)
        self.centre.lerp_(self.told_sum / self.told_count, 1 - momentum)
        self.told_sum.zero_()
        self.told_count.zero_()


class CrossView(NamedTuple):
    """The loss of a batch, and what shows whether all features become the same."""

    loss: Tensor  # cross-entropy in nats, mean over pictures and pairs of a teacher's view and another of the student
    entropy: Tensor  # of the teacher's answers: 0 if each is one output, 1 if all outputs are alike
    information: Tensor  # of an answer about which picture it is for: 0 if all pictures get the same, 1 if each its own
    divergence: Tensor  # KL of the student's answers from the teacher's, in nats: 0 if there is nothing left to learn


def cross_view_loss(
    answers: Answers, student_temperature: float, teacher_temperature: float, *, sharing_rounds: int = 0
) -> CrossView:
    told = (answers.told / teacher_temperature).softmax(-1)
    told = shared_out(told, sharing_rounds).unflatten(0, (GLOBAL_VIEWS, -1))  # (2, B, K)
    said = (answers.said / student_temperature).log_softmax(-1).unflatten(0, (-1, told.shape[1]))  # (V, B, K)
    # The sum over all other views is the sum over all views without the own one.
    others = said.sum(0) - said[:GLOBAL_VIEWS]  # (2, B, K)
    loss = -(told * others).sum(-1).mean() / (len(said) - 1)
    entropy = torch.special.entr(told).sum(-1).mean()
    told_of_all = torch.special.entr(told.mean((0, 1))).sum()
    answers_possible = math.log(max(2, min(told.shape[-1], told.shape[0] * told.shape[1])))
    information = (told_of_all - entropy) / answers_possible
    return CrossView(loss, entropy / math.log(max(2, told.shape[-1])), information, loss - entropy)


def contrast_loss(unit: Tensor, pictures: int, temperature: float) -> Tensor:
    """How badly the student's unit vectors (V B, D) tell which views are of one picture, in nats.

    Of each view, the others of its picture are to be more like it than those of the other pictures in the batch, as in
    SimCLR (arXiv 2002.05709). It needs no teacher, which starts at random. Only pictures of this process are compared.
    """
    itself = torch.eye(len(unit), dtype=torch.bool, device=unit.device)
    cosines = (unit @ unit.T).masked_fill(itself, -torch.inf)  # (V B, V B)
    log_odds = (cosines / temperature).log_softmax(-1)
    picture = torch.arange(len(unit), device=unit.device) % pictures
    same = (picture[:, None] == picture) & ~itself
    return -log_odds[same].mean()


@torch.no_grad()
def shared_out(told: Tensor, rounds: int) -> Tensor:
    """Answers (N, K) moved towards giving every output equally often over the pictures of all processes.

    In each round (Sinkhorn, Knopp) an output loses what it has more than others, and each answer sums to one again. The
    answers cannot all become the same then, whatever the teacher says, which a centre prevents only after many steps;
    SwAV and DINOv2 do it three times (arXiv 2006.09882, 2304.07193). What a centre adds to an output has no effect.
    """
    for _ in range(rounds):
        taken = told.sum(0)  # (K,)
        sum_over_processes(taken)
        told = told / taken.clamp_min(torch.finfo(told.dtype).tiny)
        told = told / told.sum(1, keepdim=True)
    return told


def feature_spread(features: Tensor) -> Tensor:
    """How much unit features (N, C) differ: 1 - |mean|², which is 0 if all are alike and 1 if they cancel out."""
    return 1 - F.normalize(features.float(), dim=-1).mean(0).square().sum()


HEADS = {"dino": {"projection": ProjectionHead}}
