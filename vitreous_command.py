"""The `vitreous` command: one table of verbs, each a function whose signature is its command line.

    vitreous --help
    vitreous train --help
    vitreous explain runs/demo photo.jpg

This module is beside the package, not inside it: importing anything of `vitreous` runs `vitreous/__init__.py`, which
registers the models with timm and so imports torch, which takes seconds. Here only the standard library is imported
until a verb is chosen, and then only that verb.
"""

import errno
import importlib
import inspect
import os
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, redirect_stderr, redirect_stdout
from dataclasses import is_dataclass
from functools import partial, reduce
from itertools import takewhile
from operator import or_
from pathlib import Path
from types import UnionType
from typing import Annotated, Any, get_args, get_type_hints

VERBS = {
    "info": "list the models, or show one: parameters, MACs, taps, arguments, growth with the image",
    "check": "look at every picture of a data set: unreadable, doubled, misplaced",
    "train": "train a model on a folder of images or on the embedded shapes",
    "sweep": "search settings of a training: a grid, at random, or by successive halving",
    "folds": "cross-validation: train once for each fold of data without splits",
    "evaluate": "measure a trained model on held-out data",
    "predict": "what a model says about images: classes, objects, a class for every pixel, keypoints, numbers",
    "explain": "why a model answered so: maps, clusters and how faithful they are, as one HTML report",
    "score": "how faithful each explanation method is to a model, over a data set",
    "atlas": "what each cluster of a model does, over a data set",
    "shortcuts": "what a model's answers hang on besides the object, over a data set",
    "serve": "explore a model in the browser: drop an image, switch clusters off, watch the prediction",
    "embed": "pooled features of pictures, however many, as files to search, cluster and classify",
    "export": "write a model as a graph for ONNX Runtime, OpenVINO or torch, to use it without vitreous",
    "push": "put a trained model on the Hugging Face hub, with a model card",
    "mend": "close clusters of a model for good, or paint a region over, without training",
    "analyze": "what a network does: frequencies, interactions, attention, clusters, sizes, corruptions",
    "bench": "how fast models are on this machine, and what memory they take, beside each other",
    "plot": "draw the curves of training runs, as a picture and one HTML page",
    "demo": "train, evaluate and explain a small model in a few minutes",
    "shapes": "write the embedded data set as files",
    "completion": "a script with which a shell completes verbs and options",
}

# Packages that come with an extra: import name -> extra.
EXTRAS = {
    "faster_coco_eval": "det",
    "fastapi": "web",
    "uvicorn": "web",
    "tensorboard": "log",
    "datasets": "data",
    "pyarrow": "parquet",
}

# Where verbs that return a path keep all their figures: names of files in that folder.
FIGURES = {
    "analyze": "analysis.json",
    "atlas": "atlas.json",
    "demo": "../demo.json",
    "explain": "explanation.json",
    "export": "export.json",
    "mend": "mended.json",
    "plot": "plot.json",
    "score": "faithfulness.json",
    "sweep": "../result/sweep.json",
}
WITHOUT_RESULT = ("serve", "completion")

MOVED = {"explain": ("score", "atlas")}  # verbs that were options of another
ALSO_OPTION = {"train": "folds"}  # verb -> an option by which another verb of that name is meant

# Aliases of options on the command line. In Python, `model` is the argument that says where the model is.
ALSO = {"architecture": "model"}

# Failures of the machine, not of our code: a sentence helps, a traceback does not.
MACHINE_ERRORS = {
    errno.EACCES,
    errno.EDQUOT,
    errno.EIO,
    errno.EISDIR,
    errno.ELOOP,
    errno.EMFILE,
    errno.ENAMETOOLONG,
    errno.ENFILE,
    errno.ENOENT,
    errno.ENOMEM,
    errno.ENOSPC,
    errno.ENOTDIR,
    errno.EPERM,
    errno.EROFS,
}
LONGEST_SHOWN = 300  # characters of a file's name

BAD_INPUT, INTERRUPTED, BROKEN_PIPE = 2, 130, 141
STDERR_GRACE_SECONDS = 3.0  # torchrun ends all processes when one has ended; the first must have said why by then


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        code = dispatch(arguments)
        sys.stdout.flush()  # a closed pipe must show up here, not while the interpreter shuts down
        return code
    except KeyboardInterrupt:
        complain("interrupted")
        return INTERRUPTED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return BROKEN_PIPE


