"""Recipes: named settings, as YAML in `vitreous/recipes` or in your own file.

    family: paca              # optional: the models the recipe was made for, as timm groups them
    epochs: 300               # any setting of `vitreous train` except those in PERSONAL
    variants:                 # optional: what differs for models whose name matches a pattern; later ones win
      paca_base*:
        clip_grad: 1.0
    heads:                    # optional: what differs with a head, the recipe's own or a given one
      maskrcnn:
        head_args: [channels=64]

What is given to `train` overrides the recipe, and the recipe overrides the defaults.
"""

import inspect
import math
import types
from contextlib import suppress
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any, Literal, NamedTuple, Union, get_args, get_origin, get_type_hints

import yaml
from timm.models import is_model, is_model_in_modules, list_modules

from vitreous.errors import InputError, nearest
from vitreous.files.limits import MAX_RECIPE_BYTES
from vitreous.files.reading import PlainLoader, excerpt, require_regular
from vitreous.registry import stored_arguments
from vitreous.tasks.base import load_task, load_tasks
from vitreous.training.model_choice import choose_model
from vitreous.training.settings import AUTO_MODEL, TrainSettings

RECIPES_FOLDER = Path(__file__).parents[1] / "recipes"
NOT_IN_RECIPES = frozenset({"model", "data", "follow", "out", "recipe", "any_model", "print", "dry_run", "resume"})
SHAPES_COUNTS = ("train_count", "val_count")  # only for the embedded shapes; a recipe uses all of any other data
MAX_WARMUP_SHARE = 0.1  # of a run, unless the warm-up was asked for
SETTING_TYPES = get_type_hints(TrainSettings)
RECIPE_KEYS = [name for name in inspect.signature(TrainSettings).parameters if name not in NOT_IN_RECIPES]


class Recipe(NamedTuple):
    name: str
    family: str | None
    values: dict[str, Any]
    variants: dict[str, dict[str, Any]]  # pattern of model names -> what differs for them
    heads: dict[str, dict[str, Any]]  # name of a head -> what differs with it

    def values_for(self, architecture: str, head: str | None) -> dict[str, tuple[Any, str]]:
        """Each setting with its place in the recipe; `head` is the one given, if any."""
        found = {key: (value, f"recipe {self.name}") for key, value in self.values.items()}
        for pattern, values in self.variants.items():
            if fnmatchcase(architecture, pattern):
                found |= {key: (value, f"recipe {self.name}, {pattern}") for key, value in values.items()}
        head = head or self.values.get("head")
        own = {} if head is None else self.heads.get(head, {})
        return found | {key: (value, f"recipe {self.name}, {head}") for key, value in own.items()}


def with_recipe(*args: Any, **kwargs: Any) -> TrainSettings:
    """Settings from what is given, then the recipe it names, then the defaults."""
    given = inspect.signature(TrainSettings).bind(*args, **kwargs).arguments
    if not given.get("data"):  # as in `vitreous train photos`, where what comes first is no model
        given = given | {"model": AUTO_MODEL, "data": _only_data(given)}
    origins, notes = dict.fromkeys(given, "given"), []
    if given.get("model", AUTO_MODEL) == AUTO_MODEL:
        choice = choose_model(given)
        own = {name: value for name, value in choice.settings.items() if name not in given}
        given, notes = given | own | {"model": choice.model}, [choice.reason]
        origins |= dict.fromkeys((*own, "model"), "chosen")
    known: dict[str, tuple[Any, str]] = {}
    if given.get("recipe") is not None:
        given["recipe"] = str(given["recipe"])  # a Path is convenient in Python
        recipe = load_recipe(given["recipe"])
        architecture = stored_arguments(given["model"])[0].partition(".")[0]
        if recipe.family and not given.get("any_model") and not is_model_in_modules(architecture, [recipe.family]):
            raise InputError(  # a misused recipe can waste days
                f"recipe {recipe.name} was made for the family {recipe.family}, and {architecture} is not of it; "
                "choose another recipe, or add --any-model to use it all the same"
            )
        known = _of_use(recipe.values_for(architecture, given.get("head")), given.get("task"))
        if not str(given["data"]).startswith("shapes"):
            known = {key: value for key, value in known.items() if key not in SHAPES_COUNTS}
    if (warmup := _shortened_warmup(given, known)) is not None:
        value, origin, note = warmup
        known["warmup_epochs"] = value, origin
        notes += [note] if given.get("recipe") is not None else []
    given = {key: value for key, (value, _) in known.items()} | given
    origins = {key: origin for key, (_, origin) in known.items()} | origins
    settings = TrainSettings(**given)
    settings.origins.update(origins)
    settings.notes.extend(notes)
    if settings.schedule == "step" and settings.step_epochs[0] >= settings.epochs:
        shown = " and ".join(f"{epoch:g}" for epoch in settings.step_epochs)
        settings.notes.append(
            f"learning rate: it would fall after epoch {shown}, but the run has {settings.epochs}; "
            "--step-epochs sets it"
        )
    return settings


