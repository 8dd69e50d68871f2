"""vitreous: efficient vision transformers you can see into.

Importing it registers the models with timm:

    import timm, vitreous
    model = timm.create_model("paca_tiny", num_classes=10)
    with vitreous.record(model, "stages.*.clusters") as maps:
        model(images)

Every verb of the command line is a function of the same name and arguments: `vitreous.train("paca_b0", "shapes")`.
Arguments are taken in the types people have: text or paths, one or several, pictures in memory where files are.
`vitreous.explain` also takes a model in memory, and then returns the explanation of an image as an object, and those of
several images as a list; `vitreous.predict` also takes what `vitreous.load_model` gives.

Only the models and the registry are loaded at once; a verb, or anything else listed here, loads when it is first used.
"""

import logging
import sys
from importlib import import_module
from types import ModuleType
from typing import TYPE_CHECKING, Any

from vitreous import models  # noqa: F401  (registers the models with timm)
from vitreous.errors import InputError
from vitreous.layers.tap import record, tap_names
from vitreous.registry import create_model, list_models
from vitreous.version import __version__

if TYPE_CHECKING:
    from vitreous.analyze import analyze
    from vitreous.atlas import atlas
    from vitreous.attribution.target import Target
    from vitreous.bench import bench
    from vitreous.check import check
    from vitreous.completion import completion
    from vitreous.demo import demo
    from vitreous.embed import embed
    from vitreous.evaluate import evaluate
    from vitreous.explain import explain
    from vitreous.export import export
    from vitreous.folds import folds
    from vitreous.heads.detect import build_detector
    from vitreous.heads.pyramid import pyramid
    from vitreous.info import info
    from vitreous.measurements.plan import plan_memory
    from vitreous.mend import mend
    from vitreous.plot import plot
    from vitreous.predict import predict
    from vitreous.push import push
    from vitreous.reports.explanation import Explanation
    from vitreous.runs.features import load_features
    from vitreous.runs.model_folder import load_model
    from vitreous.runs.trained_model import TrainedModel
    from vitreous.score import score
    from vitreous.serve import serve
    from vitreous.shapes import shapes
    from vitreous.shortcuts import shortcuts
    from vitreous.sweep import sweep
    from vitreous.tasks.classify import Classification
    from vitreous.tasks.detect import Detections
    from vitreous.tasks.keypoints import Keypoints
    from vitreous.tasks.multilabel import LabelSet
    from vitreous.tasks.regress import Estimate
    from vitreous.tasks.segment import Segmentation
    from vitreous.train import train

logging.getLogger(__name__).addHandler(logging.NullHandler())  # verbs show what is logged; the library is silent

VERBS = (
    "analyze",
    "atlas",
    "bench",
    "check",
    "completion",
    "demo",
    "embed",
    "evaluate",
    "explain",
    "export",
    "folds",
    "info",
    "mend",
    "plot",
    "predict",
    "push",
    "score",
    "serve",
    "shapes",
    "shortcuts",
    "sweep",
    "train",
)
HOMES = {  # of everything else that loads when it is first used
    "Classification": "vitreous.tasks.classify",
    "Detections": "vitreous.tasks.detect",
    "Estimate": "vitreous.tasks.regress",
    "Explanation": "vitreous.reports.explanation",
    "Keypoints": "vitreous.tasks.keypoints",
    "LabelSet": "vitreous.tasks.multilabel",
    "Segmentation": "vitreous.tasks.segment",
    "Target": "vitreous.attribution.target",
    "TrainedModel": "vitreous.runs.trained_model",
    "build_detector": "vitreous.heads.detect",
    "load_features": "vitreous.runs.features",
    "load_model": "vitreous.runs.model_folder",
    "plan_memory": "vitreous.measurements.plan",
    "pyramid": "vitreous.heads.pyramid",
}


class Package(ModuleType):
    """This package, in which `train` stays a function when somebody imports the module `vitreous.train`."""

    def __setattr__(self, name: str, value: Any) -> None:
        if not (name in VERBS and isinstance(value, ModuleType)):
            super().__setattr__(name, value)


sys.modules[__name__].__class__ = Package


def __getattr__(name: str) -> Any:
    if name in VERBS:
        value = for_python(name)
    elif name in HOMES:
        value = getattr(import_module(HOMES[name]), name)
    else:
        raise AttributeError(f"module 'vitreous' has no attribute {name!r}")
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})


def for_python(verb: str) -> Any:
    """The function of a verb, which takes what people pass in Python."""
    from vitreous.runs.trained_model import TrainedModel
    from vitreous.runtime.calling import natural

    function = getattr(import_module(f"vitreous.{verb}"), verb)
    if verb == "explain":
        return function  # does so itself, for both kinds of models
    pictures = {"predict": "images", "embed": "data"}.get(verb)
    return natural(function, pictures=pictures, trained=TrainedModel) if pictures else natural(function)


__all__ = [
    "Classification",
    "Detections",
    "Estimate",
    "Explanation",
    "InputError",
    "Keypoints",
    "LabelSet",
    "Segmentation",
    "Target",
    "TrainedModel",
    "__version__",
    "analyze",
    "atlas",
    "bench",
    "build_detector",
    "check",
    "completion",
    "create_model",
    "demo",
    "embed",
    "evaluate",
    "explain",
    "export",
    "folds",
    "info",
    "list_models",
    "load_features",
    "load_model",
    "mend",
    "plan_memory",
    "plot",
    "predict",
    "push",
    "pyramid",
    "record",
    "score",
    "serve",
    "shapes",
    "shortcuts",
    "sweep",
    "tap_names",
    "train",
]