def dispatch(arguments: list[str]) -> int:
    if not arguments or arguments in (["-h"], ["--help"], ["help"]):
        print(overview())
        return 0
    verb, *rest = arguments
    if verb == "help":
        verb, rest = rest[0], ["--help"]
    if verb == "--version":
        from importlib.metadata import version

        print(f"vitreous {version('vitreous')}")
        return 0
    if verb not in VERBS:
        from difflib import get_close_matches

        near = ", ".join(get_close_matches(verb, list(VERBS), n=3, cutoff=0.0))
        complain(f"unknown verb {verb!r}; nearest: {near}\n\n{overview()}")
        return BAD_INPUT
    for other in MOVED.get(verb, ()):
        if f"--{other}" in rest:
            complain(f"--{other} is a verb of its own now: vitreous {other} RUN DATA (see: vitreous {other} --help)")
            return BAD_INPUT
    if any(word.partition("=")[0] == f"--{ALSO_OPTION.get(verb)}" for word in rest):
        verb = ALSO_OPTION[verb]
    return run(verb, rest)


def overview() -> str:
    rows = "\n".join(f"  {verb:<11}{description}" for verb, description in VERBS.items())
    return (
        "vitreous: efficient vision transformers you can see into\n\n"
        f"usage: vitreous VERB ...\n\nverbs:\n{rows}\n\n"
        "  vitreous help VERB      arguments and examples of one verb; also: vitreous VERB --help\n"
        "  vitreous --version      the installed version\n\n"
        "start with:\n"
        "  vitreous explain photo.jpg   why a public model answers as it does, fetched once\n"
        "  vitreous demo                a model of your own in a few minutes, without a network"
    )


def run(verb: str, arguments: list[str]) -> int:
    """Import a verb, parse its arguments, call it; mistakes of the user become messages without traceback."""
    try:
        function = getattr(importlib.import_module(f"vitreous.{verb}"), verb)
        # Parsed first and called afterwards, so that an error of the verb is never mistaken for a bad argument.
        call = parse(function, f"vitreous {verb}", arguments, without_result=verb in WITHOUT_RESULT)
        from vitreous.runtime.console import messages_on_stderr

        with messages_on_stderr():
            result = call(verb)
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package not in EXTRAS:
            raise
        from vitreous.errors import to_install_extra

        complain(f"this needs the package {package!r}, which is not installed: {to_install_extra(EXTRAS[package])}")
        return BAD_INPUT
    except OSError as error:
        if error.errno not in MACHINE_ERRORS:
            raise
        complain(f"{error.strerror}: {str(error.filename or 'while reading or writing')[:LONGEST_SHOWN]}")
        return BAD_INPUT
    except MemoryError:
        complain("there is not enough memory for this; free some, raise the limit (ulimit -v), or give less at once")
        return BAD_INPUT
    except ValueError as error:
        from vitreous.errors import InputError

        if not isinstance(error, InputError):
            raise
        complain(str(error))
        return BAD_INPUT
    return getattr(result, "exit_code", 0)  # of a verb whose result is yes or no


def parse(
    function: Callable[..., Any], program: str, arguments: list[str], *, without_result: bool = False
) -> Callable[[str], Any]:
    """The call that the arguments ask for; exits with code 2 if they do not fit the signature."""
    import tyro

    command = as_command(function, named_options(arguments), without_result=without_result)
    with ExitStack() as quiet:
        if not is_first():
            nowhere = quiet.enter_context(open(os.devnull, "w"))
            quiet.enter_context(redirect_stdout(nowhere))
            quiet.enter_context(redirect_stderr(nowhere))
            quiet.push(lambda kind, *_: time.sleep(STDERR_GRACE_SECONDS) if kind is SystemExit else None)
        return tyro.cli(command, prog=program, args=arguments, description=help_text(function))


def named_options(arguments: list[str]) -> set[str]:
    """Parameters that a command line names; `--no-x` counts as `x`. Valid once tyro has accepted the arguments."""
    words = list(takewhile(lambda word: word != "--", arguments))
    names = [word[2:].partition("=")[0].replace("-", "_") for word in words if word.startswith("--")]
    own = [option for option, other in ALSO.items() if other in names]
    return {*names, *(name.removeprefix("no_") for name in names), *own}


def as_command(
    function: Callable[..., Any], named: set[str], *, without_result: bool = False
) -> Callable[..., Callable[[str], Any]]:
    """`function` as tyro should see it: arguments before the `*` are positional, those after it are options.

    Options that are not `named` are left out, so that the function can tell a default from the same value given. All
    verbs take --json; what those that do not know it return is written here.
    """
    hints = get_type_hints(function, include_extras=True)
    signature = inspect.signature(function)
    parameters = [p.replace(annotation=displayed(p, for_shell(hints[p.name]))) for p in signature.parameters.values()]

    left = {p.name for p in parameters if p.kind is p.KEYWORD_ONLY} - named
    writes_json = "json" in signature.parameters
    if not writes_json and not without_result:
        after = [p for p in parameters if p.kind is p.VAR_KEYWORD]
        parameters[len(parameters) - len(after) :] = [json_option(), *after]

    def command(*args: Any, **kwargs: Any) -> Callable[[str], Any]:
        file = kwargs.get("json") if writes_json else kwargs.pop("json", None)
        given = {name: value for name, value in kwargs.items() if name not in left}
        return partial(answer, partial(function, *args, **given), file, writes_json)

    # tyro takes the help of each argument from here, and would break its lines where the source does.
    command.__doc__ = (inspect.getdoc(function) or "").replace("\n        ", " ")
    command.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    command.__annotations__ = {p.name: p.annotation for p in parameters}
    return command


