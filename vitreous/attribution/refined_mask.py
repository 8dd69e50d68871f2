"""A coarse mask, optimised so that the target stays when its top areas are shown and is lost when they are hidden.

Fong, Vedaldi, arXiv 1704.03296, and Fong et al., arXiv 1910.08485, optimise a mask from nothing, in hundreds of steps.
Ours starts from a map that is nearly right, so that a few steps do, and asks for both ends at changing areas.

Shapes: B images, height and width of the image, rows and columns of the coarse grid.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.attribution.fill import Fill, baseline, blend, soft_mask, standardised
from vitreous.attribution.gradient import GradCam
from vitreous.attribution.gradient_contrast import GradientContrast
from vitreous.attribution.learned import Learned
from vitreous.attribution.method import Method, Needs, to_image
from vitreous.attribution.target import Target
from vitreous.errors import InputError

# From pixels, and from a network's last map: which is the better start depends on the model.
PRIORS: tuple[Method, ...] = (GradientContrast(), GradCam())
TRIAL_AREA = 0.2  # share of the image by which priors are compared
AREAS = (0.35, 0.2, 0.1, 0.05, 0.5)  # shares of the image that steps show or hide in turn; few steps take the first
QUIET_CELL = 0.01  # of the mean slope: a cell that matters so little hardly moves, or rounding would push it about
ADAM_BETAS = (0.9, 0.999)  # arXiv 1412.6980


@dataclass(frozen=True)
class RefinedMask(Method):
    """The prior, standardised, plus a grid that Adam moves; a step runs two changed images forwards and backwards.

    Of the priors that the model allows, each image takes the one whose top fifth keeps and loses its target best.
    """

    steps: int = 8
    cells: int = 10  # of the shorter side
    rate: float = 0.4
    ridge: float = 0.01  # without it the grid drifts where nothing matters
    fill: Fill = "blur"
    priors: tuple[Method, ...] = PRIORS

    order = 20
    summary = "The places that must be shown to keep the target and hidden to lose it, found step by step."

    def __post_init__(self) -> None:
        if self.steps < 1 or self.cells < 2:
            raise InputError(f"steps={self.steps}, cells={self.cells} given; 1 step and 2 cells are the fewest")

    @property
    def name(self) -> str:
        name = "refined_mask" if self.priors == PRIORS else f"refined_{'_'.join(prior.name for prior in self.priors)}"
        return name if self.steps == RefinedMask.steps else f"{name}_{self.needs.passes}"

    @property
    def needs(self) -> Needs:
        trial = 2 if len(self.priors) > 1 else 0
        return Needs(passes=6 * self.steps + sum(prior.needs.passes + trial for prior in self.priors), gradient=True)

    def missing(self, model: nn.Module) -> str | None:
        reasons = [prior.missing(model) for prior in self.priors]
        return super().missing(model) or (reasons[0] if all(reasons) else None)

    def heat(self, model: nn.Module, images: Tensor, target: Target) -> Tensor:
        hidden = baseline(images, self.fill)
        prior = best_prior(model, images, hidden, target, self.priors)
        cell = min(images.shape[2:]) / self.cells
        grid = torch.zeros(len(images), *(max(2, round(side / cell)) for side in images.shape[2:])).to(prior)
        slopes, squares = torch.zeros_like(grid), torch.zeros_like(grid)
        for step in range(self.steps):
            slope = 2 * self.ridge * grid
            for shown in (True, False):
                slope = slope - self.slope(model, images, hidden, target, prior, grid, AREAS[step % len(AREAS)], shown)
            slopes, squares = (
                torch.lerp(new, old, keep)
                for new, old, keep in zip((slope, slope**2), (slopes, squares), ADAM_BETAS, strict=True)
            )
            mean, square = (
                sums / (1 - keep ** (step + 1)) for sums, keep in zip((slopes, squares), ADAM_BETAS, strict=True)
            )
            size = square.sqrt()
            grid = grid - self.rate * mean / (size + QUIET_CELL * size.mean((1, 2), keepdim=True) + 1e-20)
        return prior + to_image(grid, (images.shape[2], images.shape[3]))

    @staticmethod
    def slope(
        model: nn.Module,
        images: Tensor,
        hidden: Tensor,
        target: Target,
        prior: Tensor,
        grid: Tensor,
        area: float,
        shown: bool,
    ) -> Tensor:
        """How success changes with the grid; one of the two ends at a time, so that memory is that of one pass."""
        with torch.enable_grad():
            grid = grid.detach().requires_grad_()
            heat = prior + to_image(grid, (images.shape[2], images.shape[3]))
            return torch.autograd.grad(success(model, images, hidden, target, heat, area, shown).sum(), grid)[0]


def best_prior(
    model: nn.Module, images: Tensor, hidden: Tensor, target: Target, priors: tuple[Method, ...] = PRIORS
) -> Tensor:
    """Of each image the standardised map, (B, height, width), that shows and hides best at one area."""
    size = (images.shape[2], images.shape[3])
    maps = [standardised(to_image(prior(model, images, target), size)) for prior in priors if not prior.missing(model)]
    if len(maps) == 1:
        return maps[0]
    worth = [
        sum(success(model, images, hidden, target, heat, TRIAL_AREA, shown) for shown in (True, False)) for heat in maps
    ]
    return torch.stack(maps)[torch.stack(worth).argmax(0), torch.arange(len(images))]  # type: ignore[arg-type]


def success(
    model: nn.Module, images: Tensor, hidden: Tensor, target: Target, heat: Tensor, area: float, shown: bool
) -> Tensor:
    """log p of the target with the top area of the map shown alone, or log (1 - p) with it hidden: (B,)."""
    mask = soft_mask(heat, area)[:, None].to(images)
    output = model(blend(images, mask if shown else 1 - mask, hidden))
    odds = target.on("log_odds")(output)
    return F.logsigmoid(odds if shown else -odds)


METHODS = (
    RefinedMask(),
    RefinedMask(steps=4),
    RefinedMask(steps=15),
    RefinedMask(steps=1, rate=0.8, priors=(Learned(),)),
    RefinedMask(priors=(Learned(),)),
)
