"""Groups drawn equally often: in every epoch, whatever the workers, pieces, ranks and restarts."""

import signal
from collections import Counter

import pytest
import torch

from tests.support.random_samples import Noise, batches, flat
from tests.support.tiny_runs import fingerprint, finish, interrupt
from vitreous.data.groups import Balanced, Groups
from vitreous.data.loader import BatchSampler
from vitreous.data.source import describe, open_data
from vitreous.errors import InputError
from vitreous.train import train

GROUPS = [1] * 3 + [0] * 16 + [2] * 4  # of the 23 samples of Noise


def drawn(epoch: int = 0, **options) -> list[int]:
    sampler = BatchSampler(23, 4, shuffle=True, groups=GROUPS, **options)
    sampler.set_position(epoch)
    return [draw.sample for batch in sampler for draw in batch]


def test_every_group_is_drawn_equally_often_and_its_members_too():
    totals = Counter()
    for epoch in range(6):
        found = drawn(epoch)
        assert len(found) == 23
        groups = Counter(GROUPS[sample] for sample in found)
        assert sorted(groups.values()) == [7, 8, 8]
        for number in range(3):
            often = Counter(sample for sample in found if GROUPS[sample] == number)
            absent = GROUPS.count(number) - len(often)
            assert max(often.values()) - min([*often.values(), *[0] * absent]) <= 1
        totals.update(groups)
    assert max(totals.values()) - min(totals.values()) <= 3, "not always the same group is short of one"
    assert drawn(0) != drawn(1)
    assert drawn(3) == drawn(3)


def test_a_sample_that_comes_again_looks_different():
    found = batches(groups=GROUPS)
    views = flat(found)
    assert len(torch.unique(views, dim=0)) == 23
    sampler = BatchSampler(23, 4, shuffle=True, groups=GROUPS, repeats=2)
    keys = [draw for batch in sampler for draw in batch]
    assert len(set(keys)) == 23


@pytest.mark.parametrize("options", [dict(workers=2), dict(pieces=3), dict(start=2)])
def test_batches_depend_on_seed_epoch_and_place_only(options):
    expected = flat(batches(groups=GROUPS))[4 * options.get("start", 0) :]
    assert torch.equal(flat(batches(groups=GROUPS, **options)), expected)


def test_ranks_share_the_same_global_batches():
    whole, ranks = batches(groups=GROUPS), [batches(groups=GROUPS, rank=rank, world=2) for rank in range(2)]
    for batch, *shares in zip(whole, *ranks, strict=True):
        together, expected = ({tuple(row) for row in flat(part).tolist()} for part in (shares, [batch]))
        assert together == expected


def test_without_groups_nothing_changes():
    assert len(Noise()) == 23
    same = [list(BatchSampler(23, 4, shuffle=True, seed=3, groups=groups)) for groups in ((), [])]
    assert same[0] == same[1]
    assert {draw.repeat for batch in same[0] for draw in batch} == {0}


TINY = dict(
    model="test_convnext", data="shapes:corner_mark=0.8", size=32, epochs=1, batch_size=8, train_count=40, val_count=10,
    balance_groups=("agrees",), workers=0, device="cpu",
)  # fmt: skip


def test_training_says_what_it_draws_and_refuses_other_groups(tmp_path, capsys):
    run = train(**TINY, out=tmp_path / "run")
    shown = capsys.readouterr().out
    assert "data: train: each of 2 groups by agrees is drawn equally often; the smallest, agrees=no, has " in shown
    with pytest.raises(InputError, match="balance_groups"):
        train(**TINY | dict(balance_groups=("class",)), out=run)
    with pytest.raises(InputError, match="--balance-groups place: the images have no such column"):
        train(**TINY | dict(balance_groups=("place",)), out=tmp_path / "other")
    with pytest.raises(InputError, match=r"balance_groups .* it is for --task classify"):
        train(**TINY | dict(task="segment"), out=tmp_path / "other")
    assert not (tmp_path / "other").exists()


@pytest.mark.system
def test_an_interrupted_run_ends_with_the_same_bits(tmp_path):
    changes = dict(data="shapes:corner_mark=0.8", balance_groups=("agrees",), epochs=2)
    whole = finish(tmp_path / "whole", **changes)
    assert interrupt(tmp_path / "cut", 3, signal.SIGTERM, **changes) != 0
    assert fingerprint(finish(tmp_path / "cut", **changes)) == fingerprint(whole)


def test_the_fingerprint_tells_the_groups():
    images = open_data("shapes", "train", size=(32, 32), count=4)
    groups = [Groups(("place",), (("a",), ("b",)), members) for members in ((0, 0, 1, 1), (0, 1, 1, 1))]
    marks = {Balanced(images, one).fingerprint for one in groups}
    assert len({images.fingerprint, *marks}) == 3
    balanced = Balanced(images, groups[1])
    assert balanced.group_members == (0, 1, 1, 1)
    assert "place=a, has 1 image, each drawn 2.0 times an epoch" in describe("shapes", train=balanced)
