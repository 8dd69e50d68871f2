"""Loading weights: wrappings, prefixes, changed tasks, and files that must be refused."""

import argparse
import json
import os
import pickle
from pathlib import Path

import pytest
import timm
import torch
from safetensors.torch import save_file

import vitreous
from tests.support.families import ONE_OF_EACH, awake, small
from tests.support.original_weights import paca_original, xcit_original
from vitreous.errors import InputError
from vitreous.files.storage import manifest_of
from vitreous.models import download
from vitreous.models.paca import PaCa
from vitreous.models.xcit import XCiT
from vitreous_command import parse

ARGUMENTS = dict(dims=(16, 24, 32, 40), depths=(1, 1, 2, 1), heads=(2, 2, 4, 4), clusters=(5, 6, 7, 0))
IMAGES = torch.randn(1, 3, 64, 64, generator=torch.Generator().manual_seed(1))


@pytest.fixture(scope="module")
def model() -> PaCa:
    torch.manual_seed(3)
    return PaCa(**ARGUMENTS, num_classes=4).eval()


@pytest.mark.parametrize(
    "wrap",
    [
        lambda state: state,
        lambda state: {"state_dict": state, "epoch": 3, "args": argparse.Namespace(lr=0.1)},
        lambda state: {"model": {f"module.{key}": value for key, value in state.items()}},
        lambda state: {
            "state_dict_ema": state,
            "state_dict": {key: torch.zeros_like(value) for key, value in state.items()},
        },
        lambda state: {
            "state_dict": {f"backbone.{key}": value for key, value in state.items()}
            | {"decode_head.conv_seg.weight": torch.zeros(2), "neck.x": torch.zeros(1)}
        },
        lambda state: {f"_orig_mod.{key}": value for key, value in state.items()},
    ],
    ids=["plain", "state_dict", "module", "ema first", "backbone of a segmenter", "compiled"],
)
def test_wrappings_and_prefixes(model: PaCa, wrap, tmp_path: Path) -> None:
    torch.save(wrap(model.state_dict()), tmp_path / "weights.pth")
    fresh = PaCa(**ARGUMENTS, num_classes=4).eval()
    report = fresh.load_weights(tmp_path / "weights.pth")
    assert not report.missing
    assert len(report.loaded) == len(model.state_dict())
    torch.testing.assert_close(fresh(IMAGES), model(IMAGES))


def test_safetensors_url_and_timm_paths(model: PaCa, tmp_path: Path) -> None:
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    expected = model(IMAGES)
    arguments = dict(ARGUMENTS, num_classes=4)
    by_url = PaCa(**arguments)
    by_url.load_weights((tmp_path / "model.safetensors").as_uri())
    by_path = timm.create_model("paca_tiny", checkpoint_path=str(tmp_path / "model.safetensors"), **arguments)
    overlay = {"file": str(tmp_path)}
    by_folder = timm.create_model("paca_tiny", pretrained=True, pretrained_cfg_overlay=overlay, **arguments)
    for made in (by_url, by_path, by_folder):
        torch.testing.assert_close(made.eval()(IMAGES), expected)


def test_changed_clusters_classes_and_channels_are_reported_by_name(model: PaCa) -> None:
    changed = dict(ARGUMENTS, clusters=(9, 9, 9, 0))
    report = PaCa(**changed, num_classes=11).load_weights(model.state_dict())
    assert set(report.reset) == {
        *(f"stages.{i}.blocks.0.clustering.logits.weight" for i in range(3)),
        "head.weight",
        "head.bias",
    }
    grey = PaCa(**ARGUMENTS, num_classes=4, in_chans=1)
    assert not grey.load_weights(model.state_dict()).reset
    torch.testing.assert_close(grey.stem.conv1.weight, model.stem.conv1.weight.sum(1, keepdim=True))
    headless = PaCa(**ARGUMENTS, num_classes=0)
    assert not headless.load_weights(model.state_dict()).unexpected


