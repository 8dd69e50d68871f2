"""Models kept with their settings, in the format of the Hugging Face hub: written by timm or by us, read by both."""

import json
from pathlib import Path

import pytest
import timm
import torch
from huggingface_hub.errors import EntryNotFoundError
from timm.models import save_for_hf
from torch import nn

import vitreous
from tests.support.families import ONE_OF_EACH, save_small, short, small
from vitreous.errors import InputError
from vitreous.files import hub
from vitreous.training.build import model_arguments
from vitreous.training.settings import TrainSettings

CREATE = pytest.mark.parametrize("create", [timm.create_model, vitreous.create_model], ids=["timm", "vitreous"])


def unusual(name: str) -> dict:
    """Arguments that differ from the variant's, as many as a family has."""
    resolution = dict(patch=8) if "xcit" in name else dict(stem_stride=2)
    return {**short(name), **resolution, "in_chans": 1, "num_classes": 4}


@torch.no_grad()
def assert_equal_outputs(loaded: nn.Module, model: nn.Module) -> None:
    images = torch.randn(2, model.in_chans, 64, 96)
    assert torch.equal(loaded.eval()(images), model(images))


@CREATE
@pytest.mark.parametrize("safe", [True, False], ids=["safetensors", "bin"])  # the latter is timm's default
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_folder_written_by_timm(name: str, safe: bool, create, tmp_path: Path) -> None:
    model = small(name, 1, **unusual(name)).eval()
    save_for_hf(model, tmp_path, model_args=unusual(name), safe_serialization=safe)
    loaded = create(f"local-dir:{tmp_path}", pretrained=True)
    assert_equal_outputs(loaded, model)
    assert loaded.strides == model.strides
    assert loaded.num_classes == 4


@CREATE
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_folder_written_by_us(name: str, create, tmp_path: Path) -> None:
    model = save_small(tmp_path / "best", name, in_chans=1)
    assert_equal_outputs(create(f"local-dir:{tmp_path / 'best'}", pretrained=True), model)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_maps_of_a_folder(name: str, tmp_path: Path) -> None:
    model = save_small(tmp_path / "best", name)
    maps = timm.create_model(f"local-dir:{tmp_path / 'best'}", pretrained=True, features_only=True).eval()
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        # The third level of XCiT's dense form has the stride of its patches, so it is the same map.
        torch.testing.assert_close(maps(images)[2], model.features(images).maps[2])
    assert maps.feature_info.reduction() == [4, 8, 16, 32]


@CREATE
def test_hub(create, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """With a folder in the hub's place."""

    def fetch(repo_id: str, filename: str, **_options) -> str:
        assert repo_id == "somebody/mat"
        if not (tmp_path / filename).exists():
            raise EntryNotFoundError(filename)
        return str(tmp_path / filename)

    monkeypatch.setattr("timm.models._hub.hf_hub_download", fetch)
    monkeypatch.setattr(hub, "no_connection", lambda: None)
    model = small("mat_1", 1).eval()
    save_for_hf(model, tmp_path, model_args=short("mat_1"), safe_serialization=True)
    assert_equal_outputs(create("hf-hub:somebody/mat", pretrained=True), model)


def test_folders_that_cannot_be_used(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"has no config.json; give one such as local-dir:runs"):
        vitreous.create_model(f"local-dir:{tmp_path}")
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(InputError, match=r"cannot be used \(KeyError: 'architecture'\)"):
        vitreous.create_model(f"local-dir:{tmp_path}", pretrained=True)
    (tmp_path / "config.json").write_text(json.dumps({"architecture": "paca_b0"}))
    with pytest.raises(InputError, match=r"no checkpoint at .*model.safetensors"):
        vitreous.create_model(f"local-dir:{tmp_path}", pretrained=True)


# Training from such a model ---------------------------------------------------------------------


@pytest.fixture(scope="module")
def kept(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, nn.Module]:
    folder = tmp_path_factory.mktemp("kept") / "best"
    model = save_small(folder, "paca_b0", clusters=(9, 9, 9, 0))
    return f"local-dir:{folder}", model


@pytest.mark.parametrize("pretrained", [False, True])
def test_a_run_starts_from_the_weights_when_asked_and_says_so_when_not(
    kept: tuple[str, nn.Module], pretrained: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    name, model = kept
    settings = dict(size=32, epochs=1, batch_size=8, workers=0, train_count=8, val_count=8, out=tmp_path / "run")
    run = vitreous.train(name, "shapes", pretrained=pretrained, lr=1e-9, min_lr=0.0, **settings)
    said = "its architecture only; add --pretrained to start from its weights" in capsys.readouterr().out
    assert said is not pretrained
    # What is stored with the model went into the run's own folder: it can be built again.
    trained = timm.create_model(f"local-dir:{run / 'best'}", pretrained=True)
    assert trained.num_classes == 10
    kernel = "stages.2.blocks.0.mlp.fc1.weight"
    close = torch.allclose(trained.state_dict()[kernel], model.state_dict()[kernel], atol=1e-6)
    assert close is pretrained


def test_what_the_user_gives_goes_before_what_is_stored(kept: tuple[str, nn.Module]) -> None:
    arguments = model_arguments(TrainSettings(kept[0], "shapes", model_args=("clusters=(4,4,4,0)",)))
    assert arguments == {"depths": [1, 1, 1, 1], "clusters": (4, 4, 4, 0)}
    model = vitreous.create_model(kept[0], pretrained=True, **arguments)
    assert model.stages[0].blocks[0].clustering.logits.out_features == 4


def test_run_folder_of_a_kept_model_is_one_folder() -> None:
    settings = TrainSettings("local-dir:runs/photos/best", "shapes")
    assert settings.folder == Path("runs/local-dir-runs-photos-best-shapes")
