"""What a mistake about each class costs, so that classes with few pictures are not given up."""

from collections import Counter

from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError, nearest

BALANCED_WEIGHTS = "balanced"


def class_weights(images: ImageSet, given: tuple[str, ...]) -> tuple[float, ...]:
    """Of each class, with a mean of 1 over the pictures, so that learning rates keep their meaning; none if none given.

    Args:
        images: With a class each.
        given: `balanced` for the inverse of how often each occurs, or `class=weight` for some; others have 1.
    """
    if not given:
        return ()
    counts = Counter(images.target(index)["labels"] for index in range(len(images)))
    if given == (BALANCED_WEIGHTS,):
        raw = [1 / counts[label] if counts[label] else 0.0 for label in range(len(images.classes))]
    else:
        raw = _named_weights(images.classes, given)
    mean = sum(weight * counts[label] for label, weight in enumerate(raw)) / len(images)
    if not mean:
        raise InputError(
            f"--class-weights {' '.join(given)} leaves no picture to learn from; give some class more than 0"
        )
    return tuple(weight / mean for weight in raw)


def _named_weights(classes: tuple[str, ...], given: tuple[str, ...]) -> list[float]:
    weights = dict.fromkeys(classes, 1.0)
    for text in given:
        name, _, number = text.rpartition("=")
        if name not in weights:
            known = f"unknown class {name!r}; nearest: {nearest(name, list(classes))}"
            problem = known if name else f"accepted: {BALANCED_WEIGHTS} alone, or CLASS=WEIGHT for some classes"
            raise InputError(f"--class-weights {text} given; {problem}")
        try:
            weights[name] = float(number)
        except ValueError:
            weights[name] = -1.0
        if not 0 <= weights[name] < float("inf"):
            raise InputError(f"--class-weights {text} given; a weight is a number from 0")
    return list(weights.values())