def test_what_does_not_fit_is_named_and_nothing_is_touched(model: PaCa) -> None:
    other = PaCa(**dict(ARGUMENTS, dims=(16, 24, 32, 48)), num_classes=4)
    before = {key: value.clone() for key, value in other.state_dict().items()}
    with pytest.raises(InputError, match=r"stages.3.downsample.conv.weight: checkpoint \(40, 32, 3, 3\), model \(48"):
        other.load_weights(model.state_dict())
    assert all(torch.equal(value, before[key]) for key, value in other.state_dict().items())
    state = dict(model.state_dict(), extra=torch.zeros(1))
    del state["stages.0.norm.weight"]
    fresh = PaCa(**ARGUMENTS, num_classes=4)
    with pytest.raises(InputError, match=r"missing: stages.0.norm.weight\n  unexpected: extra"):
        fresh.load_weights(state)
    report = fresh.load_weights(state, strict=False)
    assert (report.missing, report.unexpected) == (["stages.0.norm.weight"], ["extra"])


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_weights_that_are_not_finite_are_refused(name: str, tmp_path: Path) -> None:
    model = small(name, 1)
    state = model.state_dict()
    state["head.weight"][0, :3] = torch.tensor([torch.nan, torch.inf, -torch.inf])
    torch.save(state, tmp_path / "weights.pth")
    says = rf"NaN or infinite values in 1 of \d+ tensors, first head.weight with 3 of {5 * model.num_features} values"
    fresh = small(name, 1)
    for load in (fresh.load_weights, fresh.load_state_dict):
        with pytest.raises(InputError, match=says):
            load(state)
    assert fresh.head.weight.isfinite().all()
    with pytest.raises(InputError, match=says):
        small(name, 1, checkpoint_path=str(tmp_path / "weights.pth"))


class Hostile:
    def __init__(self, command: str) -> None:
        self.command = command

    def __reduce__(self):
        return os.system, (self.command,)


def test_a_hostile_pickle_is_refused_and_not_run(tmp_path: Path) -> None:
    trace = tmp_path / "was-run"
    for content in (Hostile(f"touch {trace}"), {"state_dict": Hostile(f"touch {trace}")}):
        with open(tmp_path / "evil.pth", "wb") as file:
            pickle.dump(content, file, protocol=2)
        torch.save(content, tmp_path / "evil_zip.pth")
        for name in ("evil.pth", "evil_zip.pth"):
            with pytest.raises(InputError, match="code in a checkpoint is never run") as refusal:
                PaCa(**ARGUMENTS).load_weights(tmp_path / name)
            assert "weights_only" not in str(refusal.value), "the message must not tell how to run it after all"
    assert not trace.exists()


@pytest.mark.parametrize(
    ("name", "content", "says"),
    [
        ("missing.pth", None, "no checkpoint at"),
        ("list.pth", [torch.zeros(1)], "holds a list"),
        ("empty.pth", {"epoch": 3}, "holds no tensors"),
        ("wrapped.pth", {"net": {"head.weight": torch.zeros(1)}}, "top-level entries: net. If they are under one"),
    ],
)
def test_other_files_are_refused(tmp_path: Path, name: str, content, says: str) -> None:
    if content is not None:
        torch.save(content, tmp_path / name)
    with pytest.raises(InputError, match=says):
        PaCa(**ARGUMENTS).load_weights(tmp_path / name)
    (tmp_path / "torn.safetensors").write_bytes(b"\x08\0\0\0\0\0\0\0garbage!")
    with pytest.raises(InputError, match="not a readable safetensors"):
        PaCa(**ARGUMENTS).load_weights(tmp_path / "torn.safetensors")


def test_without_a_network_the_error_says_what_to_do(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import urllib.error

    def offline(*_args, **_kwargs):
        raise urllib.error.URLError("no network")

    monkeypatch.setattr(download, "build_opener", offline)
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path))
    with pytest.raises(
        InputError, match=r"releases/download/pacavit/IMNET_224_pacavit_tiny\S+\.pth .*no network"
    ) as says:
        vitreous.create_model("paca_tiny.ivmcl_in1k", pretrained=True)
    for command, name in (("vitreous predict FILE IMAGES --model NAME", "predict"),
                          ("vitreous train NAME DATA --weights FILE", "train")):  # fmt: skip
        assert command in str(says.value)
        parse(getattr(vitreous, name), f"vitreous {name}", command.split()[2:])
    wanted = Path(str(says.value).rpartition("or put it at ")[2])
    with torch.device("meta"):
        layout = timm.create_model("paca_tiny").state_dict()
    torch.save({key: torch.zeros(value.shape) for key, value in layout.items()}, wanted)
    assert vitreous.create_model("paca_tiny", pretrained=True)(IMAGES).abs().sum() == 0


def test_other_kinds_of_addresses_are_refused() -> None:
    with pytest.raises(InputError, match=r"weights at ftp://somewhere/x\.pth cannot be fetched; give a file"):
        PaCa(**ARGUMENTS).load_weights("ftp://somewhere/x.pth")


def test_a_flipped_bit_in_a_model_folder_is_noticed(model: PaCa, tmp_path: Path) -> None:
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    PaCa(**ARGUMENTS, num_classes=4).load_weights(tmp_path)
    manifest = manifest_of([tmp_path / "model.safetensors"])
    (tmp_path / "manifest.json").write_text(json.dumps(manifest))
    PaCa(**ARGUMENTS, num_classes=4).load_weights(tmp_path)
    content = bytearray((tmp_path / "model.safetensors").read_bytes())
    content[-5] ^= 4
    (tmp_path / "model.safetensors").write_bytes(content)
    with pytest.raises(InputError, match=r"model\.safetensors is damaged"):
        PaCa(**ARGUMENTS, num_classes=4).load_weights(tmp_path)


