"""`vitreous embed`: the features are the model's own, and come back as one array."""

import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch

import vitreous
from tests.support.full_disk import largest_file
from tests.support.tiny_data import picture
from tests.support.tiny_model import save_tiny_dense, save_tiny_model
from vitreous.data.image import load_image
from vitreous.embed import embed
from vitreous.errors import InputError
from vitreous.measurements.plan import plan_memory
from vitreous.runs.features import load_features
from vitreous.runs.model_folder import data_of, load_model


@pytest.fixture(scope="module")
def model(tmp_path_factory):
    return save_tiny_model(tmp_path_factory.mktemp("models") / "tiny")


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("photos")
    for number in range(11):
        picture(folder / ("cat" if number % 2 else "dog") / f"{number:02d}.png", seed=number)
    return folder


def own_features(trained, names) -> np.ndarray:
    found = []
    with torch.no_grad():
        for name in names:
            maps = trained.model.forward_features(trained.preprocess(load_image(name))[None])
            found.append(trained.model.forward_head(maps, pre_logits=True)[0].numpy())
    return np.stack(found)


@pytest.mark.parametrize("to", ["safetensors", "parquet"])
def test_features_are_what_the_classifier_sees(model, photos, tmp_path, to):
    found = embed(model, (str(photos),), out=tmp_path / "out", to=to, shard_size=4, batch_size=3)
    assert len(list((tmp_path / "out").glob(f"features-*.{to}"))) == 3
    assert found.names == [path.as_posix() for path in sorted(photos.rglob("*.png"))]
    assert found.labels == [Path(name).parent.name for name in found.names]
    assert found.model == "paca_tiny"
    assert found.array.shape == (11, 32)
    expected = own_features(load_model(model), found.names)
    assert np.allclose(np.asarray(found.array), expected, atol=1e-5)


def test_models_of_timm_too(photos, tmp_path):
    torch.manual_seed(0)
    trained = data_of(timm.create_model("resnet10t", num_classes=3).eval(), "resnet10t")
    small = trained._replace(preprocess=type(trained.preprocess)(size=(64, 64)))
    found = vitreous.embed(small, str(photos), out=str(tmp_path / "out"))
    assert np.allclose(np.asarray(found.array), own_features(small, found.names), atol=1e-4)


def test_a_plan_is_told_and_kept_to(model, photos, tmp_path, capsys):
    """The same features, fewer at a time; a size may be higher than wide."""
    options = dict(size="96x64", out=tmp_path / "plain")
    plain = embed(model, (str(photos),), **options)
    one = plan_memory(load_model(model), size=(96, 64)).needed.whole
    capsys.readouterr()
    bounded = embed(model, (str(photos),), **options | dict(out=tmp_path / "bounded", max_memory=f"{one + 1}B"))
    assert "plan: 96x64 pixels, 1 at a time" in capsys.readouterr().out
    np.testing.assert_allclose(bounded.array[:], plain.array[:], rtol=1e-4, atol=1e-5)
    with pytest.raises(InputError, match="one image of 96x64 pixels needs about"):
        embed(model, (str(photos),), **options | dict(out=tmp_path / "none", max_memory="1KB"))
    assert not (tmp_path / "none").exists()


def test_the_array_is_indexed_as_numpy_does(model, photos, tmp_path):
    array = embed(model, (str(photos),), out=tmp_path / "out", shard_size=4).array
    whole = np.asarray(array)
    mask = np.arange(11) % 3 == 0
    for index in (0, -1, 7, slice(2, 9), slice(None, None, -2), [8, 1, 1], mask, (slice(3, 6), 2), (5, slice(0, 4))):
        assert np.array_equal(array[index], whole[index]), index
    assert np.allclose(array @ whole[3], whole @ whole[3])
    assert [len(part) for part in array.parts()] == [4, 4, 3]
    assert isinstance(next(array.parts()), np.memmap), "rows stay in the file until they are used"
    for outside in (11, [3, 12]):
        with pytest.raises(IndexError):
            array[outside]


def test_labels_of_a_layout(model, tmp_path):
    found = embed(model, ("shapes:val:0-5",), out=tmp_path / "named")
    for number in range(6):
        picture(tmp_path / "data" / "val" / ("ant" if number < 3 else "bee") / f"{number}.png", seed=number)
    split = embed(model, (str(tmp_path / "data"),), split="val", out=tmp_path / "split")
    assert split.labels == ["ant"] * 3 + ["bee"] * 3
    assert split.names[0] == "val/ant/0.png"
    assert len(found) == 6
    assert None not in found.labels


def test_continues_and_leaves_unreadable_pictures_out(model, tmp_path, capsys, caplog):
    for number in range(7):
        picture(tmp_path / "mixed" / f"{number}.png", seed=number)
    (tmp_path / "mixed" / "5.png").write_bytes(b"no picture")
    first = np.asarray(embed(model, (str(tmp_path / "mixed"),), out=tmp_path / "out", shard_size=3).array)
    assert "6 pictures done, 1 unreadable" in capsys.readouterr().out
    assert "5.png" in caplog.text
    (tmp_path / "out" / "features-00001.safetensors").unlink()
    with pytest.raises(InputError, match=r"1 of the 3 shards .* missing, the first is features-00001\.safetensors"):
        load_features(tmp_path / "out")
    again = embed(model, (str(tmp_path / "mixed"),), out=tmp_path / "out")
    assert "2 pictures done, 1 unreadable, 4 were there before" in capsys.readouterr().out
    assert np.array_equal(np.asarray(again.array), first)
    assert [Path(name).stem for name in again.names] == list("012346")


