"""An exported model as a folder: all that a program needs to use it, and what was found when it was written.

model.onnx          or model.xml and model.bin, or model.pt2: the graph
regions.onnx        of detectors that look twice, as model.onnx; and masks.onnx of those with masks
config.json         preprocessing, classes and task, as in a model folder
run.py              a program that answers about pictures with the graph, numpy and Pillow
export.json         what the graph takes and gives, how far it is from torch, how fast it is
manifest.json       size and sha256 of all of them
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

from vitreous.errors import InputError
from vitreous.exports.model import BOX_CHOICES, ExportedModel, exported_model
from vitreous.exports.outputs import KINDS, WITHOUT_HEAD
from vitreous.exports.session import FILES, Session, open_session
from vitreous.files.reading import excerpt, reading
from vitreous.files.storage import MANIFEST, DamagedError, manifest_of, read_stored_json, sha256, write_json

EXPORT_JSON, RUN_SCRIPT = "export.json", "run.py"


class Ports(NamedTuple):
    """Names of what a further graph takes and gives."""

    inputs: tuple[str, ...]
    outputs: tuple[str, ...]


@dataclass(frozen=True)
class GraphFacts:
    """What a graph takes and gives."""

    to: str  # onnx, openvino or torch
    kind: str  # of KINDS
    precision: str  # fp32 or int8
    shape: tuple[int | None, ...]  # (B, 3, H, W), None: any
    outputs: tuple[str, ...]
    maps: tuple[str, ...] = ()  # which of the outputs are maps of taps
    choice: Mapping[str, Any] = field(default_factory=dict)  # how a detector chooses among its boxes
    later: Mapping[str, Ports] = field(default_factory=dict)  # the graphs that follow, by the names of their files

    def content(self) -> dict[str, Any]:
        return asdict(self) | {"later": {name: ports._asdict() for name, ports in self.later.items()}}


def is_exported(folder: Path) -> bool:
    """Also of one that has lost its report, so that just this is missed."""
    return any((folder / name).is_file() for name in (EXPORT_JSON, *chain(*FILES.values())))


def read_facts(folder: Path) -> GraphFacts:
    """What export.json says about the graph; what is wrong with it is a DamagedError."""
    path = folder / EXPORT_JSON
    with reading(str(path), remedy="export the model again"):
        content = read_stored_json(path)["graph"]
        found = GraphFacts(
            to=content["to"],
            kind=content["kind"],
            precision=content["precision"],
            shape=tuple(content["shape"]),
            outputs=tuple(content["outputs"]),
            maps=tuple(content["maps"]),
            choice=dict(content["choice"]),
            later={
                name: Ports(tuple(ports["inputs"]), tuple(ports["outputs"])) for name, ports in content["later"].items()
            },
        )
    _check(path, found)
    return found


def _check(path: Path, found: GraphFacts) -> None:
    sides = len(found.shape) == 4 and all(side is None or type(side) is int for side in found.shape)
    names = all(isinstance(name, str) for name in found.outputs) and set(found.maps) <= set(found.outputs)
    known = found.to in FILES and found.kind in KINDS
    chosen = found.kind not in BOX_CHOICES or BOX_CHOICES[found.kind] <= set(found.choice)
    further = all(name.isidentifier() for name in found.later)  # and leads to no other folder
    if not (sides and names and known and chosen and further):
        raise DamagedError(f"{path} is damaged: 'graph' is {excerpt(found.content())}; export the model again")


def load_exported(folder: Path, classes: int) -> ExportedModel:
    """The graph of a folder as a module; one of features alone gives no answers, and is refused."""
    facts = read_facts(folder)
    if facts.kind == WITHOUT_HEAD:
        raise InputError(
            f"'{folder}' holds the features of a model without its head, so there is nothing to predict; its "
            f"{RUN_SCRIPT} gives them: python {folder / RUN_SCRIPT} photo.jpg"
        )
    session = open_session(folder, facts.to, facts.outputs, facts.shape)
    model = exported_model(facts.kind, session, facts.maps, classes, facts.choice, open_later(folder, facts))
    model.digest = sha256(folder / MANIFEST)
    return model


def open_later(folder: Path, facts: GraphFacts) -> Mapping[str, Session]:
    """The graphs that follow the first."""
    return {
        name: open_session(folder, facts.to, ports.outputs, inputs=ports.inputs, graph=name)
        for name, ports in facts.later.items()
    }


def write_report(staging: Path, report: dict[str, Any], last: str) -> None:
    """export.json, and the manifest of everything; `last` is moved last, and makes the folder a model."""
    own = (EXPORT_JSON, MANIFEST, last)
    others = sorted(path.name for path in staging.iterdir() if path.name not in own)
    write_json(staging / EXPORT_JSON, report | {"files": [*others, MANIFEST, last]})
    write_json(staging / MANIFEST, manifest_of(staging / name for name in (*others, EXPORT_JSON, last)))
