"""Models that label pixels: every family with every head, what they learn, and their inference by views."""

import pytest
import timm
import torch
import torch.nn.functional as F
from torch import Tensor

from tests.support.families import FAMILIES, awake, small
from vitreous.errors import InputError
from vitreous.heads.segment import SEGMENTERS, Segmenter, best_classes, build_segmenter, multi_scale, sliding_window

TERMS = {"fpn": {"segment"}, "upernet": {"segment", "auxiliary"}, "paca": {"segment", "clusters"}}
TINY = dict(dims=(8, 16, 24, 32), depths=(1, 1, 1, 1), heads=(1, 2, 3, 4), clusters=(6, 6, 6, 0))


def tiny(head: str, classes: int = 3, **arguments) -> Segmenter:
    torch.manual_seed(0)
    backbone = timm.create_model("paca_tiny", features_only=True, **TINY)
    narrow = dict(pyramid=16, width=16) if head == "fpn" else dict(width=16)
    return build_segmenter(backbone, head, classes, **{**narrow, **arguments})


@pytest.mark.parametrize("head", SEGMENTERS)
@pytest.mark.parametrize("family", FAMILIES)
def test_every_family_takes_a_training_step(family: str, head: str) -> None:
    narrow = dict(pyramid=8, width=8) if head == "fpn" else dict(width=8)
    model = build_segmenter(small(family, 1, features_only=True), head, 5, **narrow).train()
    side = 32 if "cifar" in family else 64
    images, labels = torch.randn(2, 3, side, side), torch.randint(0, 5, (2, side, side))
    losses = model(images, {"semantic": labels})
    assert set(losses) == TERMS[head]
    sum(losses.values()).backward()
    without = [name for name, parameter in model.named_parameters() if parameter.grad is None]
    assert not without
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())
    with torch.no_grad():
        assert model.eval()(images).shape == (2, 5, side, side)


@pytest.mark.parametrize("name", ["resnet18", "test_efficientnet", "swin_tiny_patch4_window7_224"])
def test_backbones_of_timm(name: str) -> None:
    arguments = dict(embed_dim=12, depths=(1, 1, 1, 1), strict_img_size=False) if "swin" in name else {}
    model = build_segmenter(timm.create_model(name, features_only=True, **arguments), "upernet", 3, width=8)
    assert model.eval()(torch.randn(1, 3, 224, 224)).shape == (1, 3, 224, 224)


@pytest.mark.parametrize("head", SEGMENTERS)
def test_a_picture_is_learned(head: str) -> None:
    """Squares of their own colours; of PaCa, which is slow to make use of its clusters, these are asked."""
    labels = torch.zeros(2, 32, 64, dtype=torch.long)
    labels[:, 4:20, 8:24], labels[0, 12:30, 32:60], labels[1, 8:28, 36:56] = 1, 2, 2
    images = torch.eye(3)[labels].permute(0, 3, 1, 2) * 2 - 1
    model = tiny(head, dropout=0.0).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=5e-3)
    losses = []
    for _ in range(40):
        loss = sum(model(images, {"semantic": labels}).values())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    assert losses[-1] < 0.4 * losses[0]
    with torch.no_grad():
        output = model.output(images)
    logits = output.auxiliary if head == "paca" else output.logits
    right = (F.interpolate(logits, (32, 64), mode="bilinear").argmax(1) == labels).float().mean()
    assert right > 0.9


@pytest.mark.parametrize("head", SEGMENTERS)
def test_nothing_labelled_costs_nothing(head: str) -> None:
    model = tiny(head).train()
    losses = model(torch.randn(2, 3, 64, 64), {"semantic": torch.full((2, 64, 64), 255)})
    assert all(loss == 0 for loss in losses.values())
    sum(losses.values()).backward()
    assert all((parameter.grad == 0).all() for parameter in model.parameters())


