"""Parts that ablations leave out: the models build, run and learn without them, and cost what the papers print."""

import pytest
import torch

from tests.support.families import assert_trains, small
from vitreous.investigations.ablations import SWITCHES, switches_of
from vitreous.models.arguments import parse_model_arg
from vitreous.registry import create_model

SMALLEST = {
    "paca": "paca_b0",
    "xcit": "xcit_nano_12_p16",
    "emsnet": "emsnet_xxtiny",
    "mat": "mat_1",
    "partialformer": "partialformer_b0",
}
ROWS = [(family, part) for family, parts in SWITCHES.items() for part in parts]


@pytest.mark.parametrize(("family", "part"), ROWS, ids=lambda value: value.replace(" ", "_"))
def test_every_row_learns_at_any_size(family: str, part: str) -> None:
    arguments = SWITCHES[family][part]
    assert dict(parse_model_arg(f"{name}={value!r}") for name, value in arguments.items()) == arguments
    assert_trains(small(SMALLEST[family], 1, **arguments), [(64, 70)])


def millions(name: str, **arguments: object) -> float:
    with torch.device("meta"):
        return sum(p.numel() for p in create_model(name, **arguments).parameters()) / 1e6


@pytest.mark.parametrize(
    ("name", "part", "printed"),
    [
        ("mat_2", "no mixer", 5.699),
        ("mat_2", "windows alone", 7.802),
        ("mat_2", "in all stages", 10.874),
        ("mat_2", "convolutions between stages", 11.107),
        ("mat_2", "patch merging between stages", 10.892),
        ("mat_2", "in stages 2 to 4", 10.852),
        ("mat_2", "in stage 4 only", 9.767),
        ("emsnet_xxtiny", "no branch", 2.09),
        ("emsnet_xxtiny", "static only", 2.68),
        ("emsnet_xxtiny", "static 1 : 1 : 2", 2.64),
        ("emsnet_xxtiny", "static 2 : 1 : 1", 2.635),
        ("paca_small", "2 clusters", 21.978),
        ("paca_small", "49 clusters", 22.007),
        ("paca_small", "100 clusters", 22.038),
        ("paca_small", "49 to 100 clusters", 22.228),
        ("paca_small", "100 to 49 clusters", 22.211),
        ("paca_small", "100 clusters in all stages", 22.245),
        ("paca_small", "100 clusters in every block", 24.192),
        ("paca_small", "mlp clustering", 22.637),
    ],
)
def test_rows_have_as_many_parameters_as_printed(name: str, part: str, printed: float) -> None:
    """Ablations on MAT-2 and EMSNet-XXTiny within one in a hundred; those of PaCa, whose code is public, all digits."""
    family = name.partition("_")[0]
    accuracy = 5e-4 / printed if family == "paca" else 0.01
    assert millions(name, **SWITCHES[family][part]) == pytest.approx(printed, rel=accuracy)


@pytest.mark.parametrize(
    ("name", "already"),
    [
        ("paca_small", {"100 clusters", "clusters once a stage"}),
        ("paca_small_mlp", {"100 clusters", "clusters once a stage", "mlp clustering"}),
        ("paca_b0_readout", {"49 clusters", "clusters in every block", "read clusters"}),
        ("mat_2", set()),
        ("emsnet_xxtiny", set()),
    ],
)
def test_rows_that_are_the_whole_model_are_left_out(name: str, already: set[str]) -> None:
    family = name.partition("_")[0]
    assert set(SWITCHES[family]) - set(switches_of(name)) == already
    for part in already:
        assert millions(name, **SWITCHES[family][part]) == millions(name)


def test_a_switch_changes_what_it_names() -> None:
    whole = millions("xcit_nano_12_p16")
    dim, blocks, heads = 128, 12, 4
    assert (whole - millions("xcit_nano_12_p16", learned_temperature=False)) * 1e6 == pytest.approx(blocks * heads)
    local = 2 * 10 * dim + 2 * dim + 2 * dim + dim  # two convolutions, both norms, and the scale of the branch
    assert (whole - millions("xcit_nano_12_p16", local=False)) * 1e6 == pytest.approx(blocks * local)
    model = small("partialformer_b0", 1, head_mixing=False, single_query=False)
    assert not [name for name, _ in model.named_parameters() if "mixer" in name or "spread" in name]