def _of_use(known: dict[str, tuple[Any, str]], task: str | None) -> dict[str, tuple[Any, str]]:
    """What a recipe for classification says, without what a task that is much like it has no use for."""
    if task is None or "task" in known or not load_task(task).like_classification:
        return known
    particular = {name for other in load_tasks().values() for name in other.settings} - load_task(task).settings
    return {key: value for key, value in known.items() if key not in particular}


def _only_data(given: dict[str, Any]) -> str:
    """The data, where they are all that was given."""
    only = "" if given.get("model", AUTO_MODEL) == AUTO_MODEL else str(given["model"])
    if not only or is_model(only.partition(".")[0]):
        named = f"'{only}' is a model, and there are " if only else ""
        raise InputError(f"{named}no data to train on; as in: vitreous train {only or 'paca_b0'} photos")
    return only


def _shortened_warmup(given: dict[str, Any], known: dict[str, tuple[Any, str]]) -> tuple[float, str, str] | None:
    """A shorter warm-up for a run that is too short for the usual one; None if that one fits or one was given.

    With its origin, and a note for the user.

    The default warm-up takes at most a tenth of the run. A recipe's warm-up belongs to its number of epochs: a shorter
    run takes at most a tenth, or the share that it has in the recipe if that is more.
    """
    if "warmup_epochs" in given:
        return None
    default = TrainSettings("", "")
    whole, _ = known.get("epochs", (default.epochs, ""))
    epochs, (usual, origin) = given.get("epochs", whole), known.get("warmup_epochs", (default.warmup_epochs, "default"))
    if origin == "default":
        share = MAX_WARMUP_SHARE
    elif epochs < whole:
        share = max(MAX_WARMUP_SHARE, usual / whole)
    else:
        return None
    if usual <= share * epochs:
        return None
    value = round(share * epochs, 6)  # 0.3, not 0.30000000000000004
    note = f"warm-up: {value:g} of {epochs} epochs, instead of {usual:g} ({origin}); --warmup-epochs sets it"
    return value, f"{origin}, shortened with the run", note


def recipe_names() -> list[str]:
    return sorted(path.stem for path in RECIPES_FOLDER.glob("*.yaml"))


def load_recipe(name: str) -> Recipe:
    """One of our recipes by name, or a user's file; whatever is wrong with it is one line."""
    known = recipe_names()
    path = RECIPES_FOLDER / f"{name}.yaml" if name in known else Path(name).expanduser()
    if not path.is_file():
        raise InputError(
            f"there is no recipe '{name}'; nearest: {nearest(name, known)}; all: {', '.join(known)}, "
            "or the path of a YAML file"
        )
    try:
        return _checked(name, read_settings_file(path))
    except InputError as reason:
        raise InputError(f"recipe {name}: {reason}") from reason


def as_recipe(settings: TrainSettings) -> str:
    """The settings as an equivalent recipe; a comment says where each comes from."""
    family = load_recipe(settings.recipe).family if settings.recipe is not None else None
    rows = [] if family is None or settings.any_model else [(f"family: {_text(family)}", f"recipe {settings.recipe}")]
    for key in RECIPE_KEYS:
        value = getattr(settings, key)
        shown = list(value) if isinstance(value, tuple) else value
        rows.append((f"{key}: {_text(shown)}", settings.origins.get(key, "default")))
    width = min(40, max(len(row) for row, _ in rows))
    return "\n".join(f"{row:<{width}}  # {origin}" for row, origin in rows)


# Reading ------------------------------------------------------------------------------------------


class _Loader(PlainLoader):
    """Repeated keys are refused."""

    def construct_mapping(self, node: Any, deep: bool = False) -> dict[Any, Any]:
        mapping = super().construct_mapping(node, deep)  # refuses keys that are not scalars
        seen = set()
        for key in (self.construct_object(key) for key, _ in node.value):
            if key in seen:
                raise InputError(f"the key {excerpt(key)} is there twice; keep one")
            seen.add(key)
        return mapping


class _Dumper(yaml.SafeDumper):
    """Quotes all strings, so that none is read as a number."""


