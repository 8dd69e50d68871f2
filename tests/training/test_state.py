import torch
from torch import nn

from vitreous.training.state import WeightAverage


def test_average_follows_the_formula():
    model = nn.Sequential(nn.Linear(3, 2), nn.BatchNorm1d(2))
    average = WeightAverage(model, 0.5)
    expected = {key: value.clone() for key, value in model.state_dict().items()}
    for step in range(30):
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(torch.randn_like(parameter))
        model(torch.randn(4, 3))  # moves the running statistics and their counter
        average.update(step)
        decay = min(0.5, (1 + step) / (10 + step))
        for key, value in model.state_dict().items():
            mixed = decay * expected[key] + (1 - decay) * value if value.is_floating_point() else value.clone()
            expected[key] = mixed
    for key, value in average.model.state_dict().items():
        assert torch.allclose(value.float(), expected[key].float(), atol=1e-5), key
    assert average.model[1].num_batches_tracked == 30


def test_average_is_a_separate_frozen_model():
    model = nn.Linear(2, 2)
    average = WeightAverage(model, 0.9)
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    before = average.model.weight.clone()
    with torch.no_grad():
        model.weight.add_(1)
    assert torch.equal(average.model.weight, before)