def test_keys_that_are_no_names_are_refused(model: PaCa) -> None:
    with pytest.raises(InputError, match="under the key 1"):
        model.load_weights({1: torch.zeros(2)})


# Original layouts ---------------------------------------------------------------------------------


XCIT = dict(dim=32, depth=6, heads=4, tokens_norm=True, num_classes=4)


@pytest.fixture(scope="module")
def xcit() -> XCiT:
    torch.manual_seed(4)
    return awake(XCiT(**XCIT)).eval()


def test_checkpoint_path_takes_the_original_layouts(model: PaCa, xcit: XCiT, tmp_path: Path) -> None:
    """timm reads the file itself and hands it to `load_state_dict`."""
    for name, arguments, made, state in (
        ("paca_tiny", dict(ARGUMENTS, num_classes=4), model, paca_original(model.state_dict())),
        ("xcit_nano_12_p16", XCIT, xcit, xcit_original(xcit)),
    ):
        assert len(state.keys() - made.state_dict().keys()) > 20, "these should be other names than ours"
        torch.save({"model": state}, tmp_path / f"{name}.pth")
        loaded = timm.create_model(name, checkpoint_path=str(tmp_path / f"{name}.pth"), **arguments).eval()
        torch.testing.assert_close(loaded(IMAGES), made(IMAGES))


def test_what_torch_loads_strictly_is_still_strict(model: PaCa) -> None:
    fresh = PaCa(**ARGUMENTS, num_classes=4)
    with pytest.raises(RuntimeError, match=r"size mismatch for head\.weight"):
        fresh.load_state_dict(PaCa(**ARGUMENTS, num_classes=5).state_dict())
    with pytest.raises(InputError, match="unexpected: extra"):
        fresh.load_state_dict({**model.state_dict(), "extra": torch.zeros(1)})
    result = fresh.load_state_dict({**model.state_dict(), "extra": torch.zeros(1)}, strict=False)
    assert result.unexpected_keys == ["extra"]
    torch.testing.assert_close(fresh.eval()(IMAGES), model(IMAGES))


# DINO ---------------------------------------------------------------------------------------------


def dino_network(state: dict[str, torch.Tensor], prefix: str) -> dict[str, torch.Tensor]:
    """A backbone without classifier, and the projection head that DINO calls `head` too."""
    backbone = {f"{prefix}backbone.{key}": value for key, value in state.items() if not key.startswith("head.")}
    shapes = {"mlp.0.weight": (8, 32), "mlp.0.bias": (8,), "last_layer.weight_v": (16, 8), "weight": (4, 32)}
    return backbone | {f"{prefix}head.{key}": torch.full(shape, 7.0) for key, shape in shapes.items()}


@pytest.mark.parametrize("prefix", ["module.", ""])
@pytest.mark.parametrize("through", ["load_weights", "checkpoint_path"])
def test_full_dino_checkpoints_give_the_teacher(xcit: XCiT, prefix: str, through: str, tmp_path: Path) -> None:
    teacher = xcit_original(xcit)
    student = {key: torch.zeros_like(value) for key, value in teacher.items()}
    content = {
        "student": dino_network(student, "module."),
        "teacher": dino_network(teacher, prefix),
        "optimizer": {"param_groups": [{"lr": 0.1}]},
        "epoch": 300,
        "args": argparse.Namespace(arch="xcit"),
        "dino_loss": {"center": torch.zeros(1, 16)},
    }
    torch.save(content, tmp_path / "dino.pth")
    path = str(tmp_path / "dino.pth")
    if through == "load_weights":
        loaded = timm.create_model("xcit_nano_12_p16", **XCIT)
        report = loaded.load_weights(path)
        assert report[1:] == (["head.weight", "head.bias"], [], [])
    else:
        loaded = timm.create_model("xcit_nano_12_p16", checkpoint_path=path, **XCIT)
    assert not (loaded.head.weight == 7).any(), "the projection head is no classifier"
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(loaded.eval().features(images).pooled, xcit.features(images).pooled)
        del content["teacher"]
        loaded.load_weights(content)
        assert (loaded.class_token == 0).all(), "the student is taken where there is no teacher"


def test_released_dino_backbones_have_no_classifier(xcit: XCiT) -> None:
    state = {key: value for key, value in xcit_original(xcit).items() if not key.startswith("head.")}
    bare = XCiT(**{**XCIT, "num_classes": 0}).eval()
    assert bare.load_weights(state)[1:] == ([], [], [])
    with torch.no_grad():
        torch.testing.assert_close(bare(IMAGES), xcit.features(IMAGES).pooled)
