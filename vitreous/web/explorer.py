"""Questions a page asks about one picture, answered by the model. Everything here runs on the model's own thread.

Answers are plain dictionaries. Maps travel as bytes, `{"rows", "columns", "values"}` with 0 to 255 in base64, and the
browser draws them. Stages and blocks count from one. Methods with steps are generators that return their answer.

Shapes: M clusters, H W grid of the stage.
"""

import base64
from collections import OrderedDict
from collections.abc import Generator, Sequence
from contextlib import suppress
from dataclasses import fields, replace
from time import perf_counter
from typing import Any
from weakref import WeakKeyDictionary

import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from vitreous.attribution.catalogue import find_method, methods_for
from vitreous.attribution.frame import of_picture
from vitreous.attribution.looking import layers_read
from vitreous.attribution.method import Method, cluster_layers, find_trunk, trunk
from vitreous.attribution.spatial import lacks_map
from vitreous.attribution.target import ClassTarget, Target, as_target
from vitreous.attribution.views import kinds_inside
from vitreous.clusters.contributions import contributions
from vitreous.clusters.gates import PartialForward, attentions, cluster_count, cluster_layer, without
from vitreous.clusters.groups import group_gates, group_maps, several
from vitreous.clusters.importance import RANKINGS, by_logit_gate, rankings_for
from vitreous.clusters.layer import as_distributions, spatial_entropy, stretch
from vitreous.clusters.load import causal_load
from vitreous.data.image import load_image
from vitreous.data.transforms import to_unit_tensor
from vitreous.drawing.panels import HEAT_COLOURS
from vitreous.errors import InputError
from vitreous.explanations.default_method import NOT_MEASURED, DefaultMethod
from vitreous.explanations.explaining import IMAGE_PORTIONS, Plan, explain_image
from vitreous.faithfulness.curves import Curves, curves
from vitreous.faithfulness.scoring import NO_BETTER
from vitreous.layers.tap import record
from vitreous.runs.results import require_numbers
from vitreous.runs.trained_model import TrainedModel
from vitreous.web.pictures import ServedPicture, served_picture
from vitreous.web.turns import in_turns

LISTED_CLASSES = 5
LARGEST_MAP = 28  # finer maps are averaged down to this: more cannot be told apart with a pointer
MAX_PARTIAL_FORWARDS = 4  # pictures and stages whose first layers are kept computed, to switch clusters off quickly
CLUSTERS_PER_STEP = 4  # removed by a thread before other questions get a chance
PASSES_AT_ONCE = 10  # of a map that is computed without letting others pass
COPIES_PER_PASS = 2  # changed copies of a picture in one pass of a measurement, so that nobody waits long for its end
FIRST_IMAGE = torch.tensor([0])  # the only image of a batch
RANKINGS_IN_SHARES = {"masking", "attention_mass"}  # of one; the others are in log-odds
RANKINGS_WITHOUT_GROUPS = {"masking"}  # their sum over a group says nothing about the group

Answer = dict[str, Any]
Steps = Generator[None, None, Answer]


