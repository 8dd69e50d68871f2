"""Reads weights from files, URLs and wrapped checkpoints, and fits them to a model with a report of every key."""

import argparse
import collections
import logging
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit
from urllib.request import url2pathname

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from timm.models import adapt_input_conv
from torch import Tensor, nn

from vitreous.errors import InputError
from vitreous.files.storage import MANIFEST, verify_folder
from vitreous.models.download import fetch, is_url
from vitreous.registry import CHECKSUMS

if TYPE_CHECKING:
    from vitreous.models.base import Backbone

_logger = logging.getLogger(__name__)

# In a model folder: ours, then the one timm writes by default.
WEIGHTS_FILES = ("model.safetensors", "pytorch_model.bin")
# Averaged weights first: they are the released ones. DINO's teacher is the average of its student.
WRAPPER_KEYS = ("state_dict_ema", "model_ema", "teacher", "state_dict", "model", "student")
WRAPPER_PREFIXES = ("module.", "_orig_mod.", "model.")
BACKBONE_PREFIX = "backbone."  # of a detector, segmenter or DINO network; other keys belong to other parts
REBUILT_KEYS = re.compile(r"num_batches_tracked$|blur_filter$")  # counters and constants, which the model rebuilds

URL_SCHEME = re.compile(r"^[a-z][a-z0-9+.-]+://", re.IGNORECASE)  # at least two characters: one is a Windows drive
MAX_SHOWN_DIFFERENCES = 5  # shown
STRICT_HINT = "is it the variant the weights were made for? strict=False loads what fits and reports the rest"
CHECKPOINT_LAYOUTS = {  # whose keys these are -> regular expressions that all match
    "a detector, segmenter or keypoint model of vitreous": (r"model\.stages\.\d+\.blocks\.",),
    "a ConvNeXt of timm": (r"^stem\.", r"^stages\.\d+\.blocks\.\d+\.conv_dw\."),
    "vitreous": (r"^stem\.", r"^stages\.\d+\.blocks\.\d+\.", r"^(stages\.\d+\.(norm|downsample)|class_blocks)\."),
    "the PaCa-ViT release": (r"^stage\d\.\d+\.", r"^transition\d\."),
    "the XCiT release, or timm's XCiT": (r"^cls_attn_blocks\.", r"local_mp\."),
    "a toolbox of OpenMMLab": (r"^(neck|decode_head|bbox_head|rpn_head|roi_head|keypoint_head)\.",),
    "Hugging Face transformers": (r"encoder\.(layer|layers|stages?)\.\d+\.",),
    "a Swin transformer": (r"^layers\.\d\.blocks\.\d+\.attn\.",),
    "a ViT, as timm and DeiT name it": (r"^blocks\.\d+\.attn\.qkv\.", r"^patch_embed\."),
    "a ResNet, as timm and torchvision name it": (r"^layer1\.0\.conv1\.",),
    "an EfficientNet or MobileNet of timm": (r"^conv_stem\.", r"^blocks\.\d+\.\d+\."),
}


class LoadReport(NamedTuple):
    loaded: list[str]
    reset: list[str]  # kept at their initial values because the new task needs another shape
    missing: list[str]
    unexpected: list[str]

    def __str__(self) -> str:
        parts = [f"{len(self.loaded)} tensors loaded"]
        parts += [f"{kind}: {', '.join(keys)}" for kind, keys in zip(self._fields[1:], self[1:], strict=True) if keys]
        return "; ".join(parts)


class MisfitError(InputError):
    """Weights that do not fit a model: a message that fits on one screen, and what to do about it."""

    def __init__(self, subject: str, lines: Sequence[str], hint: str) -> None:
        super().__init__("\n".join([f"{subject}: {lines[0]}", *(f"  {line}" for line in (*lines[1:], hint))]))
        self.lines = tuple(lines)


def read_state(source: str | Path | dict[str, Any], *, name: str | None = None) -> dict[str, Tensor]:
    """Tensors of a backbone by bare name, without those of other parts of a detector or segmenter."""
    state = read_tensors(source, name=name)
    if any(key.startswith(BACKBONE_PREFIX) for key in state):
        state = {key.removeprefix(BACKBONE_PREFIX): t for key, t in state.items() if key.startswith(BACKBONE_PREFIX)}
    return {key: value for key, value in state.items() if not REBUILT_KEYS.search(key)}


