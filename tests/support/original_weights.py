"""State dicts under the names of the papers' own releases, made from ours."""

import re

import torch

from vitreous.models.xcit import XCiT

PACA_NAMES = (  # ours -> those of the release, for the layers of the model above
    (r"^stem\.conv1\.", "patch_embed.proj.0."),
    (r"^stem\.conv2\.", "patch_embed.proj.1."),
    (r"^stem\.", "patch_embed."),
    (r"^stages\.(\d)\.downsample\.conv\.", r"transition\1.proj."),
    (r"^stages\.(\d)\.downsample\.", r"transition\1."),
    (r"\.clustering\.depthwise\.", ".attn.clustering.clustering.0."),
    (r"\.clustering\.pointwise\.", ".attn.clustering.clustering.2."),
    (r"\.clustering\.logits\.", ".attn.clustering.clustering.4."),
    (r"\.attention\.", ".attn."),
    (r"\.mlp\.depthwise\.", ".mlp.dwconv.dwconv."),
    (r"(blocks\.\d+\.norm\d)\.", r"\1_before."),
)


def paca_original(state: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    renamed = {}
    for key, value in state.items():
        for pattern, theirs in PACA_NAMES:
            key = re.sub(pattern, theirs, key)
        key = re.sub(r"^stages\.(\d)\.blocks\.", lambda match: f"stage{int(match[1]) + 1}.", key)
        renamed[re.sub(r"^stages\.(\d)\.norm\.", lambda match: f"norm{int(match[1]) + 1}.", key)] = value
    return renamed


def xcit_original(model: XCiT) -> dict[str, torch.Tensor]:
    """The release's names and shapes: blocks numbered through, one matrix for a class block's q, k and v."""
    renamed = {}
    for key, value in model.state_dict().items():
        key = re.sub(r"^stages\.(\d)\.blocks\.(\d+)", lambda m: f"blocks.{model.starts[int(m[1])] + int(m[2])}", key)
        key = re.sub(r"^stem\.convs\.(\d)\.conv", lambda m: f"patch_embed.proj.{2 * int(m[1])}.0", key)
        key = re.sub(r"^stem\.convs\.(\d)\.norm", lambda m: f"patch_embed.proj.{2 * int(m[1])}.1", key)
        key = key.replace("class_token", "cls_token").replace("class_blocks", "cls_attn_blocks")
        key = key.replace("local.norm", "local_mp.bn").replace("local", "local_mp").replace("mp_mp", "mp")
        key = key.replace("position.projection", "pos_embeder.token_projection").replace("attention", "attn")
        renamed[key] = value[..., None, None] if key == "pos_embeder.token_projection.weight" else value
    for prefix in (f"cls_attn_blocks.{i}.attn" for i in (0, 1)):
        for kind in ("weight", "bias"):
            renamed[f"{prefix}.qkv.{kind}"] = torch.cat([renamed.pop(f"{prefix}.{part}.{kind}") for part in "qkv"])
    return renamed