class Explorer:
    portions = IMAGE_PORTIONS  # of the curves of insertion and deletion

    def __init__(self, trained: TrainedModel, chosen: DefaultMethod = NOT_MEASURED, source: str = "") -> None:
        """`source` tells models of one name apart."""
        self.trained, self.model, self.chosen, self.source = trained, trained.model, chosen, source
        self.device = next(trained.model.parameters()).device
        backbone = find_trunk(trained.model)
        self.stages = cluster_layers(backbone) if backbone is not None else []
        self.rests: OrderedDict[tuple[str, int], PartialForward] = OrderedDict()
        self.alike: WeakKeyDictionary[PartialForward, Tensor] = WeakKeyDictionary()  # groups of clusters

    # ---- the model -----------------------------------------------------------------------------------------------

    def size(self) -> tuple[int, int]:
        """Height and width of what the model sees."""
        return self.trained.preprocess.size

    def card(self) -> Answer:
        """What the page needs to know before there is a picture."""
        height, width = self.size()
        return {
            "name": self.trained.name,
            "source": self.source,
            "task": self.trained.task,
            "has_findings": self.trained.build_task().has_findings,
            "classes": len(self.trained.classes),
            "width": width,
            "height": height,
            "colours": HEAT_COLOURS,
            "stages": [self.stage_card(stage) for stage in self.stages],
            "rankings": [
                {
                    "name": ranking.name,
                    "summary": ranking.unit,
                    "groups": ranking.name not in RANKINGS_WITHOUT_GROUPS,
                    "readout": ranking.needs.readout,
                    "share": ranking.name in RANKINGS_IN_SHARES,
                }
                for ranking in RANKINGS.values()
                if ranking.name != "random"
            ],
            "methods": [self.method_card(method) for method in self.methods()],
            "chosen": {
                "method": self.chosen.method,
                "reason": self.chosen.reason,
                "measured_on": f"{self.chosen.images} images of {self.chosen.data}",
            },
            "refinement": self.refinement(),
            "inside": self.has(),
            "attention": [{"name": name, "places": by_place} for name, by_place in self.head_views().items()],
        }

    def head_views(self) -> dict[str, bool]:
        """Attention in which every head has a map of its own, and whether the place that reads matters to it."""
        if self.trained.build_task().has_findings or lacks_map(self.model):
            return {}
        return layers_read(self.model)

    def methods(self) -> list[Method]:
        """The run's default first; it may stand at a layer that no list has (`grad_cam layer3`)."""
        found = {method.name: method for method in methods_for(self.model)}
        for name in (self.chosen.method, *self.chosen.refinement()):
            if name is not None and name not in found:
                with suppress(InputError):  # one that was learned and is there no more
                    found[name] = self.method(name)
        return sorted(found.values(), key=lambda method: method.name != self.chosen.method)

    def refinement(self) -> list[str]:
        """Methods whose maps follow each other while somebody looks, each more faithful on the data and dearer."""
        offered = [method.name for method in self.methods()]
        return [name for name in self.chosen.refinement() if name in offered]

    def method_card(self, method: Method) -> Answer:
        """What it needs, and what a data set has shown about it."""
        best = [f"most faithful on {self.chosen.data}"] if method.name == self.chosen.method else []
        return {
            "name": method.name,
            "summary": method.summary,
            "passes": method.needs.passes,
            "target": method.needs.target,
            "staged": takes_stage(method),
            "measured": found._asdict() if (found := self.chosen.measured.get(method.name)) else None,
            "labels": best + ([NO_BETTER] if self.chosen.verdicts.get(method.name) is False else []),
        }

    def has(self) -> str:
        """What a model without clusters can show instead."""
        if self.stages:
            return ""
        inside = ", ".join(kind.replace("_", " ") for kind in kinds_inside(self.model))
        return f"{self.trained.name} has no clusters. " + (
            f"Inside it can be seen: {inside}." if inside else "It is explained from outside, by methods for any model."
        )

    def stage_card(self, stage: int) -> Answer:
        layer = cluster_layer(self.model, stage)
        count = cluster_count(self.model, layer)
        return {"stage": stage, "name": layer.name, "readout": layer.is_readout, "clusters": count}

    # ---- a picture -----------------------------------------------------------------------------------------------

    def receive(self, content: bytes, name: str) -> ServedPicture:
        return self.see(load_image(content, name=name), name)

    def see(self, image: Image.Image, name: str, label: str | None = None) -> ServedPicture:
        """A picture as the model sees it; `label` is its true class, where it is known."""
        known, preprocess = label if label in self.trained.classes else None, self.trained.preprocess
        left, top, right, bottom = preprocess.window(image)
        window = left / image.width, top / image.height, right / image.width, bottom / image.height
        same = not preprocess.hidden  # what is painted over is not in the original, so no map of it can lie on that
        return served_picture(name, preprocess.picture(image), label=known, window=window if same else None)

    def network(self, item: ServedPicture) -> nn.Module:
        """What answers about a picture."""
        return self.model

    def png(self, item: ServedPicture, number: int | None) -> bytes:
        """The picture, with what is explained outlined if it lies somewhere in it."""
        return item.png

    def drawing(self, item: ServedPicture) -> bytes:
        """A PNG of all that was found."""
        raise InputError("a classifier finds nothing that could be drawn; ask for the picture itself")

    def pointed(self, item: ServedPicture, across: float, down: float) -> Answer:
        """What was found at a point of the picture."""
        raise InputError("a classifier finds nothing at a point; choose one of its classes")

    def inputs(self, item: ServedPicture) -> Tensor:
        return self.trained.preprocess.normalise(to_unit_tensor(item.picture).to(self.device))[None]

    def predict(self, item: ServedPicture) -> Answer:
        begun = perf_counter()
        output = self.output(item)
        seconds = perf_counter() - begun
        classes = self.likeliest(self.probabilities(output), item)
        return self.about(item) | {"true": item.label, "classes": classes, "pass_seconds": seconds}

    def about(self, item: ServedPicture) -> Answer:
        """The picture, whatever the model says."""
        return {"id": item.id, "name": item.name, "window": item.window}

    def output(self, item: ServedPicture) -> Any:
        """Of the network. Where there are clusters, switching them off comes next, and begins with the same pass."""
        if self.stages:
            return self.rest(item, None).output
        with torch.no_grad():
            return self.network(item)(self.inputs(item))

    def probabilities(self, output: Tensor) -> Tensor:
        probabilities = output[0].float().softmax(-1).cpu()
        require_numbers(self.trained.name, probabilities)
        return probabilities

    def likeliest(self, probabilities: Tensor, item: ServedPicture) -> list[Answer]:
        """The likeliest classes, and the true one where it is known."""
        shown = probabilities.topk(min(LISTED_CLASSES, len(probabilities))).indices.tolist()
        if item.label in self.trained.classes and (true := self.trained.classes.index(item.label)) not in shown:
            shown.append(true)
        return [{"number": k, "name": self.trained.classes[k], "probability": probabilities[k].item()} for k in shown]

    def target(self, item: ServedPicture, number: int | None, output: Any) -> Target:
        """What is explained: on this page a class by its number, or the predicted one."""
        return as_target(number, output, 1)

    # ---- clusters ------------------------------------------------------------------------------------------------

    def rest(self, item: ServedPicture, stage: int | None) -> PartialForward:
        """What follows the clusters of a stage, everything before it computed."""
        layer = cluster_layer(self.model, stage)
        key = item.id, layer.stage
        if key not in self.rests:
            self.rests[key] = PartialForward(self.network(item), self.inputs(item), layer)
            if len(self.rests) > MAX_PARTIAL_FORWARDS:
                self.rests.popitem(last=False)
        self.rests.move_to_end(key)
        return self.rests[key]

    def stage(self, item: ServedPicture, stage: int, number: int | None) -> Answer:
        """The maps of a stage, who looks at them, which are alike, and a quick estimate of their importance."""
        rest = self.rest(item, stage)
        maps, attention = self.look(rest)
        target = self.target(item, number, rest.output)
        label = self.alike[rest] = group_maps(maps)
        parts = self.parts(rest, target)
        by, quick = "contribution", torch.tensor(parts["values"]) if parts else None
        if quick is None:
            by, quick = "logit_gate", by_logit_gate(rest.model, rest.images, target, rest.layer, rest=rest)[0]
        small, reading = reduced(maps), reduced(attention)
        return {
            "stage": stage,
            "block": rest.layer.block,
            "rows": maps.shape[1],
            "columns": maps.shape[2],
            "entropy": spatial_entropy(as_distributions(maps)).tolist(),
            "flat_entropy": torch.tensor(float(maps[0].numel())).log().item(),
            "maps": packed(stretch(small)),
            "attention": packed(reading / reading.max()) | {"highest": reading.max().item()},
            "groups": label.tolist(),
            "importance": {"by": by, "values": numbers(quick), "groups": numbers(added(quick, label))},
            "parts": parts,
        }

    def parts(self, rest: PartialForward, target: Target) -> Answer | None:
        """What the logit of the explained class is made of, where the classifier reads these clusters."""
        if not rest.layer.is_readout or not isinstance(target, ClassTarget):
            return None
        found, label = contributions(rest.model, rest.images, rest.layer, rest=rest), target.labels
        sums = {"logit": found.logits[0, label], "bias": found.bias[label], "others": found.others[0, label]}
        return {name: value.item() for name, value in sums.items()} | {"values": numbers(found.of(label)[0].cpu())}

    def look(self, rest: PartialForward) -> tuple[Tensor, Tensor]:
        """Cluster maps, and attention of positions to clusters averaged over heads and the blocks that use them."""
        taps = [f"{path}.map" for path in attentions(self.model, rest.layer)]
        with torch.no_grad(), record(trunk(self.model), rest.layer.tap, *taps) as recorded:
            rest.run(FIRST_IMAGE)
        attention = torch.stack([recorded[tap][0].float().mean(0) for tap in taps]).mean(0)  # (M, H, W)
        if rest.layer.is_readout:  # of what is read from a place, the part of each cluster
            attention = attention / attention.sum(0).clamp_min(torch.finfo(attention.dtype).tiny)
        trimmed = (of_picture(maps, rest.model).cpu() for maps in (recorded[rest.layer.tap][0].float(), attention))
        return next(trimmed), next(trimmed)

    def importance(self, item: ServedPicture, stage: int, number: int | None, by: str) -> Steps:
        """One ranking of the clusters, and of the groups of clusters that look alike."""
        rest = self.rest(item, stage)
        known = [name for name in rankings_for(rest.layer) if name != "random"]
        if by not in known:
            raise InputError(f"clusters cannot be ranked by {by!r}; known: {', '.join(known)}")
        target = self.target(item, number, rest.output)
        label = self.groups(rest)
        yield
        if by == "ablation":
            joint, alone = several(label), rest.count
            gates = torch.cat([1 - torch.eye(alone), group_gates(label)[joint]])
            lost = yield from self.removing(rest, target, gates)
            values = lost[:alone]
            groups = added(values, label)  # right for groups of one, which are not removed again
            groups[joint] = lost[alone:]
        else:
            values = RANKINGS[by](rest.model, rest.images, target, rest.layer)[0]
            groups = added(values, label)
        named = {"values": numbers(values)} | ({} if by in RANKINGS_WITHOUT_GROUPS else {"groups": numbers(groups)})
        return {"by": by, "summary": RANKINGS[by].unit, **named}

    def groups(self, rest: PartialForward) -> Tensor:
        """The group of each cluster, (M,)."""
        if rest not in self.alike:
            self.alike[rest] = group_maps(self.look(rest)[0])
        return self.alike[rest]

    def removing(self, rest: PartialForward, target: Target, gates: Tensor) -> Generator[None, None, Tensor]:
        """Log-odds lost under each gate, in steps, so that nobody has to wait for all of them."""
        target, left = target.on("log_odds"), []
        for part in rest.parts(target, gates, batch_size=CLUSTERS_PER_STEP):
            left.append(part)
            yield
        return (rest.score(target) - torch.cat(left)).cpu()

    def ablate(self, item: ServedPicture, stage: int, number: int | None, off: Sequence[int]) -> Answer:
        """The prediction with these clusters removed."""
        rest = self.rest(item, stage)
        gate = without(off, rest.count).to(self.device)
        target = self.target(item, number, rest.output).on("log_odds")
        with torch.no_grad():
            output = rest.without(FIRST_IMAGE, gate)
        logit = {"logit": target.on("logit")(output).item()} if rest.layer.is_readout else {}
        return self.compared(item, target, rest.output, output) | {
            "off": sorted(set(off)),
            "log_odds": target(output).item(),
            "log_odds_before": rest.score(target).item(),
            **logit,
        }

    def compared(self, item: ServedPicture, target: Target, before: Any, after: Any) -> Answer:
        """The shown classes in two outputs of the network, and whether the answer changed."""
        before, after = self.probabilities(before), self.probabilities(after)
        shown = [row["number"] for row in self.likeliest(before, item)]
        first = int(after.argmax())
        return {
            "classes": [
                {
                    "number": k,
                    "name": self.trained.classes[k],
                    "probability": after[k].item(),
                    "before": before[k].item(),
                }
                for k in (shown if first in shown else [*shown, first])
            ],
            "changed": first != int(before.argmax()),
        }

    def load(self, item: ServedPicture, number: int | None) -> Steps:
        """How much the answer depends on each stage's clusters at all."""
        images, output, found = self.inputs(item), self.output(item), []
        target = self.target(item, number, output)
        for stage in self.stages:
            yield
            (load,) = causal_load(self.network(item), images, target, stages=[stage], keep=(), output=output)
            found.append(
                {
                    "stage": stage,
                    "name": cluster_layer(self.model, stage).name,
                    "carries": bool(load.carries[0]),
                    "uniform": load.drop("uniform")[0].item(),
                    "uniform_flips": bool(load.flips("uniform")[0]),
                    "attention_off": load.drop("attention_off")[0].item(),
                }
            )
        return {"stages": found}

    # ---- any model -----------------------------------------------------------------------------------------------

    def heat(self, item: ServedPicture, name: str, stage: int | None, number: int | None) -> Steps:
        """The map of one method; at a stage, where the method has one to choose. Others may ask between its passes."""
        method = self.method(name)
        if stage is not None and takes_stage(method):
            method = replace(method, stage=stage)  # type: ignore[call-arg]  # has the field
        target = self.target(item, number, self.output(item))
        network, images = self.network(item), self.inputs(item)
        if method.needs.passes > PASSES_AT_ONCE:
            found = yield from in_turns(lambda copied: method(copied, images, target), network)
        else:
            found = method(network, images, target)
        heat = reduced(found.cpu())
        low, high = heat.min().item(), heat.max().item()
        # Where a method tells for from against, the map shows what speaks for: zero and below is dark.
        shown = heat.clamp_min(0) / max(high, 1e-12) if low < 0 else stretch(heat)
        return {"method": name, "summary": method.summary, "low": low, "high": high, "map": packed(shown)}

    def faithfulness(self, item: ServedPicture, name: str, number: int | None) -> Steps:
        """Insertion minus deletion of a map on this picture, as in the report. Others may ask between its passes."""
        images, method = self.inputs(item), self.method(name)
        target = self.target(item, number, self.output(item))

        def measure(network: nn.Module) -> Curves:
            heat = method(network, images, target)
            portions, few = self.portions, COPIES_PER_PASS
            return curves(network, images, heat, target, fill="blur", portions=portions, batch_size=few)

        both = yield from in_turns(measure, self.network(item))
        return {"method": name, "difference": both.difference.item()}

    def method(self, name: str) -> Method:
        return find_method(name, self.model)

    def report(self, item: ServedPicture, stage: int | None, number: int | None, top_k: int) -> str:
        """The page that `vitreous explain` writes, for this picture."""
        explanation = explain_image(
            self.model,
            item.picture,
            preprocess=self.trained.preprocess,
            classes=self.trained.classes,
            name=item.name,
            true=item.label,
            target=number,
            plan=self.chosen.applied(Plan(stage=stage)),
        )
        return replace(explanation, facts={"model": self.trained.name}).html(top_k=top_k)


