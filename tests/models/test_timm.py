"""What timm expects of a model, for a small member of every family: its options, its features, and its helpers."""

import copy
from pathlib import Path

import pytest
import timm
import torch
from timm.layers import get_graph_node_names
from timm.models import create_feature_extractor, group_parameters
from timm.optim import create_optimizer_v2
from torch import nn

from tests.support.families import FAMILIES, small
from vitreous.errors import InputError

IMAGES = torch.randn(2, 3, 64, 32, generator=torch.Generator().manual_seed(1))
EXEMPT = ("position", "token", "temperature")


def lists_equal(ours: list[torch.Tensor], expected: list[torch.Tensor]) -> None:
    for one, other in zip(ours, expected, strict=True):
        torch.testing.assert_close(one, other)


@pytest.mark.parametrize("name", FAMILIES)
class TestTimmContract:
    def test_classes_and_channels(self, name: str) -> None:
        model = small(name, 1, num_classes=7, in_chans=4)
        assert model(torch.randn(2, 4, 64, 32)).shape == (2, 7)
        assert small(name, 1, num_classes=0)(IMAGES).shape == (2, model.num_features)

    def test_what_others_read_about_it(self, name: str) -> None:
        model = small(name, 1)
        config, state = model.pretrained_cfg, model.state_dict()
        assert model.default_cfg is config
        assert f"{config['classifier']}.weight" in state
        assert state[f"{config['first_conv']}.weight"].shape[1] == 3
        assert config["architecture"] == name
        with torch.no_grad():
            final = model.eval().forward_features(torch.randn(1, *config["input_size"]))
        assert config["pool_size"] == (None if name.startswith("xcit") or name.endswith("readout") else final.shape[2:])
        data = timm.data.resolve_model_data_config(model)
        assert data["input_size"] == ((3, 32, 32) if "cifar" in name else (3, 224, 224))
        timm.data.create_transform(**data)

    def test_settings_for_scripting_are_accepted(self, name: str) -> None:
        assert small(name, 1, scriptable=True, exportable=True, no_jit=True)(IMAGES).shape == (2, 5)

    @pytest.mark.parametrize(
        ("out_indices", "taken"), [((1, 3), [1, 3]), ((-1, -3), [3, 1]), (2, [2, 3]), ((0,), [0]), (None, [0, 1, 2, 3])]
    )
    def test_features_only(self, name: str, out_indices, taken: list[int]) -> None:
        torch.manual_seed(0)
        model = small(name, 1, features_only=True, out_indices=out_indices).eval()
        torch.manual_seed(0)
        whole = small(name, 1, features_only=True).eval()
        with torch.no_grad():
            maps, every = model(IMAGES), whole(IMAGES)
        lists_equal(maps, [every[i] for i in taken])
        assert model.feature_info.channels() == [m.shape[1] for m in maps]
        assert model.feature_info.reduction() == [64 // m.shape[2] for m in maps]
        assert list(model.feature_info.out_indices) == taken
        assert len(model.model.stages) == len(model.model.channels) == len(model.model.strides) == max(taken) + 1

    def test_features_that_cannot_be_had(self, name: str) -> None:
        with pytest.raises(InputError, match=r"maps \(0, 4\) asked for; this model has 4"):
            small(name, 1, features_only=True, out_indices=(0, 4))
        with pytest.raises(InputError, match="feature_cls='hook' given"):
            small(name, 1, features_only=True, feature_cls="hook")

    def test_features_with_weights(self, name: str, tmp_path: Path) -> None:
        whole = small(name, 1).eval()
        torch.save(whole.state_dict(), tmp_path / "weights.pth")
        weights = dict(pretrained=True, pretrained_cfg_overlay={"file": str(tmp_path / "weights.pth")})
        column = {"dense": False} if name.startswith("xcit") else {}  # its pyramid has layers of its own
        model = small(name, 1, features_only=True, out_indices=(0, 2), **weights, **column).eval()
        with torch.no_grad():
            lists_equal(model(IMAGES), whole.features(IMAGES).maps[0:3:2])

    def test_intermediates(self, name: str) -> None:
        model = small(name, 1).eval()
        with torch.no_grad():
            final, maps = model.forward_intermediates(IMAGES)
            torch.testing.assert_close(final, model.forward_features(IMAGES))
            torch.testing.assert_close(model.forward_head(final), model(IMAGES))
            lists_equal(maps, model.features(IMAGES).maps)
            normed = model.forward_intermediates(IMAGES, [0, -1], norm=True, intermediates_only=True)
            lists_equal(normed, [maps[0], maps[3]])
            last = model.forward_intermediates(IMAGES, 1, output_fmt="NHWC", intermediates_only=True)
            lists_equal([m.permute(0, 3, 1, 2) for m in last], maps[3:])
        with pytest.raises(InputError, match="NCHW"):
            model.forward_intermediates(IMAGES, output_fmt="NLC")
        with pytest.raises(InputError, match="this model has 4"):
            model.forward_intermediates(IMAGES, 5)

    def test_stopping_early_runs_no_further(self, name: str) -> None:
        model = small(name, 1).eval()
        with torch.no_grad():
            maps = model.features(IMAGES).maps
            for stage in model.stages[2:]:
                stage.forward = None  # calling it would raise
            final, chosen = model.forward_intermediates(IMAGES, [1, 0], stop_early=True)
        lists_equal(chosen, [maps[1], maps[0]])
        torch.testing.assert_close(final, maps[1])

    def test_pruned_models_are_the_first_part(self, name: str) -> None:
        model = small(name, 1).eval()
        with torch.no_grad():
            maps = model.features(IMAGES).maps
            assert model.prune_intermediate_layers([1]) == [1]
            lists_equal(model.maps(IMAGES), maps[:2])
            torch.testing.assert_close(model(IMAGES), maps[1])
        assert isinstance(model.get_classifier(), nn.Identity)

    def test_classifier_can_be_replaced(self, name: str) -> None:
        model = small(name, 1).double()
        images = IMAGES.double()
        model.reset_classifier(7)
        assert model(images).shape == (2, 7)
        assert model.get_classifier().out_features == model.num_classes == 7
        model.reset_classifier(0)
        assert model(images).shape == (2, model.num_features)

    def test_pooling(self, name: str) -> None:
        outputs = {}
        for pooling in small(name, 1).pooling:
            torch.manual_seed(0)
            model = small(name, 1, num_classes=0, global_pool=pooling).eval()
            with torch.no_grad():
                outputs[pooling] = model(IMAGES)
                unpooled = model.forward_features(IMAGES)
        torch.testing.assert_close(outputs.pop(""), unpooled)
        tokens = unpooled[:, 1:] if "token" in outputs else unpooled.flatten(2).transpose(1, 2)
        if "clusters" in outputs:  # weighted tokens, which the classifier adds
            torch.testing.assert_close(outputs.pop("clusters"), unpooled.sum(1))
        else:
            torch.testing.assert_close(outputs.pop("avg"), tokens.mean(1))
        for output in outputs.values():
            torch.testing.assert_close(output, unpooled[:, 0])
        with pytest.raises(InputError, match=r"accepted: .*'(avg|clusters)'"):
            model.reset_classifier(3, "max")
        for arguments in ((3, ""), (3,)):  # the last of these models does not pool
            with pytest.raises(InputError, match="takes one vector"):
                model.reset_classifier(*arguments)

    def test_stochastic_depth_is_for_training_alone(self, name: str) -> None:
        plain, dropping = small(name, drop_path_rate=0.0), small(name, drop_path_rate=0.9)
        dropping.load_state_dict(plain.state_dict())
        with torch.no_grad():
            torch.testing.assert_close(plain.eval()(IMAGES), dropping.eval()(IMAGES))
            trained = plain.train()(IMAGES)
            torch.testing.assert_close(plain(IMAGES), trained)  # nothing else in it is random
            assert (dropping.train()(IMAGES) - trained).abs().max() > 1e-3

    @pytest.mark.parametrize("part", ["blocks", "mlp"])
    def test_gradient_checkpointing_changes_nothing(self, name: str, part: str) -> None:
        """Not even the statistics of batch norms, which see every image twice, nor what stochastic depth drops."""
        plain = small(name, drop_path_rate=0.3).train()
        frugal = copy.deepcopy(plain)
        frugal.set_grad_checkpointing(part=part)
        for model in (plain, frugal):
            torch.manual_seed(0)
            model(IMAGES).square().sum().backward()
        for key, parameter in frugal.named_parameters():
            torch.testing.assert_close(parameter.grad, plain.get_parameter(key).grad, msg=key)
        before, after = small(name).state_dict(), plain.state_dict()
        for key, buffer in frugal.named_buffers():
            assert torch.equal(buffer, plain.get_buffer(key)), key
            if key.endswith("running_mean"):
                assert not torch.equal(after[key], before[key]), "training should have moved it"

    def test_layer_groups_cover_every_parameter(self, name: str) -> None:
        model = small(name)
        for coarse in (False, True):
            groups = group_parameters(model, model.group_matcher(coarse))
            assert {key for keys in groups.values() for key in keys} == {key for key, _ in model.named_parameters()}
            assert len(groups) > 4

    def test_optimiser_groups(self, name: str) -> None:
        """Learning rates rise from the image to the classifier; vectors, tokens and the like are not decayed."""
        model = small(name)
        optimiser = create_optimizer_v2(model, "adamw", lr=1e-3, weight_decay=0.05, layer_decay=0.7)
        groups = {id(p): group for group in optimiser.param_groups for p in group["params"]}
        blocks = [f"stages.{i}.blocks.{j}." for i, stage in enumerate(model.stages) for j in range(len(stage.blocks))]
        later = [f"class_blocks.{i}." for i in range(len(getattr(model, "class_blocks", ())))]
        scales = []
        for part in ("stem.", *blocks, *later, "head."):
            of_part = {groups[id(p)]["lr_scale"] for key, p in model.named_parameters() if key.startswith(part)}
            assert len(of_part) == 1, part
            scales += of_part
        assert scales == pytest.approx([0.7 ** (len(scales) - 1 - i) for i in range(len(scales))])
        for key, parameter in model.named_parameters():
            decayed = parameter.ndim > 1 and not key.endswith(EXEMPT)
            assert groups[id(parameter)]["weight_decay"] == (0.05 if decayed else 0.0), key

    def test_checkpoint_path(self, name: str, tmp_path: Path) -> None:
        model = small(name, 1).eval()
        torch.save({"state_dict_ema": model.state_dict(), "epoch": 3}, tmp_path / "checkpoint.pth")
        loaded = small(name, 1, checkpoint_path=str(tmp_path / "checkpoint.pth")).eval()
        with torch.no_grad():
            torch.testing.assert_close(loaded(IMAGES), model(IMAGES))


@pytest.mark.filterwarnings("ignore:The nodes obtained by tracing")  # folded norms make training another graph
@pytest.mark.parametrize("gradients", [True, False])
@pytest.mark.parametrize("name", FAMILIES)
def test_symbolic_tracing(name: str, gradients: bool) -> None:
    """timm's feature extractors trace with torch.fx, which cannot follow a branch on a size.

    So a stage is one node of the graph. torch.jit is not supported by any family; torch.export takes its place, see
    test_graphs.py.
    """
    model = small(name, 1).eval()
    with torch.set_grad_enabled(gradients):
        _, nodes = get_graph_node_names(model)
        assert {"stages.0", "stages.3", "head"} <= set(nodes)
        extractor = create_feature_extractor(model, {"stages.1": "inner", "head": "logits"})
    for size in ((64, 64), (70, 99)):
        images = torch.randn(2, 3, *size)
        with torch.no_grad():
            result = extractor(images)
            torch.testing.assert_close(result["logits"], model(images))
        assert model.channels[1] in result["inner"].shape
