"""Downloads from a server of our own: whole or not at all, the right bytes, and each address a file of its own."""

import hashlib
import io
import json
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from urllib.request import Request

import pytest
import timm
import torch
from safetensors.torch import save

from tests.support.site import Site, serving
from tests.support.tiny_model import MODEL_ARGS
from vitreous import registry
from vitreous.data.shapes.samples import CATEGORIES
from vitreous.data.source import open_data
from vitreous.errors import InputError
from vitreous.models.download import HttpRedirects, cache_path, fetch, record_path
from vitreous.models.paca import PaCa
from vitreous.models.weights import read_state
from vitreous.runs.model_folder import load_model
from vitreous.tasks.base import load_task
from vitreous.training.build import build_training
from vitreous.training.settings import TrainSettings


@pytest.fixture
def site(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Site]:
    monkeypatch.setattr(torch.hub, "get_dir", lambda: str(tmp_path / "hub"))
    with serving() as site:
        yield site


def leftovers(tmp_path: Path) -> list[Path]:
    return [path for path in (tmp_path / "hub").rglob("*") if path.is_file()]


def test_fetched_once_and_recorded(site: Site, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "vitreous")
    url = site.put("/a/weights.pth", b"x" * 3_000_000)
    place = fetch(f"{url}?signature=secret")
    assert place.read_bytes() == b"x" * 3_000_000
    assert place.name == "weights.pth"
    assert f"downloading {url}, 3.0 MB" in caplog.text
    note = json.loads(record_path(place).read_text())
    assert note == {"url": url, "size": 3_000_000, "sha256": hashlib.sha256(b"x" * 3_000_000).hexdigest()}
    site.close()
    assert fetch(f"{url}?signature=secret") == place  # without the network
    assert len(site.asked) == 1
    assert sorted(leftovers(tmp_path)) == sorted([place, record_path(place)])


def test_two_addresses_with_one_name_are_two_files(site: Site) -> None:
    first, second = (site.put(f"/{folder}/model.pth", folder.encode()) for folder in ("one", "two"))
    assert (fetch(first).read_bytes(), fetch(second).read_bytes()) == (b"one", b"two")
    assert fetch(first).read_bytes() == b"one"


@pytest.mark.parametrize("name", ["", "..", "%2e%2e%2f%2e%2e%2fevil.pth", "a" * 300 + ".pth", "a%00b.pth", "a b.pth"])
def test_names_stay_inside_the_cache(site: Site, tmp_path: Path, name: str) -> None:
    place = cache_path(f"http://127.0.0.1/x/{name}")
    assert place.resolve().is_relative_to(tmp_path / "hub" / "checkpoints")
    assert place.parent.parent.name == "checkpoints"
    assert place.name not in ("", ".", "..")
    place.parent.mkdir(parents=True)
    place.write_bytes(b"a name that a file can have")


def test_a_damaged_file_is_refused_and_fetched_again_after_deletion(site: Site) -> None:
    url = site.put("/weights.pth", b"right")
    place = fetch(url)
    place.write_bytes(b"wrong")
    with pytest.raises(InputError, match=r"is not the file of its first use: its sha256 is .*; delete it, and"):
        fetch(url)
    place.unlink()
    assert fetch(url).read_bytes() == b"right"


def test_a_file_that_changed_at_its_address_is_refused(site: Site) -> None:
    url = site.put("/weights.pth", b"first")
    fetch(url).unlink()
    site.put("/weights.pth", b"other")
    with pytest.raises(InputError, match=r"not the file of its first use.*has changed and you trust the new file"):
        fetch(url)
    record_path(cache_path(url)).unlink()
    assert fetch(url).read_bytes() == b"other"


def test_a_note_that_is_none_is_refused(site: Site) -> None:
    url = site.put("/weights.pth", b"right")
    for content in ("{}", "[1]", '{"sha256": "short"}'):
        record_path(fetch(url)).write_text(content)
        with pytest.raises(InputError, match="holds no sha256; delete it"):
            fetch(url)
        record_path(cache_path(url)).unlink()


