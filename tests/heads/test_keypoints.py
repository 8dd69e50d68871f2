"""SimpleBaseline: every family learns heat maps, and decoding finds between cells what was put there."""

import pytest
import timm
import torch
from torch import Tensor

from tests.support.families import FAMILIES, small
from vitreous.errors import InputError
from vitreous.heads.keypoints import build_keypoints, decode_keypoints, flip_test

TINY = dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 2, 3, 4), clusters=(6, 6, 6, 0))


def blobs(points: Tensor, size: tuple[int, int], sigma: float = 2.0) -> Tensor:
    """Heat maps of stride 4 for crops of `size`, with a Gaussian at each point (..., 2) of the crop."""
    x, y = (points / 4 - 0.5).unbind(-1)
    rows, columns = torch.arange(size[0] // 4)[:, None], torch.arange(size[1] // 4)
    squared = (columns - x[..., None, None]) ** 2 + (rows - y[..., None, None]) ** 2
    return torch.exp(-squared / (2 * sigma**2))


def random_points(batch: int, joints: int, size: tuple[int, int], margin: float) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    height, width = size
    inner = torch.tensor([width - 2 * margin, height - 2 * margin])
    return torch.rand(batch, joints, 2, generator=generator) * inner + margin


@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_a_training_step(family: str) -> None:
    model = build_keypoints(small(family, 1, features_only=True), 3, width=8).train()
    size = (32, 32) if "cifar" in family else (64, 96)
    images, targets = torch.randn(2, 3, *size), torch.rand(2, 3, size[0] // 4, size[1] // 4)
    losses = model(images, {"heatmaps": targets, "weights": torch.ones(2, 3)})
    assert set(losses) == {"heatmaps"}
    losses["heatmaps"].backward()
    assert not [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_the_backbone_may_be_of_timm_and_the_size_any() -> None:
    model = build_keypoints(timm.create_model("resnet18", features_only=True), 5, width=8).eval()
    with torch.no_grad():
        for size in ((64, 48), (70, 99), (256, 192)):
            assert model(torch.randn(1, 3, *size)).shape == (1, 5, -(-size[0] // 4), -(-size[1] // 4))


def test_unseen_joints_teach_nothing() -> None:
    model = build_keypoints(timm.create_model("paca_tiny", features_only=True, **TINY), 3, width=8).train()
    images, targets = torch.randn(2, 3, 64, 64), torch.rand(2, 3, 16, 16)
    heatmaps = model(images)
    weights = torch.tensor([[1.0, 0.0, 1.0], [0.0, 0.0, 1.0]])
    expected = ((heatmaps - targets) ** 2).mean((2, 3))[weights > 0].sum() / 6
    torch.testing.assert_close(model.losses(heatmaps, {"heatmaps": targets, "weights": weights})["heatmaps"], expected)
    nothing = model(images, {"heatmaps": targets, "weights": torch.zeros(2, 3)})["heatmaps"]
    nothing.backward()
    assert nothing == 0
    assert all((parameter.grad == 0).all() for parameter in model.parameters())


def test_a_picture_is_learned() -> None:
    torch.manual_seed(0)
    model = build_keypoints(timm.create_model("paca_tiny", features_only=True, **TINY), 2, width=16).train()
    points = torch.tensor([[[10.0, 40.0], [50.0, 12.0]], [[44.0, 44.0], [20.0, 20.0]]])
    target = blobs(points, (64, 64))
    images = torch.cat([torch.nn.functional.interpolate(target, scale_factor=4), torch.zeros(2, 1, 64, 64)], 1)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-3)
    for _ in range(30):
        loss = model(images, {"heatmaps": target, "weights": torch.ones(2, 2)})["heatmaps"]
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        found = decode_keypoints(model(images))[..., :2]
    assert (found - points).norm(dim=-1).max() < 2  # half a cell of the heat map


# Decoding -----------------------------------------------------------------------------------------


def test_round_trip() -> None:
    points = random_points(16, 5, (256, 192), margin=4)
    found = decode_keypoints(blobs(points, (256, 192)))
    assert (found[..., :2] - points).abs().max() <= 0.001  # pixels of the crop: float32 logarithms


def test_noise_is_smoothed_away_from_the_border(monkeypatch: pytest.MonkeyPatch) -> None:
    points = random_points(16, 5, (256, 192), margin=28)
    noisy = blobs(points, (256, 192)) + 0.05 * torch.randn(16, 5, 64, 48, generator=torch.Generator().manual_seed(1))

    def mean_error() -> float:
        return (decode_keypoints(noisy)[..., :2] - points).norm(dim=-1).mean().item()

    smoothed = mean_error()
    monkeypatch.setattr("vitreous.heads.keypoints.BLOB_SIGMA", 0.0)
    assert smoothed < 0.5 < mean_error()


def test_peaks_at_the_edge_and_empty_maps() -> None:
    corners = torch.tensor([[[0.5, 0.5], [47.5, 0.5], [0.5, 63.5], [47.5, 63.5]]])
    found = decode_keypoints(blobs(corners, (64, 48)))
    assert (found[..., :2] - corners).abs().max() <= 4
    for value in (0.0, -1.0):
        flat = decode_keypoints(torch.full((1, 2, 16, 12), value))
        assert torch.isfinite(flat).all()
        assert (flat[..., 2] == value).all()
    assert torch.isfinite(decode_keypoints(torch.rand(1, 2, 1, 1))).all()


def test_the_score_is_the_height_of_the_peak() -> None:
    heatmaps = torch.zeros(1, 2, 8, 8)
    heatmaps[0, 0, 3, 5], heatmaps[0, 1, 6, 2] = 0.7, 0.2
    found = decode_keypoints(heatmaps)
    torch.testing.assert_close(found, torch.tensor([[[22.0, 14.0, 0.7], [10.0, 26.0, 0.2]]]))


def test_positions_are_brought_to_the_picture() -> None:
    """Each object has its own affine map, here a turn by a right angle with a shift, and a plain scale."""
    maps = torch.tensor([[[0.0, -1.0, 100.0], [1.0, 0.0, 7.0]], [[2.0, 0.0, 0.0], [0.0, 3.0, -5.0]]])
    heatmaps = blobs(random_points(2, 3, (64, 48), margin=12), (64, 48))
    x, y, score = decode_keypoints(heatmaps).unbind(-1)
    expected = torch.stack(
        [torch.stack([100 - y[0], x[0] + 7, score[0]], -1), torch.stack([2 * x[1], 3 * y[1] - 5, score[1]], -1)]
    )
    torch.testing.assert_close(decode_keypoints(heatmaps, maps), expected)


def test_single_equals_batched() -> None:
    heatmaps = blobs(random_points(4, 3, (64, 48), margin=4), (64, 48))
    torch.testing.assert_close(
        decode_keypoints(heatmaps), torch.cat([decode_keypoints(heatmap[None]) for heatmap in heatmaps])
    )


# Mirror images ------------------------------------------------------------------------------------


def test_mirror_images_swap_sides() -> None:
    """A perfect model of a left and a right hand and a nose, told by the three colours of the picture."""

    def model(images: Tensor) -> Tensor:
        """Blob of red: left hand, green: right hand, blue: nose; in a mirrored picture red and green change roles."""
        mirrored = images[:, :1].mean((2, 3)) < 0
        maps = images.abs()
        return torch.where(mirrored[..., None, None], maps[:, [1, 0, 2]], maps)

    points = random_points(2, 3, (64, 48), margin=12)
    maps = blobs(points, (64, 48))

    def seen(images: Tensor) -> Tensor:
        # The sign says which way round the picture is, as its contents would.
        return model(images if torch.equal(images, maps) else -images)

    torch.testing.assert_close(flip_test(seen, maps, [(0, 1)]), maps)
    found = decode_keypoints(flip_test(seen, maps, [(0, 1)]))[..., :2]
    assert (found - points).abs().max() < 0.001
    confused = flip_test(seen, maps, [])
    torch.testing.assert_close(confused[:, 0], confused[:, 1])


def test_a_mirrored_crop_gives_mirrored_joints() -> None:
    torch.manual_seed(0)
    model = build_keypoints(timm.create_model("paca_tiny", features_only=True, **TINY), 3, width=8).eval()
    images = torch.randn(2, 3, 64, 48)
    with torch.no_grad():
        plain, mirrored = flip_test(model, images, [(0, 2)]), flip_test(model, images.flip(3), [(0, 2)])
    torch.testing.assert_close(mirrored.flip(3)[:, [2, 1, 0]], plain)


# What is refused ----------------------------------------------------------------------------------


def test_bad_arguments() -> None:
    backbone = timm.create_model("paca_tiny", features_only=True, **TINY)
    with pytest.raises(InputError, match="unknown argument 'wide' of the head 'heatmaps'; nearest: width"):
        build_keypoints(backbone, 3, wide=3)
    with pytest.raises(InputError, match="joints=0, width=256 given"):
        build_keypoints(backbone, 0)
    with pytest.raises(InputError, match=r"pair \(0, 5\) given; this model has joints 0 to 2"):
        flip_test(lambda images: images, torch.zeros(1, 3, 4, 4), [(0, 5)])
