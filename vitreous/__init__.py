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

from vitreous import models  # noqa: F401  (registers the models with timm)
from vitreous.atlas import atlas
from vitreous.check import check
from vitreous.demo import demo
from vitreous.errors import InputError
from vitreous.evaluate import evaluate
from vitreous.explain import explain
from vitreous.heads.pyramid import pyramid
from vitreous.info import info
from vitreous.layers.tap import record, tap_names
from vitreous.plot import plot
from vitreous.predict import predict
from vitreous.registry import create_model, list_models
from vitreous.runs.model_folder import TrainedModel, load_model
from vitreous.runtime.calling import natural
from vitreous.score import score
from vitreous.serve import serve
from vitreous.shapes import shapes
from vitreous.train import train
from vitreous.version import __version__

check, demo, evaluate, info = natural(check), natural(demo), natural(evaluate), natural(info)
plot, serve, shapes, train = natural(plot), natural(serve), natural(shapes), natural(train)
predict = natural(predict, pictures="images", trained=TrainedModel)
score, atlas = natural(score), natural(atlas)


__all__ = [
    "InputError",
    "__version__",
    "atlas",
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
    "score",
    "serve",
    "shapes",
    "tap_names",
    "train",
]
