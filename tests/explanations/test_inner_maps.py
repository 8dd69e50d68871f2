"""`explain` of models without a classifier: what the class token reads, head by head."""

import json
import re

import pytest
import timm
import torch
from PIL import Image

from tests.support.tiny_data import picture
from tests.support.tiny_model import save_tiny_model
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError
from vitreous.explain import explain_run
from vitreous.explanations.inner_maps import inner_maps
from vitreous.layers.tap import record
from vitreous.models.xcit import XCiT
from vitreous.runs.model_folder import load_model, save_model

SMALL = dict(dim=16, depth=4, heads=2, patch=8, ends=(0, 1, 2, 3))


def headless(folder, name: str, size: int = 64, **arguments) -> str:
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=0, **arguments)
    about = dict(name=name, model_args=arguments, task="dino", classes=(), preprocess=Preprocess((size, size)))
    save_model(folder, model, **about)
    return str(folder)


def test_heads_of_the_class_token_are_shown(tmp_path):
    model = headless(tmp_path / "model", "xcit_nano_12_p8", **SMALL)
    picture(tmp_path / "a.png", (90, 70))
    report = explain_run(model, (str(tmp_path / "a.png"),), out=tmp_path / "out", device="cpu")
    content = json.loads((tmp_path / "out" / "explanation.json").read_text())
    (row,) = content["images"]
    assert (row["kind"], row["tap"], row["grid"]) == ("class_attention", "class_blocks.1.attention.map", [8, 8])
    assert len(row["entropy"]) == len(row["highest"]) == 2
    assert Image.open(tmp_path / "out" / row["sheet"]).width > 4 * 256, "the picture, the mean and two heads"
    assert "has no classifier" in report.read_text()
    assert not re.findall(r'(?:src|href)="(?!data:|#)', report.read_text())


def test_the_maps_are_those_of_the_model(tmp_path):
    trained = load_model(headless(tmp_path / "model", "xcit_nano_12_p8", **SMALL), features=True)
    picture(tmp_path / "a.png", (64, 64))
    image = Image.open(tmp_path / "a.png").convert("RGB")
    with torch.no_grad(), record(trained.model, "class_blocks.1.attention.map") as seen:
        trained.model(trained.preprocess(image)[None])
    assert torch.equal(inner_maps(trained, "a", image).maps, seen["class_blocks.1.attention.map"][0])


def test_models_of_timm_and_clusters(tmp_path):
    picture(tmp_path / "a.png", (64, 64))
    vit = load_model(headless(tmp_path / "vit", "test_vit", img_size=64), features=True)
    found = inner_maps(vit, "a", Image.open(tmp_path / "a.png").convert("RGB"))
    assert found.view.kind.name == "class_attention"
    assert found.maps.shape[1:] == (4, 4)
    save_tiny_model(tmp_path / "paca")
    arguments = json.loads((tmp_path / "paca" / "config.json").read_text())["model_args"]
    paca = load_model(headless(tmp_path / "headless", "paca_tiny", **arguments), features=True)
    assert inner_maps(paca, "a", Image.open(tmp_path / "a.png").convert("RGB")).view.kind.name == "clusters"


def test_what_cannot_be_shown_is_told(tmp_path):
    picture(tmp_path / "a.png", (64, 64))
    efficient = headless(tmp_path / "efficient", "test_efficientnet")
    with pytest.raises(InputError, match="neither a class token nor clusters"):
        explain_run(efficient, (str(tmp_path / "a.png"),), out=tmp_path / "out", device="cpu")
    xcit = headless(tmp_path / "xcit", "xcit_nano_12_p8", **SMALL)
    with pytest.raises(InputError, match="--label given, which is about answers"):
        explain_run(xcit, (str(tmp_path / "a.png"),), label="cat", out=tmp_path / "out", device="cpu")
    with pytest.raises(InputError, match="--compare compares answers"):
        explain_run(xcit, (str(tmp_path / "a.png"),), compare=xcit, out=tmp_path / "out", device="cpu")
    assert not (tmp_path / "out").exists()


# ---- public weights ----------------------------------------------------------------------------------------------


def dino_release(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The weights of timm's XCiT under the names of the public DINO files, which have no head."""
    state = {}
    for key, value in model.state_dict().items():
        found = re.fullmatch(r"(cls_attn_blocks\.\d\.attn\.)q\.(weight|bias)", key)
        if found:
            state[f"{found[1]}qkv.{found[2]}"] = torch.cat(
                [model.state_dict()[f"{found[1]}{one}.{found[2]}"] for one in "qkv"]
            )
        elif not re.search(r"cls_attn_blocks\.\d\.attn\.[kv]\.", key):
            state[key.replace("pos_embed.", "pos_embeder.")] = value
    return state


@pytest.mark.parametrize("wrapped", [False, True], ids=["backbone", "full checkpoint"])
def test_public_dino_weights_fit_and_give_the_same_features(tmp_path, wrapped):
    torch.manual_seed(0)
    options = dict(embed_dim=16, depth=4, num_heads=2, patch_size=8, num_classes=0, tokens_norm=True)
    theirs = timm.models.xcit.Xcit(img_size=64, **options).eval()
    for parameter in theirs.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    state = dino_release(theirs)
    assert not [key for key in state if key.startswith("head")]
    if wrapped:
        student = {f"module.backbone.{key}": torch.zeros_like(value) for key, value in state.items()}
        teacher = {f"backbone.{key}": value for key, value in state.items()} | {"head.mlp.0.weight": torch.zeros(4, 16)}
        state = {"student": student, "teacher": teacher, "epoch": 300}
    torch.save(state, tmp_path / "dino.pth")
    arguments = tuple(f"{name}={value}" for name, value in SMALL.items())
    trained = load_model(tmp_path / "dino.pth", architecture="xcit_small_12_p8", model_args=arguments, features=True)
    assert isinstance(trained.model, XCiT)
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        torch.testing.assert_close(trained.model(images), theirs(images), rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("size", ["small_12", "medium_24"])
@pytest.mark.parametrize("patch", [16, 8])
def test_public_dino_weights_are_known_by_tag(size, patch):
    config = timm.get_pretrained_cfg(f"xcit_{size}_p{patch}.fb_dino")
    assert config.url == f"https://dl.fbaipublicfiles.com/xcit/xcit_{size}_cp{patch}_dino.pth"
    assert config.num_classes == 0
