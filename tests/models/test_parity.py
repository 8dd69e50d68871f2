"""Same weights, same outputs as the reference implementations, for every recorded case.

A few small cases come with the project; more are taken from ../shared where it is there. The recorded keyword
arguments of the original classes are translated here, so that a new case of the same kind needs no new code.
"""

import json
import re
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from tests.conftest import SHARED
from vitreous.heads.semantic import PACA_HEAD_KEYS, PaCaHead, pixel_loss
from vitreous.layers.tap import record
from vitreous.models.paca import PaCa
from vitreous.models.xcit import XCiT

# Float32 noise of these networks is about 1e-6 of the largest value; a tanh GELU, a wrong epsilon or a missing
# shortcut is above this.
TOLERANCE = 3e-5

OWN = Path(__file__).parents[1] / "fixtures" / "parity"  # each at one size, so that a clone stays small
FOLDERS = (OWN, SHARED / "fixtures" / "parity")
CLUSTERINGS = {"P2CConv2d": "conv", "P2CMlp": "mlp", "P2CLinear": "linear"}

pytestmark = pytest.mark.parity


def cases(pattern: str) -> list:
    """Every recorded case by name; the one in ../shared, which has more sizes, takes the place of our own."""
    found = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob(f"{pattern}.safetensors"))}
    assert found, f"no reference data for {pattern} in {OWN}"
    return [pytest.param(path, id=name) for name, path in found.items()]


def read(path: Path) -> tuple[dict, dict[str, torch.Tensor], dict[str, dict[str, dict[str, torch.Tensor]]]]:
    """Original arguments, state dict, and tensors by image size and direction (in, out)."""
    arguments = json.loads(path.with_suffix(".json").read_text())["official_args"]
    state, sizes = {}, {}
    for key, value in load_file(path).items():
        kind, rest = key.split("/", 1)
        if kind == "state":
            state[rest] = value
        else:
            size, name = rest.split("/")
            sizes.setdefault(size, {}).setdefault(kind, {})[name] = value
    return arguments, state, sizes


def build_paca(original: dict) -> PaCa:
    shape, paca = original["arch_cfg"], original["paca_cfg"]
    arguments = dict(
        dims=shape["embed_dims"],
        depths=shape["depths"],
        heads=shape["num_heads"],
        mlp_ratios=shape["mlp_ratios"],
        clusters=original.get("downstream_cluster_num") or paca["clusters"],
        clustering=CLUSTERINGS[paca["type"]],
        recluster=paca["onsite_clustering"],
        kernel_size=paca["clustering_kernel_size"],
        cluster_eps=paca["cluster_norm_cfg"]["eps"],
        cluster_position=paca["cluster_pos_embed"],
        mlp_depthwise=paca["with_dwconv_in_mlp"],
        mlp_shortcut=paca["with_shortcut_in_mlp"],
        layer_scale=original.get("layer_scale"),
        norm="sub" if original.get("sub_ln") else "post" if original.get("post_norm") else "pre",
        position_size=original.get("img_size", 224) if original.get("with_pos_embed") else None,
        drop_path_rate=original.get("drop_path_rate", 0.0),
        num_classes=original["num_classes"],
        in_chans=original.get("in_chans", 3),
    )
    teacher = original.get("paca_teacher_cfg")
    if teacher:
        arguments["teacher"] = dict(
            dims=teacher["embed_dims"],
            depths=teacher["depths"],
            kernel_size=teacher["kernel_size"],
            add_features=teacher["return_outs"],
            drop_path_rate=teacher["drop_path_rate"],
        )
    return PaCa(**arguments)


def assert_close(ours: torch.Tensor, reference: torch.Tensor, name: str) -> None:
    assert ours.shape == reference.shape, f"{name}: shape {tuple(ours.shape)}, reference {tuple(reference.shape)}"
    error, limit = (ours - reference).abs().max().item(), TOLERANCE * reference.abs().max().item()
    assert error <= limit, f"{name}: differs by {error:.2e}, allowed {limit:.2e}"


def paca_output(name: str, model: PaCa, maps: dict, features: list[torch.Tensor]) -> torch.Tensor:
    """The tensor of ours that a recorded name stands for: feat<i>, z<i>.block<j>, attn<i>.block<j>."""
    if name.startswith("feat"):
        return features[int(name[4:]) - 1]
    place, block = name.split(".block")
    stage = int(place[-1]) - 1
    if place.startswith("attn"):
        return maps[f"stages.{stage}.blocks.{block}.attention.map"].flatten(3).transpose(2, 3)
    makers = sorted(int(key.split(".")[3]) for key in maps if key.startswith(f"stages.{stage}.clusters."))
    latest = [j for j in makers if j <= int(block)]
    key = f"stages.{stage}.clusters" + (f".{latest[-1]}" if latest else "")
    return maps[key].flatten(2)


