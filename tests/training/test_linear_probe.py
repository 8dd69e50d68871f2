"""A linear classifier on features: steps are those of torch, and what is linear is found."""

import pytest
import torch
import torch.nn.functional as F

from vitreous.errors import InputError
from vitreous.training.linear_probe import LinearProbe, Standardised, linear_scores

CPU = torch.device("cpu")


def separable(count: int, classes: int = 6, width: int = 8, seed: int = 0):
    random = torch.Generator().manual_seed(seed)
    centres = 4 * torch.randn(classes, width, generator=torch.Generator().manual_seed(9))
    labels = torch.arange(count) % classes
    return 100 * (centres[labels] + torch.randn(count, width, generator=random)) + 7, labels  # of any scale


def test_steps_are_those_of_torch():
    rows, labels = separable(32)
    see = Standardised.of(rows)
    probe = LinearProbe(8, 6, (0.1, 0.01), CPU)
    layers = []
    for place, rate in enumerate((0.1, 0.01)):
        layer = torch.nn.Linear(8, 6)
        layer.weight.data, layer.bias.data = probe.weight[place].T.clone(), torch.zeros(6)
        optimizer = torch.optim.SGD(layer.parameters(), lr=rate, momentum=0.9)
        for _ in range(5):
            optimizer.zero_grad()
            F.cross_entropy(layer(see(rows)), labels).backward()
            optimizer.step()
        layers.append(layer)
    for _ in range(5):
        probe.step(see(rows), labels, 1.0)
    for place, layer in enumerate(layers):
        assert torch.allclose(probe.weight[place].T, layer.weight, atol=1e-5)
        assert torch.allclose(probe.bias[place, 0], layer.bias, atol=1e-5)


def test_what_is_linear_is_found_whatever_its_scale():
    found = linear_scores(separable(300), separable(120, seed=1), 6, device=CPU, epochs=10)
    assert found.values["linear"] > 0.95
    assert found.values["linear_top5"] >= found.values["linear"]
    again = linear_scores(separable(300), separable(120, seed=1), 6, device=CPU, epochs=10)
    assert again == found


def test_features_without_the_class_are_at_chance():
    rows, labels = separable(400)
    shuffled = torch.randn(rows.shape, generator=torch.Generator().manual_seed(3))
    found = linear_scores((shuffled[:300], labels[:300]), (shuffled[300:], labels[300:]), 6, device=CPU, epochs=3)
    assert found.values["linear"] < 0.35


def test_too_few_pictures_are_told():
    with pytest.raises(InputError, match="1 pictures to learn from"):
        linear_scores(separable(1), separable(5), 6, device=CPU)