@pytest.mark.parametrize("head", SEGMENTERS)
@pytest.mark.parametrize("size", [(33, 47), (70, 99)])
def test_any_size_and_single_equals_batched(head: str, size: tuple[int, int]) -> None:
    model = awake(tiny(head)).eval()
    images = torch.randn(2, 3, *size)
    with torch.no_grad():
        together = model(images)
        apart = torch.cat([model(image[None]) for image in images])
    assert together.shape == (2, 3, *size)
    torch.testing.assert_close(together, apart, rtol=1e-4, atol=1e-4 * together.abs().max().item())


@pytest.mark.parametrize("norm", ["bn", "gn"])
@pytest.mark.parametrize("head", ["fpn", "upernet"])
def test_one_small_image_is_enough_to_train(head: str, norm: str) -> None:
    """Its coarsest map is a single cell, whose batch norm has one value per channel."""
    model = tiny(head, norm=norm).train()
    losses = model(torch.randn(1, 3, 32, 32), {"semantic": torch.randint(0, 3, (1, 32, 32))})
    sum(losses.values()).backward()
    assert all(torch.isfinite(parameter.grad).all() for parameter in model.parameters())


def test_semantic_fpn_is_the_sum_of_its_levels() -> None:
    """Where sides are halved without rounding, every doubling is a plain factor of two."""
    model = awake(tiny("fpn")).eval()
    decoder = model.decoder
    images = torch.randn(1, 3, 64, 96)
    with torch.no_grad():
        levels = list(decoder.fpn(dict(enumerate(model.levels(images)))).values())
        total = decoder.scales[0][0](levels[0])
        for i in (1, 2, 3):
            x = levels[i]
            for convolve in decoder.scales[i]:
                x = F.interpolate(convolve(x), scale_factor=2, mode="bilinear")
            total = total + x
        expected = F.interpolate(decoder.classifier(total), (64, 96), mode="bilinear")
        torch.testing.assert_close(model(images), expected)


def test_the_second_loss_has_its_weight() -> None:
    images, labels = torch.randn(2, 3, 64, 64), {"semantic": torch.randint(0, 3, (2, 64, 64))}
    losses = []
    for weight in (0.4, 0.8):
        model = tiny("upernet", auxiliary_weight=weight, dropout=0.0)
        losses.append(model(images, labels)["auxiliary"])
    torch.testing.assert_close(2 * losses[0], losses[1])


def test_checkpointing_of_blocks_changes_nothing() -> None:
    images, labels = torch.randn(2, 3, 64, 64), {"semantic": torch.randint(0, 3, (2, 64, 64))}
    gradients = []
    for saving in (False, True):
        model = tiny("fpn", dropout=0.0).train()
        for module in model.modules():
            if hasattr(module, "drop_prob"):
                module.drop_prob = 0.0
        model.levels.backbone.set_grad_checkpointing(saving)
        sum(model(images, labels).values()).backward()
        gradients.append(next(model.parameters()).grad)
    torch.testing.assert_close(*gradients)


# Views --------------------------------------------------------------------------------------------


def coloured(images: Tensor) -> Tensor:
    """A model that looks at each pixel alone: its logits are the image's channels and their sum."""
    return torch.cat([images, images.sum(1, keepdim=True)], 1)


def test_a_window_as_large_as_the_image_gives_the_whole() -> None:
    model = tiny("fpn").eval()
    images = torch.randn(2, 3, 48, 70)
    with torch.no_grad():
        whole = model(images)
        for crop in ((48, 70), (64, 64 + 32), (512, 512)):
            assert torch.equal(sliding_window(model, images, crop, (32, 32)), whole)


@pytest.mark.parametrize("size", [(48, 70), (64, 64), (33, 129), (20, 100)])
@pytest.mark.parametrize("batch", [1, 3, 64])
def test_windows_cover_every_pixel_and_are_averaged(size: tuple[int, int], batch: int) -> None:
    images = torch.randn(2, 3, *size)
    torch.testing.assert_close(sliding_window(coloured, images, (32, 32), (20, 12), batch=batch), coloured(images))


