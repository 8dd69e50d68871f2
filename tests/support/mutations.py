"""Files with accidents and lies in them, made from good ones, and what reading one may come to."""

import copy
import json
import random
import resource
import signal
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from vitreous.data.data_checks import Examiner
from vitreous.data.joint import DetectView, JointViews, SegmentView
from vitreous.data.keypoint_view import KeypointView
from vitreous.data.source import describe, open_data, open_raw, usable_as
from vitreous.data.transforms import Preprocess
from vitreous.errors import InputError

DEEP = "nested far too deeply"  # in a text: stands for a hundred thousand brackets
NUMBERS = [
    -1, 0, 1, 2, 7, 0.5, 255, 256, 65535, 65536, 2**31, 2**32, 2**53, 2**63 - 1, 2**63, 2**64, 10**12, 10**30, 10**400,
    -(10**400), 1e9, -99999.0, 99999.0, 1e308, -1e308, float("inf"), float("nan"),
]  # fmt: skip
OTHERS = [
    None, True, False, "", "x", "0", "train", "\ud800", "../../secret.png", "/etc/passwd", "a" * 10_000, "a/" * 3_000,
    "\x1b[31mred\x1b[0m", "\u202egnp.exe", "\0", "9" * 5_000, DEEP, [], {}, [[]], [None], [1, 2], ["a", "b"], [[1, 2]],
    {"a": 1}, {"counts": [10**30], "size": [30, 40]}, {"counts": "~" * 500, "size": [30, 40]}, [[-99999, 99999] * 50],
    [["x"] * 6], [[1, 2, 3, 4, 5, 10**400]],
]  # fmt: skip
TOKENS = [
    b"\0", b"\xff\xfe", b"\xef\xbb\xbf", b"\x80", b"\n", b" " * 3_000, b"9" * 5_000, b"-" * 3_000, b"1e400", b"nan",
    b"&a [*a,*a]", b"*a", b"!!python/object:os.x", b"[" * 3_000, b"{" * 300, b"<" * 300, b"&lol;", b"]]>", b"\x1b[2J",
    b"<!DOCTYPE a [<!ENTITY b SYSTEM 'file:///etc/passwd'>]>", b"../../../etc/passwd", b"\xe2\x80\xae", b"~", b": ",
]  # fmt: skip
HOW_OFTEN = [1, 1, 1, 2, 3]
MOST_SECONDS = 30  # for one file; a guard against blow-up, no measurement
MOST_GROWTH = 600_000  # kilobytes by which the process may have grown after many files


class TooSlow(BaseException):
    """Not an Exception, which a guard around readers would take for the file's fault."""


@contextmanager
def bounded(*, seconds: float = MOST_SECONDS, megabytes: float | None = None) -> Iterator[None]:
    """Fails when the block takes too long, or more memory than this at its peak."""

    def ring(*_: Any) -> None:
        raise TooSlow

    before = signal.signal(signal.SIGALRM, ring)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)  # of the time that pytest gives the whole test
    if megabytes is not None:
        tracemalloc.start()
    try:
        yield
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
        signal.signal(signal.SIGALRM, before)
        if megabytes is not None:
            peak = tracemalloc.get_traced_memory()[1]
            tracemalloc.stop()
    if megabytes is not None:
        assert peak < megabytes * 1e6, f"{peak / 1e6:.0f} MB"


def mutated_bytes(content: bytes, rng: random.Random) -> bytes:
    """One to three of: a digit changed; bytes changed, cut off, left out, repeated, put in."""
    for _ in range(rng.choice(HOW_OFTEN)):
        digits = [place for place, byte in enumerate(content[:100_000]) if 48 <= byte < 58]
        if digits and rng.random() < 0.4:
            place = rng.choice(digits)
            content = content[:place] + rng.choice([b"0", b"1", b"7", b"40", b"."]) + content[place + 1 :]
            continue
        place = rng.randrange(len(content) + 1)
        end = min(len(content), place + rng.choice([1, 2, 8, 64, 512]))
        kind = rng.randrange(6)
        if kind == 0:
            content = content[:place] + rng.randbytes(end - place) + content[end:]
        elif kind == 1:
            content = content[:place]
        elif kind == 2:
            content = content[:place] + content[end:]
        elif kind == 3:
            content = content[:place] + content[place:end] * rng.choice([2, 50]) + content[end:]
        else:
            content = content[:place] + rng.choice(TOKENS) + content[place if kind == 4 else end :]
    return content


