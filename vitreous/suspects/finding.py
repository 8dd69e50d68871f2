"""Looking for shortcuts of a classifier over a data set: half of the pictures propose suspects, the others try them."""

from collections.abc import Collection, Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from vitreous.attribution.catalogue import find_method
from vitreous.attribution.method import Method, to_image
from vitreous.attribution.target import ClassTarget
from vitreous.clusters.gates import cluster_count, maps_of
from vitreous.clusters.layer import Layer
from vitreous.data.image import ImageError
from vitreous.data.image_set import ImageSet
from vitreous.errors import InputError
from vitreous.explanations.dataset import ImageBatch, read_batches, selection
from vitreous.explanations.default_method import DefaultMethod
from vitreous.explanations.explaining import Plan, cluster_layer_of
from vitreous.faithfulness.curves import curves
from vitreous.faithfulness.intervals import LEVEL, Interval
from vitreous.faithfulness.localisation import near
from vitreous.reports.shortcuts import ClassEffect, Shortcuts, Suspect
from vitreous.runs.trained_model import TrainedModel, labelled_for
from vitreous.suspects.candidates import propose
from vitreous.suspects.changes import Seen
from vitreous.suspects.gathering import Evidence
from vitreous.suspects.measuring import Donors, Lost, Measure, Trial, TriedBatch, TriedGroup, measure
from vitreous.suspects.verdict import Judged, judge

FEW_PASSES = 6  # of the stored default map: two of them are computed for every picture
QUICK_MAPS = ("gradient_contrast", "contributions", "grad_cam")  # compared where nothing is stored
COMPARED, PORTIONS_COMPARED = 16, 6  # pictures and portions of that comparison
OBJECT_MARGIN = 1  # pixel around the object that counts as part of it: its outline is mixed with what lies behind
FEWEST = 20  # pictures: with fewer, ten of them would propose and ten decide
FEWEST_OF_ANSWER = 5  # pictures, for an answer to be named
MOST_GROUP_VALUES = 50  # of an attribute; one with more names pictures, not groups


class FoundShortcuts(NamedTuple):
    """The result, and the pictures to show for each suspect."""

    result: Shortcuts
    lost: Sequence[Sequence[Lost]]  # of each suspect, the most first
    judged: Sequence[Judged]
    method: Method
    masks: bool  # whether masks were used, where there are any


class Looked(NamedTuple):
    """Pictures with what is known about them, and their maps."""

    seen: Seen
    heat: Tensor  # (B, H, W), of the pictures' size

    def row(self, number: int) -> "Looked":
        """One picture of the batch, as a batch."""
        return Looked(self.seen.take(torch.tensor([number])), self.heat[number : number + 1])


def find_shortcuts(
    model: str,
    trained: TrainedModel,
    data: str,
    images: ImageSet,
    default: DefaultMethod,
    *,
    split: str,
    limit: int | None,
    masks: bool,
    batch_size: int,
) -> FoundShortcuts:
    if trained.build_task().has_findings:
        raise InputError(
            f"shortcuts are looked for in the answers of classifiers, and {trained.name} does {trained.task}"
        )
    images, numbers = labelled_for(trained, images), selection(len(images), limit)
    if len(numbers) < FEWEST:
        raise InputError(f"{len(numbers)} images are too few to tell a habit from chance; give {FEWEST} or more")
    numbers, masks, unmasked = choose_pictures(images, numbers, masks=masks)
    layer, attributes = cluster_layer_of(trained.model, Plan()), group_attributes(images, numbers[1::2])
    method, reason = choose_map(trained, images, numbers, default, batch_size)
    evidence = gather_evidence(trained, images, numbers[::2], method, layer, masks=masks, batch_size=batch_size)
    trials = [Trial(one, len(trained.classes)) for one in propose(evidence, trained.classes, layer)]
    donors, pictures = Donors(), 0
    for batch in usable_batches(trained, images, numbers[1::2], batch_size, masks=masks, label="try suspects"):
        looked = seen_with_map(trained, batch, method, masks=masks)
        seen = looked.seen
        pictures += len(seen.answers)
        groups = [group_values(images, int(number), attributes) for number in batch.numbers]
        measure(trained.model, trials, TriedBatch(seen, batch.numbers, batch.labels, looked.heat, groups), donors)
    if not pictures:
        raise InputError(f"the object is in none of the {len(numbers)} images as the model sees them; add --no-masks")
    judged = judge(trials, masks=masks, labels=True)
    right = sum(count for outcome, count in trials[0].outcomes.items() if outcome.right)
    result = Shortcuts(
        model=model,
        data=data,
        split=split,
        pictures=pictures,
        proposing=int(evidence.pictures.sum()),
        accuracy=right / pictures,
        masks=masks,
        unmasked=unmasked,
        method=method.name,
        reason=reason,
        suspects=tuple(as_suspect(one, trained.classes) for one in judged),
    )
    return FoundShortcuts(result, [sorted(one.trial.lost, reverse=True) for one in judged], judged, method, masks)


