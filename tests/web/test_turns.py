"""Work in turns: the same result, in as many steps as it takes passes, on a copy with the same weights."""

import threading

import pytest
import torch
from torch import nn

from tests.support.explorer import steps_of
from vitreous.web.turns import in_turns


def network() -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.Tanh()).eval()


def test_the_same_result_with_a_step_before_each_pass():
    model, inputs, passes = network(), torch.ones(1, 4), 5

    def work(copied):
        assert copied is not model
        assert copied[0].weight is model[0].weight
        return sum(copied(number * inputs) for number in range(passes))

    count, found = steps_of(in_turns(work, model))
    assert count == passes
    torch.testing.assert_close(found, work_on(model, inputs, passes), rtol=0, atol=0)
    assert not model._forward_pre_hooks


def work_on(model, inputs, passes):
    return sum(model(number * inputs) for number in range(passes))


def test_the_network_is_free_between_two_turns():
    """A hook that the work has set on its copy does not see what others ask."""
    model, seen = network(), []

    def work(copied):
        copied[0].register_forward_hook(lambda *_: seen.append("work"))
        return [copied(torch.zeros(1, 4)) for _ in range(2)]

    turns = in_turns(work, model)
    next(turns)
    next(turns)
    model(torch.zeros(1, 4))
    assert seen == ["work"]
    steps_of(turns)
    assert seen == ["work", "work"]


def test_several_can_be_on_their_way_and_threads_are_used_again():
    model, inputs = network(), torch.ones(1, 4)

    def some(number):
        return in_turns(lambda copied: work_on(copied, inputs, number), model)

    works = [some(number) for number in (2, 3)]
    for work in works:
        next(work)
    assert [steps_of(work)[0] for work in works] == [1, 2]
    before = threading.active_count()
    for number in (1, 2, 3):
        steps_of(some(number))
    assert threading.active_count() == before


def test_an_error_reaches_the_one_who_gives_turns():
    def work(copied):
        copied(torch.zeros(1, 4))
        raise KeyError("x")

    turns = in_turns(work, network())
    next(turns)
    with pytest.raises(KeyError):
        next(turns)


def test_closed_work_ends_and_cleans_up():
    left = []

    def work(copied):
        try:
            while True:
                copied(torch.zeros(1, 4))
        finally:
            left.append(1)

    turns = in_turns(work, network())
    next(turns)
    turns.close()
    assert left == [1]
