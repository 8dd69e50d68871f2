"""Model folders, recipes and results that were damaged or forged: used rightly, or refused in a sentence."""

import json
import random
from pathlib import Path

import pytest

from tests.support.mutations import as_text, bounded, many, mutated_bytes, mutated_tree
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.data.detector_boxes import read_boxes
from vitreous.errors import InputError
from vitreous.explanations.default_method import DEFAULT_METHOD_FILE, read_default_method
from vitreous.files.storage import MANIFEST, manifest_of
from vitreous.models.arguments import parse_model_arg
from vitreous.registry import create_model
from vitreous.runs.model_folder import load_model
from vitreous.runs.results import result_folder
from vitreous.train import train
from vitreous.training.recipe import RECIPES_FOLDER, load_recipe

FEW, MANY = 40, 2_000


def seal(folder: Path) -> None:
    """A manifest that agrees with the files: what a forger would write."""
    content = manifest_of([folder / "model.safetensors", folder / "config.json"])
    (folder / MANIFEST).write_text(json.dumps(content))


def mutated_config(folder: Path, good: str, rng: random.Random) -> str:
    forged = as_text(mutated_tree(json.loads(good), rng)) if rng.random() < 0.9 else ""
    content = forged.encode() or mutated_bytes(good.encode(), rng)
    (folder / "config.json").write_bytes(content)
    seal(folder)
    return "config.json"


def mutated_configs(tmp_path: Path, task: str, count: int) -> None:
    folder = tmp_path / "best"
    if task == "classify":
        save_tiny_model(folder)
    else:
        save_tiny_dense(folder, task, ("a", "b"))
    good = (folder / "config.json").read_text()

    def use() -> None:
        trained = load_model(folder)
        trained.build_task()

    used = many(lambda rng: mutated_config(folder, good, rng), use, count, seed=1, named=str(tmp_path))
    assert used < count


@pytest.mark.parametrize("task", ["classify", "segment"])
def test_forged_configs(tmp_path, task):
    mutated_configs(tmp_path, task, FEW)


@pytest.mark.slow
@pytest.mark.parametrize("task", ["classify", "detect", "segment", "keypoints"])
def test_thousands_of_forged_configs(tmp_path, task):
    mutated_configs(tmp_path, task, MANY)


@pytest.mark.parametrize(
    "changes",
    [
        {"depths": [3000, 3000, 3000, 3000]},
        {"depths": [10**9, 1, 1, 1]},
        {"depths": [1] * 20_000},
        {"dims": [16000, 16000, 16000, 16000], "heads": [1, 1, 1, 1]},
        {"clusters": [10**12, 1, 1, 0]},
        {"mlp_ratios": [1e12, 4, 4, 4]},
        {"mlp_ratios": [9999.0, 9999.0, 9999.0, 9999.0], "dims": [512, 512, 512, 512], "heads": [1, 1, 1, 1]},
    ],
)
def test_a_few_bytes_do_not_build_a_giant(tmp_path, changes):
    folder = tmp_path / "best"
    save_tiny_model(folder)
    config = json.loads((folder / "config.json").read_text())
    config["model_args"] |= changes
    (folder / "config.json").write_text(json.dumps(config))
    seal(folder)
    built = {
        "load": lambda: load_model(folder),
        "fine-tune": lambda: train("paca_tiny", "shapes", weights=str(folder), size=32, epochs=1, out=tmp_path / "run"),
        "timm": lambda: create_model(f"local-dir:{folder}"),
    }
    for build in built.values():
        with bounded(seconds=60), pytest.raises(InputError, match=r"model_args|its arguments ask for more than"):
            build()
    assert not (tmp_path / "run").exists()


def recipes(tmp_path: Path, count: int) -> None:
    files = [path.read_bytes() for path in sorted(RECIPES_FOLDER.glob("*.yaml"))]
    own = tmp_path / "own.yaml"

    def make(rng: random.Random) -> str:
        own.write_bytes(mutated_bytes(rng.choice(files), rng))
        return "recipe"

    many(make, lambda: load_recipe(str(own)), count, seed=2, named=str(own))


def test_damaged_recipes(tmp_path):
    recipes(tmp_path, FEW)


@pytest.mark.slow
def test_thousands_of_damaged_recipes(tmp_path):
    recipes(tmp_path, MANY)


def results(tmp_path: Path, count: int) -> None:
    """What verbs read again of what verbs wrote: boxes for keypoints, the measured default, the list of a result."""
    folder = tmp_path / "best"
    save_tiny_dense(folder, "keypoints", ("a", "b"))
    task = load_model(folder).build_task()
    row = {"class": "a", "score": 0.9, "bbox": [1, 2, 3, 4]}
    files = {
        tmp_path / "predictions.json": {"images": [{"image": "x.png", "predictions": [row, row]}], "files": ["a.png"]},
        folder / DEFAULT_METHOD_FILE: {
            "method": "m",
            "reason": "r",
            "beats_controls": {"m": True},
            "data": "d",
            "images": 3,
        },
    }
    reads = {
        tmp_path / "predictions.json": lambda file: read_boxes(
            file, dict(enumerate(task.classes, 1)), task.classes, 0.5
        ),
        folder / DEFAULT_METHOD_FILE: lambda file: read_default_method(str(folder)),
    }
    for file, tree in files.items():

        def make(rng: random.Random, file: Path = file, tree: object = tree) -> str:
            good = json.dumps(tree).encode()
            file.write_bytes(
                as_text(mutated_tree(tree, rng)).encode() if rng.random() < 0.7 else mutated_bytes(good, rng)
            )
            return file.name

        def use(file: Path = file) -> None:
            reads[file](file)

        many(make, use, count, seed=3, named=file.name)

    out = tmp_path / "out"
    out.mkdir()

    def make_marker(rng: random.Random) -> str:
        (out / "r.json").write_text(as_text(mutated_tree({"files": ["a.png", "b.png"]}, rng)))
        return "marker"

    def replace_result() -> None:
        with result_folder(out, "r.json") as staging:
            (staging / "r.json").write_text('{"files": []}')

    assert many(make_marker, replace_result, count, seed=4) == count, "an unreadable list of files is an empty one"


def test_damaged_results(tmp_path, capsys):
    results(tmp_path, FEW)


@pytest.mark.slow
def test_thousands_of_damaged_results(tmp_path, capsys):
    results(tmp_path, MANY)


@pytest.mark.parametrize("value", ["-" * 100_000 + "1", "-" * 5_000 + "1", "-" * 200_000])
def test_arguments_of_the_command_line_too_deep_for_a_parser(value):
    with (
        bounded(),
        pytest.raises(InputError, match=r"model_args 'clusters' (has 100,|has 200,|cannot be read: .*deeply)"),
    ):
        parse_model_arg(f"clusters={value}")


@pytest.mark.parametrize("value", ["(" * 9_000, "9" * 9_000])
def test_what_is_no_literal_is_a_text(value):
    assert parse_model_arg(f"clusters={value}") == ("clusters", value)
