"""Explaining within memory: what does not fit is left out and told, what was asked for and does not fit is refused."""

import json
import re
from pathlib import Path
from typing import Any

import pytest
import timm
import torch

import vitreous
from tests.support.tiny_model import save_tiny_model
from vitreous.attribution.method import pixels_at_once, rows_at_once
from vitreous.clusters.importance import patch_attention
from vitreous.clusters.layer import choose_layer
from vitreous.errors import InputError
from vitreous.layers.tap import record
from vitreous.measurements.plan import gradients_fit, plan_memory
from vitreous.models.paca import PaCa
from vitreous.runs.model_folder import load_model

SIZE = 512, 512  # of which maps are larger than the tiles they are computed in


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> str:
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def needed(run: str) -> int:
    """What looking forward takes, a little more than counted."""
    model = load_model(run, device="cpu").model
    needed = plan_memory(model, size=SIZE).needed.whole * 11 // 10
    assert not gradients_fit(model, SIZE, needed)
    assert gradients_fit(model, SIZE, needed * 20)
    return needed


def numbers(page: Path) -> Any:
    return json.loads((page.parent / "explanation.json").read_text())


def test_without_gradients_the_rest_is_explained(
    run: str, needed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = vitreous.explain(
        run, "shapes:val:0", size=SIZE[0], max_memory=f"{needed}B", out=tmp_path / "few", device="cpu"
    )
    told, progress = capsys.readouterr()
    assert "maps of shapes:val:0: 2/2 maps" in progress
    assert "plan: 512x512 pixels, 1 at a time" in told
    assert "gradients would need more" in told
    few = numbers(page)["images"][0]
    assert {method["method"] for method in few["methods"]} == {"clusters attention_mass", "centre_blob"}
    assert numbers(page)["ranking"] == "attention_mass"
    assert "insertion" in page.read_text()


def test_how_long_it_will_take_is_told_after_the_first_pass(
    run: str, needed: int, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    rows: list[int] = []
    forward = PaCa.forward

    def counted(model: PaCa, x: torch.Tensor) -> torch.Tensor:
        rows.extend([1] * len(x) if type(x) is torch.Tensor else [])  # planning passes tensors without values
        return forward(model, x)

    monkeypatch.setattr(PaCa, "forward", counted)
    options: dict[str, Any] = dict(size=SIZE[0], max_memory=f"{needed}B", device="cpu")
    vitreous.explain(run, "shapes:val:0", out=tmp_path / "few", **options)
    (told,) = re.findall(r"plan: shapes:val:0: (\d+) more passes of \d\.\ds, about", capsys.readouterr().out)
    assert len(rows) == 1 + int(told)


def test_where_all_fits_nothing_is_left_out(run: str, needed: int, tmp_path: Path) -> None:
    options = {"size": 64, "method": ("token_gradient", "occlusion"), "device": "cpu"}
    plenty = vitreous.explain(run, "shapes:val:0", max_memory=f"{needed * 50}B", out=tmp_path / "plenty", **options)
    plain = vitreous.explain(run, "shapes:val:0", out=tmp_path / "plain", **options)
    bounded, free = (numbers(page)["images"][0] for page in (plenty, plain))
    assert bounded["methods"] == free["methods"]


def test_a_method_that_does_not_fit_is_refused(run: str, needed: int, tmp_path: Path) -> None:
    out = tmp_path / "refused"
    with pytest.raises(InputError, match=r"grad_cam needs gradients.* --max-memory allows; allow more") as refusal:
        vitreous.explain(run, "shapes:val:0", size=SIZE[0], max_memory=f"{needed}B", method="grad_cam", out=out)
    assert len(str(refusal.value).splitlines()) == 1
    assert not out.exists()


def test_all_are_those_that_fit(run: str, needed: int, tmp_path: Path) -> None:
    options = {"size": SIZE[0], "max_memory": f"{needed}B", "budget": 2, "device": "cpu"}
    page = vitreous.explain(run, "shapes:val:0", method="all", out=tmp_path / "all", **options)
    names = {method["method"] for method in numbers(page)["images"][0]["methods"]}
    assert "rollout" in names
    assert not any("grad" in name for name in names)


@pytest.mark.parametrize(("given", "said"), [("3 parsec", "such as 3GB"), ("1KB", "would do")])
def test_amounts_that_cannot_be_are_one_line(run: str, tmp_path: Path, given: str, said: str) -> None:
    with pytest.raises(InputError, match=said) as refusal:
        vitreous.explain(run, "shapes:val:0", max_memory=given, out=tmp_path / "out", device="cpu")
    assert len(str(refusal.value).splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_copies_run_together_up_to_so_many_pixels() -> None:
    image = torch.zeros(1, 3, 100, 100)
    usual = rows_at_once(image, 64)
    with pixels_at_once(35_000):
        assert rows_at_once(image, 64) == 3
    assert rows_at_once(image, 64) == usual == 64


def test_heads_are_averaged_as_they_come() -> None:
    model = timm.create_model("paca_b0", depths=(1, 1, 2, 1), num_classes=10).eval()
    images, layer = torch.randn(1, 3, 64, 64), choose_layer(model, stage=3)
    with torch.no_grad(), record(model, "stages.2.blocks.1.attention.map") as maps:
        model(images)
    (whole,) = maps.values()  # every block of this model has clusters of its own
    assert torch.equal(patch_attention(model, images, layer), whole.mean(1))