def mutated_tree(tree: Any, rng: random.Random) -> Any:
    """A copy with one to three values replaced, removed, doubled or wrapped, anywhere in it."""
    tree = json.loads(json.dumps(tree))
    for _ in range(rng.choice(HOW_OFTEN)):
        holders = list(_holders(tree))
        if not holders:
            return hostile(rng)
        holder, key = rng.choice(holders)
        kind = rng.randrange(8)
        if kind == 0:
            del holder[key]
        elif kind == 1 and isinstance(holder, list):
            holder.extend([holder[key]] * rng.choice([1, 30]))
        elif kind == 2:
            holder[key] = [holder[key]]
        elif kind == 3:
            holder[key] = {str(key): holder[key]}
        else:
            holder[key] = hostile(rng)
    return hostile(rng) if rng.random() < 0.02 else tree


def hostile(rng: random.Random) -> Any:
    return copy.deepcopy(rng.choice(NUMBERS if rng.random() < 0.5 else OTHERS))


def _holders(tree: Any) -> Iterator[tuple[Any, Any]]:
    for key in tree if isinstance(tree, dict) else range(len(tree)) if isinstance(tree, list) else ():
        yield tree, key
        yield from _holders(tree[key])


def as_text(tree: Any) -> str:
    """JSON; numbers beyond all bounds and half characters are written as they are."""
    return json.dumps(tree).replace(f'"{DEEP}"', "[" * 100_000 + "]" * 100_000)


def many(
    make: Callable[[random.Random], Any], read: Callable[[], Any], count: int, seed: int, named: str = "", **limits: Any
) -> int:
    """`make` damages files, `read` reads them: nothing but success or an InputError is allowed. How many were read."""
    start, good = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, 0
    for number in range(count):
        what = make(random.Random(f"{seed}/{number}"))
        refusal = _refusal(read, f"file {number} of seed {seed} ({what})", limits)
        good += refusal is None
        assert refusal is None or named in refusal, f"{number} ({what}): {refusal} does not name {named}"
        assert refusal is None or len(refusal) < 3_000, f"{number} ({what}): {len(refusal)} letters, {refusal[:300]}"
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - start
    assert grown < MOST_GROWTH, f"grown by {grown} kB"
    return good


def _refusal(read: Callable[[], Any], what: str, limits: dict[str, Any]) -> str | None:
    try:
        with bounded(**limits):
            read()
    except InputError as error:
        return str(error)
    except BaseException as error:
        raise AssertionError(f"{what} gave {type(error).__name__}: {error}") from error
    return None


def look_through(root: Path | str, targets: str) -> None:
    """Everything that verbs do with data before a model sees them; the first fault that stops a verb comes out last."""
    refused: list[InputError] = []
    for attempt in (_as_check, _as_train):
        try:
            attempt(str(root), targets)
        except InputError as error:
            refused.append(error)
    if refused:
        raise refused[-1]


def _as_check(root: str, targets: str) -> None:
    usable_as(root)
    splits = open_raw(root, targets)
    describe(root, targets, **splits)
    for split, images in splits.items():
        examiner = Examiner(images, split)
        for index in range(min(3, len(images))):
            examiner[index]


def _as_train(root: str, targets: str) -> None:
    preprocess = Preprocess(size=(32, 32))
    for split in ("train", "val"):
        images = open_data(root, split, size=(32, 32), targets=targets)
        images.attributes(0)
        assert images.fingerprint, "it can be told from others"
        views: dict[str, Callable[[bool], Any]] = {
            "labels": lambda train: lambda picture, target: (preprocess(picture), target["labels"]),
            "boxes": lambda train: DetectView(preprocess, short=(32,), longest=64, train=train),
            "semantic": lambda train: SegmentView(preprocess, crop=(32, 32), train=train),
            "keypoints": lambda train: KeypointView(preprocess, size=(32, 32), train=train),
        }
        for train in (True, False):
            samples = JointViews(images, views[targets](train))
            for index in range(min(2, len(samples))):
                samples[index]
