"""vitreous: efficient vision transformers you can see into.

Importing it registers the models with timm:

    import timm, vitreous
    model = timm.create_model("paca_tiny", num_classes=10)
    with vitreous.record(model, "stages.*.clusters") as maps:
        model(images)
"""

from vitreous import models  # noqa: F401  (registers the models with timm)
from vitreous.errors import InputError
from vitreous.layers.tap import record, tap_names
from vitreous.registry import create_model, list_models

__version__ = "0.1.0"
__all__ = ["InputError", "create_model", "list_models", "record", "tap_names"]