def test_a_checksum_in_the_name_is_checked(site: Site, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"content").hexdigest()
    assert not digest[:8].isdecimal(), "choose another content"
    assert fetch(site.put(f"/net-{digest[:8]}.pth", b"content")).read_bytes() == b"content"
    assert fetch(site.put("/net-20240131.pth", b"content")).read_bytes() == b"content"  # a date
    before = leftovers(tmp_path)
    with pytest.raises(InputError, match=r"net-0123abcd\.pth did not send the file that its publisher means"):
        fetch(site.put("/net-0123abcd.pth", b"content"))
    assert leftovers(tmp_path) == before


def test_a_checksum_of_the_registry_is_checked(site: Site, monkeypatch: pytest.MonkeyPatch) -> None:
    buffer = io.BytesIO()
    torch.save({"head.weight": torch.ones(2)}, buffer)
    url = site.put("/weights.pth", buffer.getvalue())
    monkeypatch.setitem(registry.CHECKSUMS, url, "0" * 64)
    with pytest.raises(InputError, match="did not send the file that its publisher means"):
        read_state(url)
    monkeypatch.setitem(registry.CHECKSUMS, url, hashlib.sha256(buffer.getvalue()).hexdigest())
    assert read_state(url)["head.weight"].sum() == 2


def test_registered_checksums_belong_to_their_addresses(monkeypatch: pytest.MonkeyPatch) -> None:
    class Local(PaCa):
        pass

    for table in ("ENTRIES", "ALIASES", "CHECKSUMS"):
        monkeypatch.setattr(registry, table, {})
    made = {"local_net": {"mine": {"url": "http://127.0.0.1/x.pth", "sha256": "ab" * 32}}}
    Local.__module__ = __name__
    registry.register(Local, {"local_net": {}}, paper="none", weights=made)
    assert registry.CHECKSUMS == {"http://127.0.0.1/x.pth": "ab" * 32}
    assert timm.get_pretrained_cfg("local_net.mine").url == "http://127.0.0.1/x.pth"
    assert made["local_net"]["mine"]["sha256"]  # the table itself is left alone


def test_a_transfer_that_breaks_off_leaves_nothing(site: Site, tmp_path: Path) -> None:
    url = site.put("/weights.pth", bytes(2_000_000))
    site.missing = 500_000
    with pytest.raises(InputError, match=r"the transfer ended after 1,500,000 of 2,000,000 bytes"):
        fetch(url)
    assert leftovers(tmp_path) == []
    site.missing = 0
    assert fetch(url).stat().st_size == 2_000_000


@pytest.mark.parametrize("suffix", ["pth", "safetensors"])
def test_a_part_of_a_file_is_no_first_use(site: Site, tmp_path: Path, suffix: str) -> None:
    """Without a length nobody can tell that the transfer broke off, until the file is read."""
    buffer, state = io.BytesIO(), {"head.weight": torch.ones(1000)}
    torch.save(state, buffer)
    url = site.put(f"/weights.{suffix}", buffer.getvalue() if suffix == "pth" else save(state))
    site.tells_length, site.missing = False, 500
    with pytest.raises(
        InputError, match=r"sent cannot be read and was not kept; if the transfer was cut short"
    ) as told:
        read_state(url)
    assert "\n" not in str(told.value)
    assert leftovers(tmp_path) == []
    site.missing = 0
    assert read_state(url)["head.weight"].sum() == 1000
    record_path(cache_path(url)).unlink()
    cache_path(url).write_bytes(b"put there by hand")
    with pytest.raises(InputError, match=rf"delete {cache_path(url)}, and it is downloaded again"):
        read_state(url)
    assert leftovers(tmp_path) == [cache_path(url)], "what we did not download is not ours to delete"