def choose_map(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], default: DefaultMethod, batch_size: int
) -> tuple[Method, str]:
    """What was measured to be the most faithful for few passes; else the best of a few on a few pictures."""
    stored = default.for_budget(FEW_PASSES) if any(passes <= FEW_PASSES for passes in default.by_budget) else None
    if stored is not None:
        return find_method(stored, trained.model), f"the most faithful for few passes on {default.data}"
    methods = []
    for name in QUICK_MAPS:
        try:
            methods.append(find_method(name, trained.model))
        except InputError:  # it does not fit the model
            continue
    few = [numbers[place] for place in range(0, len(numbers), max(1, len(numbers) // COMPARED))][:COMPARED]
    scores = dict.fromkeys(methods, 0.0)
    for batch in read_batches(trained, images, few, batch_size, label="compare maps"):
        with torch.no_grad():
            target = ClassTarget(labels=trained.model(batch.inputs).argmax(1))
        for method in methods:
            found = curves(
                trained.model,
                batch.inputs,
                method(trained.model, batch.inputs, target),
                target,
                portions=PORTIONS_COMPARED,
            )
            scores[method] += float(found.difference.sum())
    best = max(methods, key=lambda method: scores[method])
    return best, f"the most faithful of {', '.join(method.name for method in methods)} on {len(few)} pictures"


def gather_evidence(
    trained: TrainedModel,
    images: ImageSet,
    numbers: Sequence[int],
    method: Method,
    layer: Layer | None,
    *,
    masks: bool,
    batch_size: int,
) -> Evidence:
    evidence = Evidence(len(trained.classes), 0 if layer is None else cluster_count(trained.model, layer))
    for batch in usable_batches(trained, images, numbers, batch_size, masks=masks, label="look for suspects"):
        seen, heat = seen_with_map(trained, batch, method, masks=masks)
        with torch.no_grad():
            maps = None if layer is None else maps_of(trained.model, seen.images, layer)[1]
        evidence.add(seen, heat, batch.labels, maps)
    return evidence


def choose_pictures(images: ImageSet, numbers: Sequence[int], *, masks: bool) -> tuple[Sequence[int], bool, int]:
    """The pictures to look at, whether their masks are used, and how many are left out because they have none.

    Where enough pictures have a mask, these are looked at alone: of the others nobody knows what lies off the object.
    """
    known = [number for number in numbers if shows_object(images, number)] if masks else []
    if len(known) < FEWEST:
        return numbers, False, 0
    return known, True, len(numbers) - len(known)


def shows_object(images: ImageSet, number: int) -> bool:
    try:
        return images.object_mask(number) is not None
    except ImageError:  # told when the picture is read
        return False


def usable_batches(
    trained: TrainedModel, images: ImageSet, numbers: Sequence[int], batch_size: int, *, masks: bool, label: str
) -> Iterator[ImageBatch]:
    """The pictures; where masks are used, without those whose object is not in the part that the model sees."""
    for batch in read_batches(trained, images, numbers, batch_size, label=label):
        rows = batch.objects.flatten(1).any(1) if masks else torch.ones(len(batch.labels), dtype=torch.bool)
        if rows.any():
            yield ImageBatch(*(part[rows.to(part.device)] for part in batch))


def seen_with_map(trained: TrainedModel, batch: ImageBatch, method: Method, *, masks: bool) -> Looked:
    with torch.no_grad():
        answers = trained.model(batch.inputs).argmax(1)
    objects = batch.objects.to(batch.inputs.device) & masks
    ground = 1 - near(objects, OBJECT_MARGIN).to(batch.inputs.dtype)[:, None]
    seen = Seen(batch.inputs, ground, objects.flatten(1).any(1), answers)
    heat = method(trained.model, batch.inputs, ClassTarget(labels=answers))
    return Looked(seen, to_image(heat, (batch.inputs.shape[2], batch.inputs.shape[3])))


def group_attributes(images: ImageSet, numbers: Sequence[int]) -> tuple[str, ...]:
    """Attributes by which pictures form groups: those with a few values each."""
    values: dict[str, set[str]] = {name: set() for name in images.attribute_names}
    for number in numbers:
        for name, value in images.attributes(number).items():
            if name in values:
                values[name].add(value)
                if len(values[name]) > MOST_GROUP_VALUES:
                    del values[name]
    return tuple(name for name, found in values.items() if len(found) > 1)


def group_values(images: ImageSet, number: int, attributes: Collection[str]) -> dict[str, str]:
    """Those of the attributes that a picture has."""
    return {name: value for name, value in images.attributes(number).items() if name in attributes}


def as_suspect(one: Judged, classes: Sequence[str]) -> Suspect:
    trial, candidate = one.trial, one.trial.candidate

    def interval(name: str) -> Interval | None:
        return trial.interval(Measure(name), LEVEL)

    pictures, total = trial.pictures.clamp_min(1), float(trial.pictures.sum())
    located = trial.area > 0
    by_class = tuple(
        ClassEffect(
            classes[k],
            int(trial.pictures[k]),
            float(trial.used[k] / pictures[k]) if located else None,
            float(trial.changed[k] / pictures[k]),
        )
        for k in (trial.pictures >= FEWEST_OF_ANSWER).nonzero().flatten().tolist()
    )
    changed, right, without = (interval(name) for name in ("changed", "right", "right_without"))
    assert changed is not None  # as the other two, it is known of every picture
    hit = [effect.name for effect in by_class if effect.changed >= float(trial.changed.sum()) / max(total, 1) / 2]
    worst = trial.worst_group()
    return Suspect(
        kind=candidate.kind,
        name=candidate.name,
        verdict=one.verdict,
        reasons=one.reasons,
        box=candidate.box if candidate.kind in ("place", "look", "cluster") else None,
        classes=() if len(hit) == len(by_class) else tuple(hit),
        proposed_by=candidate.proposed_by,
        used=float(trial.used.sum()) / total if located else None,
        changed=changed,
        control=interval("controls"),
        hangs=one.hangs,
        exchanged=interval("other"),
        followed=interval("followed"),
        exchanged_alike=interval("same"),
        tells=one.tells,
        accuracy=None if right is None or without is None else (right.mean, without.mean),
        gain=one.gain,
        worst_group=None if worst is None else (group_in_words(worst[0], classes), worst[1], worst[2]),
        by_class=by_class,
    )


def group_in_words(group: TriedGroup, classes: Sequence[str]) -> str:
    named = f"{group.attribute}={group.value}"
    return named if group.label is None else f"{named}, class {classes[group.label]}"
