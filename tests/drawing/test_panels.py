"""Heat maps: the colours rise in lightness, overlays keep proportions, sheets hold all they are given."""

import numpy as np
import pytest
from PIL import Image

from vitreous.drawing.panels import (
    Panel,
    colour_table,
    colourise,
    contact_sheet,
    enlarge,
    enlarge_heat,
    fit_text,
    font,
    labelled,
    overlay,
)

GREY = Image.new("RGB", (64, 48), "#808080")


def lightness(rgb: np.ndarray) -> np.ndarray:
    """CIE L* of sRGB."""
    linear = np.where(rgb <= 0.04045, rgb / 12.92, ((rgb + 0.055) / 1.055) ** 2.4)
    y = linear @ [0.2126, 0.7152, 0.0722]
    return np.where(y > 0.008856, 116 * np.cbrt(y) - 16, 903.3 * y)


def test_colours_rise_steadily_in_lightness():
    levels = lightness(colour_table() / 255)
    steps = np.diff(levels[::16])
    assert (steps > 0).all()
    assert steps.max() < 3 * steps.min()
    assert levels[-1] - levels[0] > 75


def test_colourise_clips():
    ends = colourise(np.array([[-1.0, 0.0], [1.0, 2.0]]))
    assert (ends[0, 0] == ends[0, 1]).all()
    assert (ends[1, 0] == ends[1, 1]).all()


def test_overlay_is_wide_enough_and_keeps_proportions():
    assert overlay(GREY, np.zeros((4, 4))).size == (256, 192)
    assert enlarge(GREY, 288).size == (288, 216)


def test_overlay_is_brightest_where_the_heat_is():
    heat = np.zeros((8, 8))
    heat[1, 6] = 1
    light = lightness(np.asarray(overlay(GREY, heat, width=256)) / 255)
    row, column = np.unravel_index(light.argmax(), light.shape)
    assert abs(row / light.shape[0] - 1.5 / 8) < 0.05
    assert abs(column / light.shape[1] - 6.5 / 8) < 0.05


def test_enlarged_heat_stays_in_range_and_accepts_a_single_cell():
    spiky = np.array([[0.0, 1.0], [1.0, 0.0]])
    large = enlarge_heat(spiky, (50, 40))
    assert large.shape == (40, 50)
    assert large.min() >= 0
    assert large.max() <= 1
    assert (enlarge_heat(np.ones((1, 1)), (9, 9)) == 1).all()


@pytest.mark.parametrize("count", [1, 2, 7])
def test_contact_sheet_has_room_for_every_panel(count):
    panels = [Panel(enlarge(GREY, 256), f"cluster {i}", ("score +0.1", "entropy 2")) for i in range(count)]
    sheet = contact_sheet(panels, heading="Predicted cat", subheading="cat.png", footnote="score: …")
    assert sheet.width >= count * 256
    assert sheet.height > 192
    for i in range(count):  # each panel's middle shows its picture
        assert sheet.getpixel((32 + i * (256 + 18) + 128, 200)) == (128, 128, 128)


def test_long_texts_are_shortened():
    text = fit_text("a very long class name " * 5, 20, 200)
    assert text.endswith("…")
    assert font(20).getlength(text) <= 200
    assert fit_text("short", 20, 200) == "short"


def test_labelled_adds_a_line_below():
    image = labelled(GREY, "cat 98.7%")
    assert image.width == 320
    assert image.height > 240