def json_option() -> inspect.Parameter:
    from tyro.conf import arg

    told = "Write the result to this file as JSON; - is standard output, and everything else then goes to stderr."
    hint = Annotated[Path | None, arg(metavar="PATH", help_behavior_hint="", help=told)]
    return inspect.Parameter("json", inspect.Parameter.KEYWORD_ONLY, default=None, annotation=hint)


def answer(function: Callable[[], Any], json: Path | None, writes_json: bool, verb: str) -> Any:
    """Call a verb's function, and write what it returns where it does not do so itself."""
    if json is None:
        return function()
    from vitreous.files.storage import json_text
    from vitreous.files.writing import standard_output_for_results, write_output
    from vitreous.runs.results import require_writable

    with standard_output_for_results(json):
        require_writable("--json", json)
        result = function()
        if not writes_json and is_first():
            planned = any(getattr(function, "keywords", {}).get(name) for name in ("dry_run", "print"))
            write_output(json, json_text({"path": str(result)} if planned else as_figures(verb, result)))
    return result


def as_figures(verb: str, result: Any) -> Any:
    """What a verb returned, as JSON has it: of a path, the figures that were written beside it."""
    if not isinstance(result, Path):
        return result.to_dict() if hasattr(result, "to_dict") else result
    from vitreous.files.storage import read_json_lines, read_stored_json

    folder = result.parent if result.is_file() else result
    figures, metrics = folder / FIGURES.get(verb, ""), folder / "metrics.jsonl"
    if figures.is_file():
        return {"path": str(result)} | read_stored_json(figures)
    last = read_json_lines(metrics)[-1:] if metrics.is_file() else []  # of a training run
    return {"path": str(result)} | dict(*last)


def for_shell(hint: Any) -> Any:
    """The type hint without settings objects, which only Python can give: of `str | Masking | None`, `str | None`."""
    if not isinstance(hint, UnionType):
        return hint
    return reduce(or_, (kind for kind in get_args(hint) if not is_dataclass(kind)))


def displayed(parameter: inspect.Parameter, hint: Any) -> Any:
    """The type hint with the name under which help shows the argument: MODEL, not STR; INT, not {None}|INT."""
    from tyro.conf import Positional, arg

    # No "(default: None)": the help of the argument says what happens without it.
    remark = "" if parameter.default in (None, parameter.empty, ()) else None
    if parameter.kind is parameter.POSITIONAL_OR_KEYWORD:
        name = parameter.name.upper()
        shown = f"{name} [{name} ...]" if getattr(hint, "__origin__", None) is tuple else name
        metavar = shown if parameter.default is parameter.empty else f"[{shown}]"
        return Annotated[hint, Positional, arg(metavar=metavar, help_behavior_hint=remark)]
    also = [f"--{ALSO[parameter.name]}"] if parameter.name in ALSO else None
    for kind, shown in {int: "INT", float: "FLOAT", str: "STR", Path: "PATH"}.items():
        if hint == kind | None:
            return Annotated[hint, arg(metavar=shown, help_behavior_hint=remark, aliases=also)]
    return Annotated[hint, arg(help_behavior_hint=remark)] if parameter.default == () else hint


def help_text(function: Callable[..., Any]) -> str:
    """The docstring without `Args:`, which tyro shows itself, and `Returns:`, which no command line needs.

    Example commands are indented below a heading, because tyro keeps the line breaks of indented text only.
    """
    kept: list[str] = []
    skipping = False
    for line in (inspect.getdoc(function) or "").splitlines():
        if line and not line[0].isspace():
            skipping = line in ("Args:", "Returns:", "Raises:")
        if line.startswith("vitreous "):
            kept += [f"    {line}"] if kept[-1].startswith("    ") else ["Examples:", f"    {line}"]
        elif not skipping:
            kept.append(line)
    return "\n".join(kept).strip()


def complain(message: str) -> None:
    if is_first():
        if "vitreous" in sys.modules:  # a verb was called, and the message may contain names from files
            from vitreous.errors import printable

            message = printable(message, keep="\n")
        print(f"vitreous: {message}", file=sys.stderr)
    else:
        time.sleep(STDERR_GRACE_SECONDS)


def is_first() -> bool:
    """Whether this is the first, or only, process that torchrun started: all of them see the same errors."""
    return os.environ.get("RANK", "0") == "0"


if __name__ == "__main__":
    sys.exit(main())
