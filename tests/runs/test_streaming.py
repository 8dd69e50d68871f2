"""Pictures through a model: in order, each on its own, whatever the number of threads."""

import threading
from functools import partial

import pytest
from PIL import Image

from tests.support.tiny_model import save_tiny_model
from vitreous.data.image import ImageError
from vitreous.runs.model_folder import load_model
from vitreous.runs.streaming import PictureSource, Question, even_batch_size, stream, stream_answers
from vitreous.runs.trained_model import in_batches, predict_pictures


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    return load_model(save_tiny_model(tmp_path_factory.mktemp("models") / "tiny"))


def pictures(count: int) -> list[Image.Image]:
    return [Image.effect_noise((40 + number, 50), 60).convert("RGB") for number in range(count)]


def sources(found: list[Image.Image]) -> list[PictureSource]:
    return [PictureSource(number, f"{number}.png", picture.copy) for number, picture in enumerate(found)]


@pytest.mark.usefixtures("two_threads")
def test_answers_are_those_of_single_pictures_and_come_in_order(trained):
    found, task = pictures(11), trained.build_task()
    batches = in_batches(sources(found), 2)
    outcomes = [one for batch in stream_answers(trained, Question(task, 2), batches) for one in batch]
    assert [outcome.source.number for outcome in outcomes] == list(range(11))
    for picture, outcome in zip(found, outcomes, strict=True):
        (alone,) = predict_pictures(trained, task, [picture], [None], 1)
        assert outcome.answer.names == alone.names
        assert outcome.answer.probabilities == pytest.approx(alone.probabilities, abs=1e-6)


@pytest.mark.usefixtures("two_threads")
def test_several_batches_are_worked_on_at_once_by_models_of_their_own(trained):
    both, models = threading.Barrier(2, timeout=20), []

    def answer(model, ready):
        models.append(model.model)
        both.wait()  # passes only when two batches are computed at the same time
        return ready

    batches = in_batches(sources(pictures(4)), 1)
    assert len(list(stream(trained, batches, lambda source: source.load(), answer))) == 4
    assert len(set(map(id, models))) == 2
    first, second = {id(model): model for model in models}.values()
    assert next(first.parameters()) is next(second.parameters()), "weights are shared, not copied"


@pytest.mark.usefixtures("two_threads")
def test_unreadable_pictures_concern_nobody_else(trained):
    def broken() -> Image.Image:
        raise ImageError("image 'x.jpg' is damaged")

    given = sources(pictures(5))
    given[1] = given[1]._replace(load=broken)
    given[4] = given[4]._replace(load=broken)
    outcomes = [
        one
        for batch in stream_answers(trained, Question(trained.build_task(), 4), in_batches(given, 4))
        for one in batch
    ]
    assert [outcome.error is not None for outcome in outcomes] == [False, True, False, False, True]
    assert all((outcome.answer is None) == (outcome.error is not None) for outcome in outcomes)


@pytest.mark.usefixtures("two_threads")
def test_other_errors_end_the_work(trained):
    with pytest.raises(RuntimeError, match="broken network"):
        list(stream(trained, in_batches(sources(pictures(6)), 2), lambda source: source.load(), partial(fail)))


def fail(*_):
    raise RuntimeError("broken network")


@pytest.mark.usefixtures("two_threads")
def test_few_pictures_are_shared_out_evenly():
    assert even_batch_size(20, 32) == 10
    assert even_batch_size(500, 32) == 32
    assert even_batch_size(1, 32) == even_batch_size(0, 32) == 1
