"""Graphs of regions: the features under boxes and their answers are the detector's own."""

import pytest
import torch

from vitreous.exports.outputs import GraphModel, graph_kind, map_names
from vitreous.exports.regions import by_level, region_graphs
from vitreous.heads.detect import build_detector
from vitreous.heads.regions import RegionAlign, region_levels

STRIDES = (4, 8, 16, 32)


def boxes() -> torch.Tensor:
    """Of all sizes, at the border, beyond it and without area."""
    drawn = torch.Generator().manual_seed(0)
    corner = torch.rand(40, 2, generator=drawn) * 300
    sides = torch.exp(torch.rand(40, 2, generator=drawn) * 6)
    odd = [[0.0, 0, 256, 320], [-50, -50, -20, -20], [-9, -7, 600, 500], [256, 320, 256, 320], [900, 900, 950, 940]]
    return torch.cat([torch.cat([corner, corner + sides], 1), torch.tensor(odd)])


def maps(channels: int = 3) -> list[torch.Tensor]:
    drawn = torch.Generator().manual_seed(1)
    return [torch.randn(1, channels, 320 // stride, 256 // stride, generator=drawn) for stride in STRIDES]


@pytest.mark.parametrize("samples", [0, 2])
def test_regions_sorted_by_level_are_the_same(samples: int) -> None:
    align = RegionAlign(STRIDES, 7, samples)
    parts, order = by_level(boxes(), STRIDES)
    assert all(len(part) for part in parts)
    torch.testing.assert_close(align.sorted_by_level(maps(), parts)[order], align(maps(), [boxes()]))


def test_levels_without_a_region_are_empty() -> None:
    one = torch.tensor([[0.0, 0, 8, 8]])
    parts, order = by_level(one, STRIDES)
    assert [len(part) for part in parts] == [1, 0, 0, 0]
    assert order.tolist() == [0]
    assert RegionAlign(STRIDES, 7, 2).sorted_by_level(maps(), parts).shape == (1, 3, 7, 7)


def test_a_graph_aligns_on_the_level_that_suits_each_box() -> None:
    """As a program of torch, which may not look at values."""

    class Aligned(torch.nn.Module):
        align = RegionAlign(STRIDES, 7, 2)

        def forward(self, one, two, three, four, boxes):
            return self.align([one, two, three, four], [boxes])

    assert len(region_levels(boxes(), STRIDES).unique()) == 4
    free = (*({} for _ in STRIDES), {0: torch.export.Dim.DYNAMIC})
    program = torch.export.export(Aligned(), (*maps(), boxes()[:7]), dynamic_shapes=free).module()
    torch.testing.assert_close(program(*maps(), boxes()), Aligned.align(maps(), [boxes()]))


@pytest.mark.parametrize("head", ["fasterrcnn", "maskrcnn"])
def test_parts_of_a_detector_give_what_it_considers(head: str) -> None:
    torch.manual_seed(0)
    model = build_detector("test_convnext", head, 3, channels=8, hidden=8).eval()
    images, asked = torch.randn(1, 3, 96, 128), torch.tensor([[4.0, 6, 40, 60], [0, 0, 128, 96], [90, 60, 99, 70]])
    assert graph_kind(model, "detect", features=False) == "propose"
    graphs = region_graphs(model)
    assert [graph.name for graph in graphs] == ["regions", "masks"][: len(graphs)]
    with torch.no_grad():
        seen = GraphModel(model, "propose").named(images)
        features = list(model.backbone(images).values())
        parts, order = by_level(asked, model.box_align.strides)
        found = [seen[name] for name in map_names(4)]
        scores, decoded = (values[order] for values in graphs[0](*found, *parts))
        logits, codes = model.box_predictor(model.box_head(model.box_align(features, [asked])))
        torch.testing.assert_close(scores, logits.softmax(1)[:, 1:])
        for label in range(3):
            torch.testing.assert_close(decoded[:, label], model.coder.decode_single(codes[:, label], asked))
        if head == "maskrcnn":
            (masks,) = graphs[1](*found, *parts)
            wanted = model.mask_predictor(model.mask_head(model.mask_align(features, [asked]))).sigmoid()
            torch.testing.assert_close(masks[order], wanted)
