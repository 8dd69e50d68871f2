"""Maps in tiles: every position once, the same numbers as whole, on several threads or one."""

import pytest
import torch
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vitreous.layers import tiles as tiles_module
from vitreous.layers.conv_norm import ConvNorm, ConvStem
from vitreous.layers.patch import DoubleConvStem, PatchEmbed
from vitreous.layers.tiles import GridTile, each_tile, fewest_neighbours, in_row_strips, is_chain, tiles
from vitreous.models.xcit import PatchStem
from vitreous.runtime.threads import in_threads, threads_allowed


@pytest.fixture
def small_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles_module, "MIN_POSITIONS", 1)
    monkeypatch.setattr(tiles_module, "TILE_BYTES", 1000)


@pytest.mark.parametrize("shape", [(1, 50, 9), (7, 3, 4), (2, 1, 500), (3, 10, 33), (1, 1, 1)])
@pytest.mark.parametrize("halo", [0, 1, 3])
def test_tiles_cover_every_position_once_and_have_their_neighbours(
    shape: tuple[int, int, int], halo: int, small_tiles: None
) -> None:
    x = torch.arange(float(shape[0] * shape[1] * shape[2])).view(*shape, 1)
    seen = torch.zeros_like(x)
    for tile in tiles(shape, 8, halo=halo):
        tile.inner(seen).add_(1)
        assert torch.equal(tile.cropped(tile.outer(x)), tile.inner(x))
        sides = tile.outer(x).shape[1:3]
        assert all(side <= end for side, end in zip(sides, shape[1:], strict=True))
        if tile.rows.start >= halo and tile.rows.stop + halo <= shape[1]:
            assert sides[0] == tile.rows.stop - tile.rows.start + 2 * halo
    assert (seen == 1).all()


def test_wide_maps_are_not_cut_into_thin_strips() -> None:
    down, across = fewest_neighbours(1024, 1024, 1365, halo=1)
    height, width = 1024 / down, 1024 / across
    assert (height + 2) * (width + 2) / (height * width) < 1.15
    assert fewest_neighbours(56, 56, 28 * 56, halo=1) == (2, 1)


STEMS = {
    "paca": lambda: DoubleConvStem(3, 8, stride=4, eps=1e-6),
    "paca at stride 1": lambda: DoubleConvStem(3, 8, stride=1, eps=1e-6),
    "patches": lambda: PatchEmbed(3, 8, kernel_size=7, stride=4, eps=1e-6),
    "mat": lambda: ConvStem(3, 8, stride=4, depthwise=True),
    "partialformer at stride 2": lambda: ConvStem(3, 8, stride=2, depthwise=False),
    "xcit": lambda: PatchStem(3, 16, 16),
    "emsnet": lambda: nn.Sequential(ConvNorm(3, 8, stride=2), nn.GELU(), ConvNorm(8, 8, stride=2)),
}


@pytest.mark.parametrize("kind", STEMS)
@pytest.mark.parametrize("size", [(96, 20), (101, 33), (130, 17), (33, 64)])
def test_strips_of_a_stem_change_nothing(kind: str, size: tuple[int, int], monkeypatch: pytest.MonkeyPatch) -> None:
    stem = STEMS[kind]().eval()
    calls = []
    inner = stem.forward if not isinstance(stem, nn.Sequential) else None
    x = torch.randn(2, *size, 3)
    with torch.no_grad():
        whole = stem(x)
        monkeypatch.setattr(tiles_module, "STRIP_BYTES", 1)
        if inner is not None:
            monkeypatch.setattr(type(stem), "forward", lambda self, part: calls.append(part.shape[1]) or inner(part))
        torch.testing.assert_close(in_row_strips(stem, x), whole, rtol=1e-5, atol=1e-5)
    assert inner is None or size[0] < 64 or (len(calls) > 1 and max(calls) < size[0])


def test_a_stem_that_looks_further_is_not_divided() -> None:
    assert not is_chain(nn.Sequential(nn.Conv2d(3, 8, 3, padding=1), nn.AdaptiveAvgPool2d(1)))


def test_a_watched_stem_sees_the_whole_image(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tiles_module, "STRIP_BYTES", 1)
    stem, seen = DoubleConvStem(3, 8, stride=4, eps=1e-6).eval(), []
    stem.conv1.register_forward_hook(lambda _layer, _inputs, output: seen.append(output.shape))
    with torch.no_grad():
        in_row_strips(stem, torch.randn(1, 96, 20, 3))
    assert seen == [(1, 4, 48, 10)]


def test_threads_compute_in_the_callers_mode_and_order(two_threads: None) -> None:
    def state(piece: int) -> tuple[int, bool, bool, torch.dtype, int]:
        made = torch.ones(2, 2) @ torch.ones(2, 2)
        modes = torch.is_inference_mode_enabled(), torch.is_grad_enabled()
        return piece, *modes, made.dtype, torch.get_num_threads()

    with torch.inference_mode(), torch.autocast("cpu", torch.bfloat16):
        assert in_threads(state, range(5)) == [(i, True, False, torch.bfloat16, 1) for i in range(5)]
    with torch.no_grad():
        assert in_threads(state, range(3)) == [(i, False, False, torch.float32, 1) for i in range(3)]


def test_an_error_in_a_thread_is_the_callers(two_threads: None) -> None:
    def fail(piece: int) -> None:
        if piece == 1:
            raise ValueError("piece 1")

    with torch.no_grad(), pytest.raises(ValueError, match="piece 1"):
        in_threads(fail, range(4))


def test_threads_keep_out_of_what_only_the_caller_sees(two_threads: None) -> None:
    x = torch.ones(2)
    with torch.no_grad():
        assert threads_allowed(x)
        assert not any(in_threads(lambda _: threads_allowed(x), range(2))), "no threads within threads"
        with FakeTensorMode() as mode:
            assert not threads_allowed(x)
        assert not threads_allowed(mode.from_tensor(x))
        with torch.device("cpu"):
            assert not threads_allowed(x)
        allowed = []

        def look(y: Tensor) -> Tensor:
            allowed.append(threads_allowed(y))
            return y

        torch.vmap(look)(x)
        assert allowed == [False]
    assert not threads_allowed(x), "gradients are recorded"


def test_without_values_one_tile_stands_for_all(small_tiles: None) -> None:
    worked: list[GridTile] = []
    with FakeTensorMode():
        x = torch.empty(1, 40, 40, 8)
        results = each_tile(lambda tile: worked.append(tile), tiles(x.shape, 8), x)
    assert len(worked) == 1
    assert len(results) == len(tiles(x.shape, 8)) > 1