def read_tensors(source: str | Path | dict[str, Any], *, name: str | None = None) -> dict[str, Tensor]:
    """All tensors of a checkpoint from a file or URL, without wrappers and prefixes of the whole model.

    `name` is what messages call a source that is not a file.
    """
    content = source if isinstance(source, dict) else open_checkpoint(local_file(str(source)))
    for wrapper in WRAPPER_KEYS:
        if isinstance(content.get(wrapper), dict):
            content = content[wrapper]
            break
    state = {key: value for key, value in content.items() if isinstance(value, Tensor)}
    name = name or ("the given state dict" if isinstance(source, dict) else str(source))
    if not state:
        raise InputError(
            f"{name} holds no tensors, neither at the top nor under {', '.join(WRAPPER_KEYS)}; top-level entries: "
            f"{', '.join(map(str, list(content)[:8]))}. If they are under one of these, pass that dictionary itself"
        )
    for key in state:
        if not isinstance(key, str):
            raise InputError(f"{name} holds a tensor under the key {key!r}; keys must be names such as 'head.weight'")
    for prefix in WRAPPER_PREFIXES:
        if all(key.startswith(prefix) for key in state):
            state = {key.removeprefix(prefix): value for key, value in state.items()}
    return state


def local_file(source: str) -> Path:
    """The local path of a file or folder of weights; a URL is downloaded first."""
    source = lowercase_scheme(source)
    return local_path(source) or fetch(source, CHECKSUMS.get(source), check=open_checkpoint)


def lowercase_scheme(source: str) -> str:
    """HTTP:// and File:// mean the same as in lower case."""
    return URL_SCHEME.sub(lambda scheme: scheme[0].lower(), source)


def local_path(source: str) -> Path | None:
    """The local path of a source, whether it exists or not; None for a URL."""
    source = lowercase_scheme(source)
    if is_url(source):
        return None
    if source.startswith("file://"):
        return Path(url2pathname(urlsplit(source).path))
    if URL_SCHEME.match(source):
        raise InputError(f"weights at {source} cannot be fetched; give a file, a folder, or a URL with http(s)://")
    return Path(source).expanduser()


def open_checkpoint(path: Path) -> dict[str, Any]:
    if path.is_dir():
        if (path / MANIFEST).exists():
            verify_folder(path, WEIGHTS_FILES[:1])
        path = next((path / name for name in WEIGHTS_FILES if (path / name).exists()), path / WEIGHTS_FILES[0])
    if not path.is_file():
        raise InputError(f"no checkpoint at {path}; give a .pth, .pt or .safetensors file, a model folder or a URL")
    if path.suffix == ".safetensors":
        try:
            return load_file(path)
        except (SafetensorError, OSError) as error:
            raise InputError(f"{path} is not a readable safetensors file: {error}") from error
    # Training scripts store their argparse settings beside the weights; a Namespace cannot run anything.
    harmless: list[Any] = [argparse.Namespace, collections.defaultdict]
    try:
        with torch.serialization.safe_globals(harmless):
            content = torch.load(path, map_location="cpu", weights_only=True)
    except Exception as error:  # torch raises many types here; all mean the same to the user
        blocked = re.search(r"GLOBAL (\S+)", str(error))  # torch's own message recommends to run it
        reason = f"it asks to run {blocked[1]}" if blocked else f"reading it failed with {type(error).__name__}"
        raise InputError(
            f"{path} was refused: it is not a plain weights file; {reason}. Only tensors are read, code in a "
            "checkpoint is never run; ask its source for a safetensors file or a plain state dict"
        ) from error
    if not isinstance(content, dict):
        raise InputError(f"{path} holds a {type(content).__name__}, not a dictionary of tensors")
    return content


