"""The smallest classifier of each of timm's families, and what tests need of them."""

import timm
import torch
from torch import Tensor, nn

# family -> model, side of the images (its own where it takes only one), grid of the last map
QUICK = {
    "byobnet": ("test_byobnet", 96),
    "convnext": ("test_convnext", 96),
    "efficientnet": ("test_efficientnet", 96),
    "mambaout": ("test_mambaout", 96),
    "resnet": ("test_resnet", 96),
    "vision_transformer": ("test_vit", 160),
    "levit": ("levit_128s", 224),
    "mobilevit": ("mobilevit_xxs", 128),
    "pvt_v2": ("pvt_v2_b0", 128),
    "pit": ("pit_ti_224", 224),
}


def awake_classifier(name: str, **arguments: object) -> nn.Module:
    """With random weights, and none of its tensors all zero, as many classifiers and residual branches begin."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.02)
    return model


def noise(count: int, height: int, width: int | None = None) -> Tensor:
    return torch.randn(count, 3, height, width or height, generator=torch.Generator().manual_seed(1))
