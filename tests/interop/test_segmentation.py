"""segmentation_models_pytorch: every family as a `tu-` encoder, with nothing to do for it but `import vitreous`."""

from pathlib import Path

import pytest
import segmentation_models_pytorch as smp
import torch
import torch.nn.functional as F

from tests.support.families import ONE_OF_EACH, assert_every_parameter_has_a_gradient, save_small, short
from vitreous.errors import InputError


def shortened(name: str) -> dict:
    """`depth` is the library's own word for the number of encoder levels, so that XCiT is run as it is."""
    return {} if "xcit" in name else short(name)


@pytest.mark.parametrize("decoder", [smp.FPN, smp.UPerNet, smp.Unet])
@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_training_step(name: str, decoder: type) -> None:
    model = decoder(f"tu-{name}", encoder_weights=None, classes=3, **shortened(name)).train()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    first = next(model.encoder.parameters())
    before = first.detach().clone()
    logits = model(torch.randn(2, 3, 64, 96))
    assert logits.shape == (2, 3, 64, 96)
    loss = F.cross_entropy(logits, torch.randint(3, (2, 64, 96)))
    assert torch.isfinite(loss)
    loss.backward()
    assert_every_parameter_has_a_gradient(model)
    optimizer.step()
    assert not torch.equal(first, before)


@pytest.mark.parametrize(
    ("decoder", "arguments"),
    [
        (smp.UnetPlusPlus, {}),
        (smp.MAnet, {}),
        (smp.Linknet, {}),
        (smp.PSPNet, {}),
        (smp.Segformer, {}),
        (smp.PAN, dict(encoder_output_stride=32)),
    ],
)
def test_other_decoders(decoder: type, arguments: dict) -> None:
    model = decoder("tu-paca_b0", encoder_weights=None, classes=3, **shortened("paca_b0"), **arguments).eval()
    with torch.no_grad():
        assert model(torch.randn(1, 3, 256, 256)).shape == (1, 3, 256, 256)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_decoders_that_need_dilation_are_refused_in_words(name: str) -> None:
    with pytest.raises(InputError, match=f"output_stride=16 given; {name} has no dilated form"):
        smp.DeepLabV3Plus(f"tu-{name}", encoder_weights=None)


@pytest.mark.parametrize("name", ONE_OF_EACH)
def test_a_trained_classifier_becomes_the_encoder(name: str, tmp_path: Path) -> None:
    classifier = save_small(tmp_path / "best", name)
    encoder = smp.FPN(f"tu-local-dir:{tmp_path / 'best'}", encoder_weights=True, classes=3).encoder.model.model
    trained, taken = classifier.state_dict(), encoder.state_dict()
    new, left = taken.keys() - trained.keys(), trained.keys() - taken.keys()
    assert all(".rescale." in key for key in new), "only XCiT's dense form has layers that its classifier lacks"
    assert all(key.startswith(("head.", "projection.", "class_", "norm.")) for key in left), "the classifier's own"
    assert all(torch.equal(taken[key], trained[key]) for key in taken.keys() & trained.keys())
