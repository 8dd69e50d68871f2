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
    from vitreous.attribution.target import Target
    from vitreous.check import check
    from vitreous.demo import demo
    from vitreous.evaluate import evaluate
    from vitreous.explain import explain
    from vitreous.explanations.explanation import Explanation
    from vitreous.heads.detect import build_detector
    from vitreous.heads.pyramid import pyramid
    from vitreous.info import info
    from vitreous.plot import plot
    from vitreous.predict import predict
    from vitreous.runs.model_folder import TrainedModel, load_model
    from vitreous.serve import serve
    from vitreous.shapes import shapes
    from vitreous.train import train

logging.getLogger(__name__).addHandler(logging.NullHandler())  # verbs show what is logged; the library is silent

VERBS = ("check", "demo", "evaluate", "explain", "info", "plot", "predict", "serve", "shapes", "train")
HOMES = {  # of everything else that loads when it is first used
    "Explanation": "vitreous.explanations.explanation",
    "Target": "vitreous.attribution.target",
    "TrainedModel": "vitreous.runs.model_folder",
    "build_detector": "vitreous.heads.detect",
    "load_model": "vitreous.runs.model_folder",
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
    from vitreous.runs.model_folder import TrainedModel
    from vitreous.runtime.calling import natural

    module = import_module(f"vitreous.{verb}")
    function = getattr(module, verb)
    if verb == "explain":
        return either(natural(function, pictures="images"), natural(module.explain_model))
    return natural(function, pictures="images", trained=TrainedModel) if verb == "predict" else natural(function)


def either(explain_run: Any, explain_model: Any) -> Any:
    """`explain` for both kinds of models: what it returns depends on what it is given."""
    from functools import wraps
    from inspect import signature

    from torch import nn

    from vitreous.runs.model_folder import TrainedModel
    from vitreous.runtime.calling import with_known_names

    @wraps(explain_run)
    def explain(model: Any, *args: Any, **kwargs: Any) -> Any:
        in_memory = isinstance(model, nn.Module | TrainedModel)
        function, other = (explain_model, explain_run) if in_memory else (explain_run, explain_model)
        known, elsewhere = signature(function), signature(other).parameters
        for word in with_known_names(kwargs, known):
            if word in elsewhere and word not in known.parameters:
                raise InputError(f"{word} given, which goes with {WITHOUT[in_memory]}")
        if in_memory:
            given = known.bind_partial(model, *args, **with_known_names(kwargs, known)).arguments
            if isinstance(given.get("image"), list | tuple):
                return [function(**given | {"image": one}) for one in given["image"]]
        return function(model, *args, **kwargs)

    return explain


WITHOUT = {  # what takes a keyword that was given to the other kind of model; by whether the model is in memory
    True: 'a folder, file or name of a model, of which a report is written: vitreous.explain("runs/demo", ...)',
    False: "a model in memory, of which an object is returned: vitreous.explain(vitreous.load_model(...), ...)",
}


__all__ = [
    "Explanation",
    "InputError",
    "Target",
    "TrainedModel",
    "__version__",
    "build_detector",
    "check",
    "create_model",
    "demo",
    "evaluate",
    "explain",
    "info",
    "list_models",
    "load_model",
    "plot",
    "predict",
    "pyramid",
    "record",
    "serve",
    "shapes",
    "tap_names",
    "train",
]