_Dumper.add_representer(str, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:str", text, style='"'))


def _text(value: Any) -> str:
    return yaml.dump(value, Dumper=_Dumper, default_flow_style=True, width=math.inf).removesuffix("\n...\n").strip()


def read_settings_file(path: Path) -> Any:
    try:
        require_regular(path, MAX_RECIPE_BYTES)
        return yaml.load(path.read_bytes().decode(), _Loader)  # noqa: S506  (derived from SafeLoader)
    except OSError as reason:
        raise InputError(f"it cannot be read ({reason.strerror})") from reason
    except yaml.YAMLError as reason:
        mark = getattr(reason, "problem_mark", None)
        place = "" if mark is None else f" in line {mark.line + 1}"
        problem = getattr(reason, "problem", None) or getattr(reason, "reason", None) or "it cannot be read"
        raise InputError(f"this is not YAML: {' '.join(str(problem).split())}{place}") from reason
    except InputError:
        raise
    except (ValueError, TypeError, RecursionError, MemoryError) as reason:  # no text, endless numbers, deep nesting
        raise InputError(f"this is not a recipe ({type(reason).__name__}: {excerpt(str(reason))})") from reason


# Checking -----------------------------------------------------------------------------------------


def _checked(name: str, content: Any) -> Recipe:
    values = dict(_mapping("the file", content))
    family = values.pop("family", None)
    if family is not None and family not in list_modules():
        raise InputError(f"family: {excerpt(family)} given; nearest: {nearest(str(family), list_modules())}")
    variants = _parts(values, "variants", "patterns of model names, e.g. paca_base*")
    heads = _parts(values, "heads", "names of heads, e.g. maskrcnn")
    settings = conforming(values, extra=("family", "variants", "heads"))
    task = settings.get("task", "classify")
    known = load_task(task).heads
    for head in heads:
        if head not in known:
            raise InputError(f"heads: {head} given; the task {task} has {', '.join(known) or 'none'}")
    return Recipe(name, family, settings, variants, heads)


def _parts(values: dict[Any, Any], section: str, accepted: str) -> dict[str, dict[str, Any]]:
    """A section of settings by name, removed from `values`."""
    content = values.pop(section, None)
    parts = {} if content is None else _mapping(section, content)
    for name, changes in parts.items():
        if not isinstance(name, str):
            raise InputError(f"{section}: {excerpt(name)} given; accepted: {accepted}")
        parts[name] = conforming(_mapping(f"{section}, {name}", changes))
    return parts


def _mapping(what: str, value: Any) -> dict[Any, Any]:
    if not isinstance(value, dict):
        raise InputError(f"{what}: {excerpt(value)} given; accepted: lines of the form `key: value`")
    return dict(value)


def conforming(values: dict[Any, Any], extra: tuple[str, ...] = ()) -> dict[str, Any]:
    """The values converted to the types of their settings."""
    converted = {}
    for key, value in values.items():
        if key in NOT_IN_RECIPES:
            raise InputError(f"the key '{key}' does not belong in a recipe; give it to `vitreous train`")
        if key not in RECIPE_KEYS:
            raise InputError(f"unknown key {excerpt(key)}; nearest: {nearest(str(key), [*RECIPE_KEYS, *extra], 1)}")
        try:
            converted[key] = _convert(value, SETTING_TYPES[key])
        except (TypeError, OverflowError) as reason:
            given, accepted = excerpt(value), _described(SETTING_TYPES[key])
            raise InputError(f"{key}: {given} given; accepted: {accepted}") from reason
    return converted


def _convert(value: Any, hint: Any) -> Any:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return _convert_to_one(value, parts)
    if origin is Literal and value in parts and isinstance(value, str):
        return value
    if origin is tuple and isinstance(value, list):
        kinds = parts[:1] * len(value) if parts[-1] is Ellipsis else parts
        if len(kinds) == len(value):
            return tuple(_convert(item, kind) for item, kind in zip(value, kinds, strict=True))
    if hint is float and type(value) in (int, float) and math.isfinite(float(value)):
        return float(value)
    if hint in (int, bool, str) and type(value) is hint:
        return value
    raise TypeError


def _convert_to_one(value: Any, hints: tuple[Any, ...]) -> Any:
    """The value as the first of these types that takes it."""
    if value is None and types.NoneType in hints:
        return None
    for hint in hints:
        with suppress(TypeError):
            return _convert(value, hint)
    raise TypeError


def _described(hint: Any) -> str:
    origin, parts = get_origin(hint), get_args(hint)
    if origin in (Union, types.UnionType):
        return ", or ".join("null" if part is types.NoneType else _described(part) for part in parts)
    if origin is Literal:
        return ", ".join(f'"{part}"' for part in parts)
    if origin is tuple:
        count = "any number of" if parts[-1] is Ellipsis else str(len(parts))
        return f"a list [...] of {count} values, each {_described(parts[0])}"
    return {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}[hint]
