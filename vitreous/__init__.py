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
"""

from functools import wraps
from inspect import signature
from typing import Any

from torch import nn

from vitreous import models  # noqa: F401  (registers the models with timm)
from vitreous.check import check
from vitreous.demo import demo
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.explain import explain as explain_run
from vitreous.explain import explain_model
from vitreous.heads.pyramid import pyramid
from vitreous.info import info
from vitreous.layers.tap import record, tap_names
from vitreous.plot import plot
from vitreous.predict import predict
from vitreous.registry import create_model, list_models
from vitreous.runs.model_folder import TrainedModel, load_model
from vitreous.runtime.calling import natural, with_known_names
from vitreous.serve import serve
from vitreous.shapes import shapes
from vitreous.train import train
from vitreous.version import __version__

check, demo, evaluate, info = natural(check), natural(demo), natural(evaluate), natural(info)
plot, serve, shapes, train = natural(plot), natural(serve), natural(shapes), natural(train)
predict = natural(predict, pictures="images", trained=TrainedModel)
explain_run, explain_model = natural(explain_run, pictures="images"), natural(explain_model)


@wraps(explain_run)
def explain(model: Any, *args: Any, **kwargs: Any) -> Any:
    """What it returns depends on what it is given."""
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


WITHOUT = {  # what takes a keyword that was given to the other kind of model; by whether the model is in memory
    True: 'a folder, file or name of a model, of which a report is written: vitreous.explain("runs/demo", ...)',
    False: "a model in memory, of which an object is returned: vitreous.explain(vitreous.load_model(...), ...)",
}


__all__ = [
    "InputError",
    "__version__",
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