def takes_stage(method: Method) -> bool:
    return any(field.name == "stage" and getattr(method, "stage", 0) is None for field in fields(method))


def added(values: Tensor, label: Tensor) -> Tensor:
    """Importance of members added up for each group: first-order effects, and shares, of a set are those sums."""
    values = values.cpu()
    return values.new_zeros(int(label.max()) + 1).index_add(0, label, values)


def numbers(values: Tensor) -> list[float]:
    if not values.isfinite().all():
        raise InputError(
            "the importance of a cluster is not a number; the weights or the picture hold NaN or huge values"
        )
    return values.tolist()


def reduced(maps: Tensor) -> Tensor:
    """Maps (M, H, W) averaged down until no side is longer than `LARGEST_MAP`."""
    rows, columns = maps.shape[1:]
    factor = max(1.0, max(rows, columns) / LARGEST_MAP)
    size = max(1, round(rows / factor)), max(1, round(columns / factor))
    return maps if factor == 1 else F.adaptive_avg_pool2d(maps, size)


def packed(maps: Tensor) -> Answer:
    """Maps with values from 0 to 1, (M, H, W)."""
    if not maps.isfinite().all():
        raise InputError("a map is not finite; the weights or the picture hold NaN or huge values")
    content = (maps * 255).round().to(torch.uint8).contiguous().numpy().tobytes()
    return {"rows": maps.shape[1], "columns": maps.shape[2], "values": base64.b64encode(content).decode()}