def test_two_processes_cover_everything(model, photos, tmp_path, monkeypatch):
    alone = np.asarray(embed(model, (str(photos),), out=tmp_path / "alone", shard_size=2, batch_size=2).array)
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    assert embed(model, (str(photos),), out=tmp_path / "out", shard_size=2, batch_size=2) is None
    assert len(list((tmp_path / "out").glob("*.safetensors"))) == 3
    monkeypatch.setenv("RANK", "0")
    both = embed(model, (str(photos),), out=tmp_path / "out", shard_size=2, batch_size=2)
    assert np.allclose(np.asarray(both.array), alone, atol=1e-6)


def test_what_cannot_be_embedded_is_refused(model, photos, tmp_path):
    detector = save_tiny_dense(tmp_path / "fcos", "detect", ("a",))
    with pytest.raises(InputError, match=r"\(detect\) has no pooled features"):
        embed(detector, (str(photos),), out=tmp_path / "out")
    with pytest.raises(InputError, match="goes with one data set, and 2 were given"):
        embed(model, ("shapes", "shapes"), split="val", out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
    embed(model, (str(photos),), out=tmp_path / "out")
    before = sorted(os.listdir(tmp_path / "out"))
    with pytest.raises(InputError, match="by another model"):
        embed(save_tiny_model(tmp_path / "other", dims=(8, 16, 24, 40)), (str(photos),), out=tmp_path / "out")
    assert sorted(os.listdir(tmp_path / "out")) == before


def test_what_is_no_folder_of_features_is_refused(tmp_path):
    with pytest.raises(InputError, match="holds no features"):
        load_features(tmp_path)
    for note in ("[]", '{"kind": "predictions"}', '{"kind": "features", "ending": "/x", "shard_size": 1}'):
        (tmp_path / "shards.json").write_text(note)
        with pytest.raises(InputError):
            load_features(tmp_path)


@pytest.mark.parametrize("to", ["safetensors", "parquet"])
def test_a_full_disk_loses_one_shard_at_most(model, photos, tmp_path, to):
    out = tmp_path / "out"
    whole = embed(model, (str(photos),), out=tmp_path / "whole", to=to, shard_size=4)
    first = (tmp_path / "whole" / f"features-00000.{to}").stat().st_size
    with largest_file(first // 2), pytest.raises(InputError, match=r"cannot write .*features-00000.*too large"):
        embed(model, (str(photos),), out=out, to=to, shard_size=4)
    assert [path.name for path in out.iterdir()] == ["shards.json"], "no part of a file"
    with pytest.raises(InputError, match=r"3 of the 3 shards in .* are missing"):
        load_features(out)
    again = embed(model, (str(photos),), out=out, to=to, shard_size=4)
    assert (again.names, np.asarray(again.array).tolist()) == (whole.names, np.asarray(whole.array).tolist())


def test_a_disk_that_cannot_take_the_note_gets_nothing(model, photos, tmp_path):
    with largest_file(16), pytest.raises(InputError, match="cannot write"):
        embed(model, (str(photos),), out=tmp_path / "out")
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("to", ["safetensors", "parquet"])
def test_damage_anywhere_in_a_shard_is_seen(model, photos, tmp_path, to):
    """Every byte matters: what comes back is what was written, or one line."""
    embed(model, (str(photos),), out=tmp_path / "out", to=to)
    path = tmp_path / "out" / f"features-00000.{to}"
    good, wanted = path.read_bytes(), load_features(tmp_path / "out")
    rows, names, labels = np.asarray(wanted.array), wanted.names, wanted.labels
    random = np.random.default_rng(0)
    damaged = [good[:-1], good[: len(good) // 2], b""]
    damaged += [good[:at] + bytes([good[at] ^ 4]) + good[at + 1 :] for at in random.integers(len(good), size=60)]
    said = []
    for content in damaged:
        path.unlink()  # a new file: the old one may still be mapped
        path.write_bytes(content)
        try:
            found = load_features(tmp_path / "out")
            assert (found.names, found.labels) == (names, labels)
            assert np.array_equal(np.asarray(found.array), rows)
        except InputError as reason:  # a flipped bit may also lie where nothing is, between two parts of a file
            said.append(str(reason))
    assert len(said) > len(damaged) // 2
    assert all(path.name in words and "run the same vitreous embed again" in words for words in said)


def test_a_damaged_shard_is_named(model, photos, tmp_path):
    embed(model, (str(photos),), out=tmp_path / "out")
    (tmp_path / "out" / "features-00000.safetensors").write_bytes(b"\xff" * 40)
    with pytest.raises(InputError, match=r"features-00000\.safetensors cannot be read"):
        load_features(tmp_path / "out")