def apply_state(
    model: "Backbone",
    state: dict[str, Tensor],
    name: str,
    *,
    strict: bool,
    original: Mapping[str, Tensor] | None = None,
) -> LoadReport:
    """Copy what fits into the model; if something does not and `strict` is set, raise before any change.

    `original` is the state before keys were translated, which shows where it comes from.
    """
    own = {key: value for key, value in model.state_dict().items() if not REBUILT_KEYS.search(key)}
    state = dict(state)
    first = f"{model.first_conv}.weight"
    if first in state and first in own and state[first].shape[1] == 3 != own[first].shape[1]:
        state[first] = adapt_input_conv(own[first].shape[1], state[first])
    may_differ = re.compile(rf"^head\.|{model.reset_when_resized}")
    may_lack = re.compile(rf"^head\.|{model.reset_when_missing}")
    differs = [key for key in own if key in state and own[key].shape != state[key].shape]
    # With num_classes=0 there is no classifier.
    headless = [key for key in state if key.startswith("head.") and key not in own]
    reset = [key for key in differs if may_differ.search(key)]
    reset += [key for key in own if may_lack.search(key) and key not in state]
    wrong = [key for key in differs if key not in reset]
    missing = [key for key in own if key not in state and key not in reset]
    unexpected = [key for key in state if key not in own and key not in headless]
    if strict and (wrong or missing or unexpected):
        lines = _differences(own, state, original, wrong, missing, unexpected)
        raise MisfitError(f"{name} does not fit this {type(model).__name__}", lines, STRICT_HINT)
    check_finite({key: state[key] for key in own if key in state}, name)
    loaded = [key for key in own if key in state and key not in differs]
    nn.Module.load_state_dict(model, {key: state[key] for key in loaded}, strict=False)  # `Backbone` would check again
    report = LoadReport(loaded, reset + wrong, missing, unexpected)
    if report.reset or report.missing or report.unexpected:
        _logger.warning("%s: %s", name, report)
    return report


def check_finite(state: Mapping[str, Any], name: str) -> None:
    """Refuse NaN and infinity, which would spread to every output."""
    tensors = {key: value for key, value in state.items() if isinstance(value, Tensor) and not value.is_meta}
    bad = {key: int((~value.isfinite()).sum()) for key, value in tensors.items() if not value.isfinite().all()}
    if bad:
        key, count = next(iter(bad.items()))
        raise InputError(
            f"{name} holds NaN or infinite values in {len(bad)} of {len(tensors)} tensors, first {key} with {count} of "
            f"{tensors[key].numel()} values; it is damaged: take an earlier checkpoint, or fetch the file again"
        )


def describe_misfit(
    own: dict[str, Tensor], state: dict[str, Tensor], *, original: Mapping[str, Tensor] | None = None
) -> list[str]:
    """Lines that say how a state dict differs from the model's; none if it fits."""
    wrong = [key for key in own if key in state and own[key].shape != state[key].shape]
    missing, unexpected = [key for key in own if key not in state], [key for key in state if key not in own]
    fits = not (wrong or missing or unexpected)
    return [] if fits else _differences(own, state, original, wrong, missing, unexpected)


def _differences(
    own: dict[str, Tensor],
    state: dict[str, Tensor],
    original: Mapping[str, Tensor] | None,
    wrong: list[str],
    missing: list[str],
    unexpected: list[str],
) -> list[str]:
    """How much fits, what the file looks like, and a few differences of each kind."""
    same = sum(key in state and own[key].shape == state[key].shape for key in own)
    kinds = [
        [f"{key}: checkpoint {tuple(state[key].shape)}, model {tuple(own[key].shape)}" for key in wrong],
        [f"missing: {key}" for key in missing],
        [f"unexpected: {key}" for key in unexpected],
    ]
    chosen = {
        line for _, line in sorted((i, line) for kind in kinds for i, line in enumerate(kind))[:MAX_SHOWN_DIFFERENCES]
    }
    lines = [f"{same} of its {len(own)} tensors are in the file, by name and shape"]
    lines.append(f"the file is {describe_layout(original or state)}")
    lines += [line for kind in kinds for line in kind if line in chosen]
    left = len(wrong) + len(missing) + len(unexpected) - len(chosen)
    if left:
        counts = f"{len(wrong)} of another shape, {len(missing)} missing, {len(unexpected)} unexpected"
        lines.append(f"and {left} more: in all {counts}")
    return lines


def describe_layout(state: Mapping[str, Any]) -> str:
    """Whose keys a state dict has, as the end of a sentence."""
    names = "\n".join(map(str, state))
    for layout, patterns in CHECKPOINT_LAYOUTS.items():
        if all(re.search(pattern, names, re.MULTILINE) for pattern in patterns):
            return f"in the layout of {layout}"
    first = ", ".join(dict.fromkeys(str(key).partition(".")[0] for key in state))
    return f"in a layout unknown here; its names begin with {first[:100]}"
