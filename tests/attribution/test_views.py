"""Every map a family shows, derived again from the weights of one block in plain torch; recording changes nothing."""

import pytest
import torch
import torch.nn.functional as F

from tests.support.explained_models import FAMILIES, entering, family, pictures
from vitreous.attribution.views import MAP_KINDS, ViewMethod, decided, received, view_stacks, views
from vitreous.errors import InputError
from vitreous.layers.tap import record

IMAGES = pictures()
EXACT = IMAGES.double()  # derivations are compared in double precision: two ways to the same number differ in rounding


def heads(x, count):
    return x.unflatten(-1, (count, -1)).transpose(-3, -2)  # (..., N, C) -> (..., h, N, d)


def weights(q, k):
    return (q @ k.transpose(-2, -1) / q.shape[-1] ** 0.5).softmax(-1)


def only(name, kind):
    """The model, and the raw tensor of the last tap of a kind."""
    model = family(name).double()
    tap = views(model, kind)[-1].tap
    with torch.no_grad(), record(model, tap) as seen:
        model(EXACT)
    return model, tap, seen[tap]


@pytest.mark.parametrize("name", FAMILIES)
def test_looking_does_not_change_the_output(name):
    model = family(name)
    with torch.no_grad():
        plain = model(IMAGES)
        with record(model):
            recorded = model(IMAGES)
    torch.testing.assert_close(recorded, plain, atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("name", FAMILIES)
def test_stacks_are_pictures_and_equal_for_single_images(name):
    model = family(name, scale=1)  # four times larger weights make features, and their rounding, huge in some families
    found = views(model)
    stacks, alone = view_stacks(model, IMAGES, found), view_stacks(model, IMAGES[1:], found)
    assert {view.tap for view in found} == set(stacks)
    for view in found:
        stack = stacks[view.tap]
        assert stack.ndim == 4, view
        rounding = 1e-5 * max(1.0, stack.abs().max().item())  # small values are sums of large ones
        torch.testing.assert_close(stack[1:], alone[view.tap], atol=rounding, rtol=1e-5, msg=view.tap)
        if view.kind.summary is not None:
            assert view.kind.summary(stack).shape == (2, *stack.shape[2:]), view


def test_paca_clusters_and_attention():
    model, tap, z = only("paca_tiny", "clusters")
    assert tap == "stages.2.clusters"
    (x, *_rest) = entering(model, "stages.2.blocks.0", EXACT)
    block = model.stages[2].blocks[0]
    with torch.no_grad():
        y = F.layer_norm(x, x.shape[-1:], block.norm1.weight, block.norm1.bias, 1e-6)
        conv = block.clustering
        u = F.conv2d(y.permute(0, 3, 1, 2), conv.depthwise.weight, conv.depthwise.bias, padding=3, groups=24)
        u = F.gelu(F.gelu(u).permute(0, 2, 3, 1) @ conv.pointwise.weight.T + conv.pointwise.bias)
        again = (u @ conv.logits.weight.T).flatten(1, 2).softmax(1).transpose(1, 2)  # (B, M, N)
        torch.testing.assert_close(z.flatten(2), again)
        attention, patches = block.attention, y.flatten(1, 2)
        tokens = attention.cluster_norm(again @ patches)
        a = weights(heads(attention.q(patches), 3), heads(attention.k(tokens), 3))  # (B, h, N, M)
        stack = view_stacks(model, EXACT, [views(model, "patch_to_cluster")[2]])["stages.2.blocks.0.attention.map"]
        torch.testing.assert_close(stack.flatten(2), a.mean(1).transpose(1, 2).float())
    torch.testing.assert_close(z.sum((2, 3)), torch.ones(2, 6).double())
    torch.testing.assert_close(stack.sum(1), torch.ones(2, 4, 4))


def test_plain_attention_of_paca():
    model, tap, seen = only("paca_tiny", "patch_to_patch")
    assert tap == "stages.3.blocks.0.attention.map"
    (x, _none) = entering(model, "stages.3.blocks.0.attention", EXACT)
    attention, patches = model.stages[3].blocks[0].attention, x.flatten(1, 2)
    with torch.no_grad():
        a = weights(heads(attention.q(patches), 4), heads(attention.k(patches), 4))
    torch.testing.assert_close(seen.flatten(3).transpose(2, 3), a)
    looked_at = received(seen.mean(1))
    torch.testing.assert_close(looked_at.flatten(1), a.mean((1, 2)))


def test_xcit_class_attention_per_head():
    model, tap, seen = only("xcit_small_12_p16", "class_attention")
    (tokens, _grid) = entering(model, tap.removesuffix(".map"), EXACT)
    attention = model.class_blocks[1].attention
    with torch.no_grad():
        a = weights(heads(attention.q(tokens[:, :1]), 4), heads(attention.k(tokens), 4))[:, :, 0, 1:]
    torch.testing.assert_close(seen.flatten(2), a)


def test_xcit_channel_attention():
    model, tap, seen = only("xcit_small_12_p16", "channel_attention")
    (x,) = entering(model, tap.removesuffix(".channel_attention"), EXACT)
    attention = model.get_submodule(tap.removesuffix(".channel_attention"))
    with torch.no_grad():
        q, k, _v = attention.qkv(x.flatten(1, 2)).unflatten(-1, (3, 4, 8)).permute(2, 0, 3, 4, 1)  # (B, h, d, N)
        q, k = F.normalize(q, dim=-1), F.normalize(k, dim=-1)
        a = (q @ k.transpose(-2, -1) * attention.temperature).softmax(-1)
    torch.testing.assert_close(seen, a)
    with pytest.raises(InputError, match="no picture of the image"):
        ViewMethod("channel_attention")(model, EXACT)


def test_mat_abstract_token_mixing_and_fusion():
    model = family("mat_1").double()
    path = "stages.2.blocks.0.attention"
    (x, _windows) = entering(model, path, EXACT)
    layer = model.get_submodule(path)
    with torch.no_grad(), record(model, f"{path}.*") as seen:
        model(EXACT)
    rows = []
    with torch.no_grad():
        for i in range(0, 4, 2):
            for j in range(0, 4, 2):
                window = torch.cat([layer.token.expand(2, 1, -1), x[:, i : i + 2, j : j + 2].flatten(1, 2)], 1)
                q, k, v = (heads(part, 3) for part in layer.qkv(window).chunk(3, -1))
                a = weights(q, k)
                shown = seen[f"{path}.abstract_attn"][:, :, i : i + 2, j : j + 2].flatten(2)
                torch.testing.assert_close(shown, a[:, :, 0, 1:])
                rows.append((a @ v)[:, :, 0].flatten(1))
        q, k, v = (heads(part, 3) for part in layer.mix_qkv(torch.stack(rows, 1)).chunk(3, -1))
        mix = weights(q, k)  # (B, h, n queries, n keys)
        torch.testing.assert_close(seen[f"{path}.mix_attn"].flatten(3), mix.transpose(2, 3))
        k, v = layer.abs_kv(layer.mix_proj((mix @ v).transpose(1, 2).flatten(2))).chunk(2, -1)
        q = layer.qkv(x.flatten(1, 2)).chunk(3, -1)[0]
        fusion = weights(heads(q, 3), heads(k, 3))
        torch.testing.assert_close(seen[f"{path}.fusion_attn"].flatten(3), fusion.transpose(2, 3))
        read = (fusion @ heads(v, 3)).transpose(1, 2).flatten(2).view_as(x)
        gain = read.norm(dim=-1) / seen[f"{path}.before_fusion"].norm(dim=1)
        torch.testing.assert_close(seen[f"{path}.fusion_gain"][:, 0], gain)


def test_partialformer_score_foreground_and_background():
    model = family("partialformer_b0", fractions=(0.1, 0.1, 0.25, 0.5)).double()
    path = "stages.2.blocks.0.attention"
    (z, score) = entering(model, path, EXACT)
    layer = model.get_submodule(path)
    (before,) = entering(model, "stages.2.blocks.0.norm1", EXACT)
    with torch.no_grad(), record(model, f"{path}.*") as seen:
        model(EXACT)
    with torch.no_grad():
        torch.testing.assert_close(seen[f"{path}.score"], before.mean(-1))
        for b in range(2):
            chosen = score[b].flatten().argsort(descending=True)[:4]
            mask = torch.zeros(16, dtype=torch.bool)
            mask[chosen] = True
            assert torch.equal(seen[f"{path}.foreground"][b].flatten(), mask)
            tokens = torch.cat([layer.token[None], z[b].flatten(0, 1)])
            q, k, v = (heads(part, 3) for part in layer.qkv(tokens).chunk(3, -1))  # (h, 17, d)
            front = torch.cat([torch.tensor([0]), chosen + 1])
            scores = q[:, front] @ k[:, front].transpose(1, 2) / 8**0.5
            wide = (
                torch.einsum("eh,hij->eij", layer.mixer.expand.weight, scores) + layer.mixer.expand.bias[:, None, None]
            )
            mixed = torch.einsum("he,eij->hij", layer.mixer.reduce.weight, wide.softmax(-1))
            mixed = mixed + layer.mixer.reduce.bias[:, None, None]
            reads = torch.zeros(3, 16).double()
            reads[:, chosen] = mixed[:, 0, 1:]
            torch.testing.assert_close(seen[f"{path}.abstract"][b].flatten(1), reads)
            query = heads(layer.proj((mixed @ v[:, front]).transpose(0, 1).flatten(1))[:1], 3)
            back = (query @ k[:, 1:].transpose(1, 2) / 8**0.5)[:, 0].masked_fill(mask, -torch.inf).softmax(-1)
            torch.testing.assert_close(seen[f"{path}.background"][b].flatten(1), back)


def test_emsnet_gate():
    model, tap, seen = only("emsnet_xxtiny", "gate")
    static = model.get_submodule(tap.removesuffix(".gate"))
    (x,) = entering(model, tap.removesuffix(".gate"), EXACT)

    def branch(layer, y, period):
        y = layer.embed(F.max_pool2d(y, period, period, ceil_mode=True).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        y = layer.down(layer.across(y))
        kernel = layer.propagate.weight.permute(2, 0, 1)[:, None]
        y = F.conv_transpose2d(y, kernel, layer.propagate.bias, period, groups=y.shape[1])
        return y[..., : x.shape[1], : x.shape[2]]

    with torch.no_grad():
        white = static.whiten(x)
        y = static.depthwise((white - white.mean(-1, keepdim=True)).permute(0, 3, 1, 2))
        first, middle, last = y.split([static.at2, static.at1, static.at4], 1)
        joined = torch.cat([branch(static.branch2, first, 2), middle, branch(static.branch4, last, 4)], 1)
        gate = static.fuse(joined.permute(0, 2, 3, 1)).sigmoid().permute(0, 3, 1, 2)
    torch.testing.assert_close(seen, gate)


def test_emsnet_local_and_global_attention():
    model = family("emsnet_xxtiny").double()
    path = "stages.0.blocks.0.mixer.dynamic"
    dynamic = model.get_submodule(path)
    (x,) = entering(model, path, EXACT)
    with torch.no_grad(), record(model, f"{path}.*") as seen:
        model(EXACT)
    near, far = dynamic.local_attention, dynamic.global_attention
    with torch.no_grad():
        a, b = x.permute(0, 3, 1, 2).chunk(2, 1)
        y = near.embed(F.avg_pool2d(a, 4, 4).permute(0, 2, 3, 1)).permute(0, 3, 1, 2)
        raw = near.weights(near.summary(y).permute(0, 2, 3, 1)).unflatten(-1, (near.heads, 9, 9)).softmax(-1)
        centre = raw[..., 4, :].permute(0, 3, 4, 1, 2)  # (B, h, 9, H', W')
        torch.testing.assert_close(seen[f"{path}.local_attention.centre"], centre)
        cells = F.avg_pool2d(b, 6, 6, ceil_mode=True).permute(0, 2, 3, 1)
        q, k, _v = (heads(part, far.heads) for part in far.qkv(far.embed(cells).flatten(1, 2)).chunk(3, -1))
        again = weights(q, k).transpose(2, 3)
        torch.testing.assert_close(seen[f"{path}.global_attention.map"].flatten(3), again)


def test_decided_is_one_for_a_choice_and_zero_for_none():
    stack = torch.zeros(1, 4, 1, 2)
    stack[0, 2, 0, 0], stack[0, :, 0, 1] = 1, 0.25
    torch.testing.assert_close(decided(stack), torch.tensor([[[1.0, 0.0]]]))


def test_a_kind_the_model_does_not_have_is_explained():
    model = family()
    with pytest.raises(InputError, match=r"PaCa has no class_attention; it has .*clusters"):
        ViewMethod("class_attention")(model, IMAGES)
    with pytest.raises(InputError, match="unknown kind of map 'clustres'"):
        views(model, "clustres")
    assert set(MAP_KINDS) >= {"clusters", "class_attention", "abstract_fusion", "background_query", "gate"}