def test_windows_are_averaged_where_they_overlap() -> None:
    """A model that answers with the mean of its window, on three windows that start at 0, 4 and 6."""
    images = torch.arange(10.0).view(1, 1, 1, 10)
    answer = sliding_window(lambda window: window.mean((2, 3), keepdim=True).expand_as(window), images, (1, 4), (1, 4))
    expected = [1.5] * 4 + [5.5] * 2 + [6.5] * 2 + [7.5] * 2
    assert answer.flatten().tolist() == expected


@pytest.mark.parametrize("size", [(64, 96), (16, 24), (37, 101), (5, 7), (16, 50)])
def test_winners_are_those_of_the_resized_logits(size: tuple[int, int]) -> None:
    logits = torch.randn(5, 16, 24, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    whole = F.interpolate(logits[None].float(), size, mode="bilinear")[0]
    found = best_classes(logits, size)
    assert found.dtype == torch.uint8
    # Two classes may be so close that rounding decides.
    chosen = whole.gather(0, found[None].long())[0]
    torch.testing.assert_close(chosen, whole.amax(0), rtol=0, atol=1e-5)
    assert best_classes(torch.randn(300, 2, 2), (2, 2)).dtype == torch.int64


def test_one_scale_is_the_plain_answer() -> None:
    model = tiny("fpn").eval()
    images = torch.randn(1, 3, 48, 70)
    with torch.no_grad():
        assert torch.equal(multi_scale(model, images, (1.0,), flip=False), model(images).softmax(1))


def test_scales_and_mirror_images_are_averaged() -> None:
    model = awake(tiny("paca")).eval()
    images = torch.randn(2, 3, 64, 96)
    with torch.no_grad():
        answer = multi_scale(model, images, (0.5, 1.0, 1.5))
        mirrored = multi_scale(model, images.flip(3), (0.5, 1.0, 1.5))
    torch.testing.assert_close(answer.sum(1), torch.ones(2, 64, 96))
    torch.testing.assert_close(answer, mirrored.flip(3), rtol=1e-4, atol=1e-5)
    with torch.no_grad():
        views = [model(images).softmax(1), model(images.flip(3)).flip(3).softmax(1)]
        torch.testing.assert_close(multi_scale(model, images, (1.0,)), (views[0] + views[1]) / 2)


def test_scales_of_windows() -> None:
    images = torch.randn(1, 3, 40, 60)
    answer = multi_scale(lambda view: sliding_window(coloured, view, (32, 32), (16, 16)), images, (1.0,))
    torch.testing.assert_close(answer, coloured(images).softmax(1))


# What is refused ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("head", "arguments", "says"),
    [
        ("fcn", {}, "unknown segmentation head 'fcn'; accepted: fpn, upernet, paca"),
        ("fpn", dict(widht=3), "unknown argument 'widht' of the head 'fpn'; nearest: width; accepted: pyramid, width"),
        ("fpn", dict(auxiliary_weight=0.1), "unknown argument 'auxiliary_weight'"),
        ("fpn", dict(pyramid=0), "pyramid=0, width=16, channels=(8, 16, 24, 32) given; a head needs at least 1"),
        ("upernet", dict(norm="ln"), "norm='ln' given; accepted: 'bn' for batch norm, 'gn' for group norm"),
        ("upernet", dict(pools=()), "pools=() given"),
        ("paca", dict(classes=1), "classes=1 given; at least 2 are needed"),
    ],
)
def test_bad_arguments(head: str, arguments: dict, says: str) -> None:
    with pytest.raises(InputError) as reason:
        tiny(head, **arguments)
    assert says in str(reason.value)


def test_labels_out_of_range() -> None:
    with pytest.raises(InputError, match="label 3 given; this model has classes 0 to 2, and 255 for pixels to ignore"):
        tiny("fpn")(torch.randn(1, 3, 32, 32), {"semantic": torch.full((1, 32, 32), 3)})


def test_bad_views() -> None:
    images = torch.randn(1, 3, 32, 32)
    with pytest.raises(InputError, match="strides must be from 1 to the size of the window"):
        sliding_window(coloured, images, (16, 16), (17, 16))
    with pytest.raises(InputError, match="factors above 0"):
        multi_scale(coloured, images, (0.0, 1.0))
