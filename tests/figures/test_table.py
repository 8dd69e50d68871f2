"""The packaged table says what the models are: every row is counted again here, and nowhere else in the tests."""

import pytest

import vitreous
from vitreous.figures.table import count_figures, read_table

MODELS = vitreous.list_models()
LARGE = 30e6  # parameters; counting such a model takes seconds, and it has the layers of the smaller ones of its family


def test_every_model_is_in_the_table_in_order() -> None:
    assert list(read_table()) == MODELS, "run: make figures"


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] * (read_table()[name]["params"] > LARGE)) for name in MODELS]
)
def test_row_is_what_is_counted(name: str) -> None:
    assert read_table()[name] == count_figures(name), "run: make figures"