@pytest.mark.parametrize("path", cases("paca_*"))
def test_paca_equals_reference(path: Path) -> None:
    original, state, sizes = read(path)
    model = build_paca(original).eval()
    report = model.load_weights(state)
    assert report[1:] == ([], [], []), str(report)
    for size, tensors in sizes.items():
        with torch.no_grad(), record(model) as maps:
            features = model.features(tensors["in"]["image"])
            assert_close(model(tensors["in"]["image"]), tensors["out"]["logits"], f"{size} logits")
        for name, reference in tensors["out"].items():
            if name != "logits":
                assert_close(paca_output(name, model, maps, features.maps), reference, f"{size} {name}")
        with torch.no_grad():  # the fused path, which no tap listens to
            assert_close(model(tensors["in"]["image"]), tensors["out"]["logits"], f"{size} logits, fused")


@pytest.mark.parametrize("path", cases("seghead_*"))
def test_paca_head_equals_reference(path: Path) -> None:
    original, state, sizes = read(path)
    head = PaCaHead(original["in_channels"], original["num_classes"], width=original["channels"]).eval()
    wanted = {key for key in head.state_dict() if not key.endswith("num_batches_tracked")}
    translated = {}
    for key, value in state.items():
        key = key.removeprefix("decode_head.")
        for pattern, ours in PACA_HEAD_KEYS:
            key = re.sub(pattern, ours, key)
        translated |= {key: value} if key in wanted else {}
    assert set(translated) == wanted
    head.load_state_dict(translated, strict=False)
    for size, tensors in sizes.items():
        inputs, outputs = tensors["in"], tensors["out"]
        with torch.no_grad(), record(head, "clusters") as maps:
            result = head([inputs[f"feat{i}"] for i in range(1, len(original["in_channels"]) + 1)])
        labels, weight = inputs["label"].long(), original["aux_loss_decode"]["loss_weight"]
        assert_close(result.logits, outputs["seg_logits"], f"{size} seg_logits")
        assert_close(result.auxiliary, outputs["cluster_logits"], f"{size} cluster_logits")
        assert_close(maps["clusters"].flatten(2), outputs["z"], f"{size} z")
        assert_close(pixel_loss(result.logits, labels), outputs["loss_main"], f"{size} loss_main")
        assert_close(weight * pixel_loss(result.auxiliary, labels), outputs["loss_aux"], f"{size} loss_aux")


def build_xcit(original: dict) -> XCiT:
    assert original["mlp_ratio"] == 4
    return XCiT(
        original["embed_dim"],
        original["depth"],
        original["num_heads"],
        patch=original["patch_size"],
        scale=original["eta"],
        tokens_norm=original.get("tokens_norm", True),
        ends=tuple(original["out_indices"]) if "out_indices" in original else None,
        dense="out_indices" in original,
        num_classes=original.get("num_classes", 0),
        drop_path_rate=original["drop_path_rate"],
    )


@pytest.mark.parametrize("path", cases("xcit_*"))
def test_xcit_equals_reference(path: Path) -> None:
    original, state, sizes = read(path)
    model = build_xcit(original).eval()
    report = model.load_weights(state)
    assert report[1:] == ([], [], []), str(report)
    blocks = [block for stage in model.stages for block in stage.blocks]
    seen: dict[str, torch.Tensor] = {}
    model.stem.register_forward_hook(lambda _m, _i, out: seen.update(patch_tokens=out.flatten(1, 2)))
    model.position.register_forward_hook(lambda _m, _i, out: seen.update(pos_map=out.permute(2, 0, 1)[None]))
    blocks[0].register_forward_hook(lambda _m, _i, out: seen.update(block0=out.flatten(1, 2)))
    blocks[-1].register_forward_hook(lambda _m, _i, out: seen.update(block_last=out.flatten(1, 2)))
    for size, tensors in sizes.items():
        with torch.no_grad():
            maps, pooled = model.features(tensors["in"]["image"])
            seen |= dict(cls_feature=pooled, logits=model(tensors["in"]["image"]))
        seen |= {f"fpn{i}": level for i, level in enumerate(maps, 1)}
        for name, reference in tensors["out"].items():
            assert_close(seen[name], reference, f"{size} {name}")
