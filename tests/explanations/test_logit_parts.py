"""The explanation of a model that reads clusters begins with what its logit is made of."""

import re

import pytest
import torch
from PIL import Image

from tests.support.explained_models import family
from vitreous.data.transforms import Preprocess
from vitreous.explanations.explaining import Plan, explain_image

CLASSES = [f"class {k}" for k in range(5)]


@pytest.fixture(scope="module", params=[dict(), dict(readout_stages=(3, 4))], ids=str)
def item(request):
    model = family(readout="clusters", readout_clusters=4, **request.param)
    noise = torch.randint(256, (64, 64, 3), generator=torch.Generator().manual_seed(0), dtype=torch.uint8)
    plan = Plan(methods=("contributions", "centre_blob"))
    return explain_image(
        model, Image.fromarray(noise.numpy()), preprocess=Preprocess((64, 64)), classes=CLASSES, target=2, plan=plan
    )


def test_parts_add_up(item):
    parts = item.parts
    assert parts.bias + parts.others + sum(parts.values) == pytest.approx(parts.logit, abs=1e-5)
    assert parts.maps.sum((1, 2)).tolist() == pytest.approx(parts.values, abs=1e-5)
    written = item.to_dict()["contributions"]
    assert [one["contribution"] for one in written["clusters"]] == sorted(parts.values, reverse=True)
    assert (written["logit"], written["bias"]) == (parts.logit, parts.bias)
    assert item.clusters.layer.name == "readout of stage 4"
    assert item.importance["contribution"].tolist() == pytest.approx(parts.values, abs=1e-5)
    if parts.others == 0:
        heat = item.maps["contributions"]
        assert heat.sum().item() == pytest.approx(parts.logit - parts.bias, abs=1e-5)


def test_bars_of_the_report_begin_where_the_one_before_ends(item):
    page = item.html()
    table = page[page.index('<table class="sum">') : page.index("</table>")]
    assert page.index('<table class="sum">') < page.index("Causal load: do the clusters")  # before everything else
    rows = re.findall(r'class="(gain|loss)" x="([-\d.]+)" width="([\d.]+)"', table)
    names = re.findall(r'<th scope="row">(.*?)</th>', table)
    others = ["clusters of other stages"] if item.parts.others else []
    assert names == ["bias", *others, *(f"cluster {m}" for m in item.parts.order), "logit"]
    assert table.count("<img") == 4
    assert len(rows) == len(names)
    end = None
    for kind, left, width in rows[:-1]:
        first, last = float(left), float(left) + float(width)
        start, stop = (first, last) if kind == "gain" else (last, first)
        assert end is None or start == pytest.approx(end, abs=0.02)  # printed with two decimals
        end = stop
    kind, left, width = rows[-1]
    assert (float(left) + float(width) if kind == "gain" else float(left)) == pytest.approx(end, abs=0.02)