def test_the_scheme_of_an_address_may_be_in_capitals(site: Site, tmp_path: Path) -> None:
    buffer = io.BytesIO()
    torch.save({"head.weight": torch.ones(2)}, buffer)
    url = site.put("/weights.pth", buffer.getvalue())
    (tmp_path / "weights.pth").write_bytes(buffer.getvalue())
    for source in (url, url.replace("http", "HTTP"), f"FILE://{tmp_path}/weights.pth"):
        assert read_state(source)["head.weight"].sum() == 2
    assert site.asked == ["/weights.pth"], "both are one address"
    with pytest.raises(InputError, match=r"weights at ftp://host/x\.pth cannot be fetched"):
        read_state("FTP://host/x.pth")


def test_redirects_stay_with_http(site: Site, tmp_path: Path) -> None:
    url = site.put("/weights.pth", b"content")
    site.redirects = {"/moved.pth": url, "/away.pth": "ftp://127.0.0.1:1/weights.pth"}
    assert fetch(url.replace("weights", "moved")).read_bytes() == b"content"
    before = leftovers(tmp_path)
    with pytest.raises(InputError, match=r"/away\.pth leads on to ftp://127\.0\.0\.1:1/weights\.pth; from http, only"):
        fetch(url.replace("weights", "away"))
    assert leftovers(tmp_path) == before
    followed = HttpRedirects().redirect_request(Request("https://a/x"), None, 302, "Found", {}, "https://b/x")
    assert followed is not None
    assert followed.full_url == "https://b/x"
    with pytest.raises(InputError, match="from https, only https is followed"):
        HttpRedirects().redirect_request(Request("https://a/x"), None, 302, "Found", {}, "http://b/x")


def test_what_is_no_file_is_refused(site: Site, tmp_path: Path) -> None:
    page = site.put("/page.pth", b"<!DOCTYPE html><title>Sign in</title>")
    with pytest.raises(InputError, match="is a web page and no file of weights"):
        fetch(page)
    site.kind = "text/html; charset=utf-8"
    with pytest.raises(InputError, match="is a web page and no file of weights"):
        fetch(site.put("/other.pth", b"Not here"))
    with pytest.raises(InputError, match=r"cannot download \S+/nothing\.pth \(HTTP Error 404: Not Found\)"):
        fetch(page.replace("page", "nothing"))
    with pytest.raises(InputError, match=r"http://\[/weights\.pth cannot be read as a URL"):
        fetch("http://[/weights.pth")
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(("task", "says"), [("classify", "weights: {}"), ("segment", "the backbone's are those of {}")])
def test_training_starts_from_an_address(site: Site, task: str, says: str) -> None:
    buffer = io.BytesIO()
    model = timm.create_model("paca_tiny", num_classes=len(CATEGORIES), **MODEL_ARGS)
    torch.save(model.state_dict(), buffer)
    url = site.put("/weights.pth", buffer.getvalue())
    arguments = tuple(f"{name}={value}" for name, value in MODEL_ARGS.items())
    images = open_data("shapes", "train", size=(64, 64), count=4, targets=load_task(task).targets)
    settings = TrainSettings("paca_tiny", "shapes", task=task, size=64, weights=url, model_args=arguments)
    made = build_training(settings, images, torch.device("cpu"))
    assert says.format(url) in made.note
    (stem,) = [value for key, value in made.model.state_dict().items() if key.endswith("stem.conv1.weight")]
    assert torch.equal(stem, model.stem.conv1.weight)
    assert site.asked == ["/weights.pth"]
    with pytest.raises(InputError, match=r"cannot download \S+/nothing\.pth"):
        build_training(replace(settings, weights=url.replace("weights", "nothing")), images, torch.device("cpu"))


def test_an_address_is_a_model_to_predict_with(site: Site) -> None:
    buffer = io.BytesIO()
    model = timm.create_model("paca_b0", num_classes=3).eval()
    torch.save({"state_dict": model.state_dict(), "arch": "paca_b0"}, buffer)
    url = site.put("/weights.pth", buffer.getvalue())
    images = torch.randn(1, 3, 64, 64)
    for source in (url, f"{url}?x=1"):
        torch.testing.assert_close(load_model(source).model(images), model(images))
