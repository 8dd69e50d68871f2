"""Published top-1 on ImageNet-1k at 224x224 pixels, trained on ImageNet-1k alone and without a teacher.

Ours are those that the papers print (`vitreous info`). Those of timm's models are the papers' too, of the variant whose
architecture timm has under that name; weights of timm with another recipe may do better or worse.
"""

from typing import NamedTuple

from timm import get_pretrained_cfg

from vitreous.registry import ENTRIES, list_models

PUBLISHED_SIZE = 224
DATA = "ImageNet-1k"
ALIKE = 2.0  # times as many multiply-adds, at most, or as few


class Peer(NamedTuple):
    top1: float
    gmacs: float  # of one image, as the paper prints them, rounded
    source: str


PEERS = {
    "mobilenetv2_100": Peer(72.0, 0.3, "arXiv 1801.04381"),
    "mobilenetv3_large_100": Peer(75.2, 0.2, "arXiv 1905.02244"),
    "efficientnet_b0": Peer(77.1, 0.4, "arXiv 1905.11946"),
    "resnet50": Peer(80.4, 4.1, "arXiv 2110.00476, A1"),
    "regnety_040": Peer(79.4, 4.0, "arXiv 2003.13678"),
    "deit_tiny_patch16_224": Peer(72.2, 1.3, "arXiv 2012.12877"),
    "deit_small_patch16_224": Peer(79.8, 4.6, "arXiv 2012.12877"),
    "swin_tiny_patch4_window7_224": Peer(81.3, 4.5, "arXiv 2103.14030"),
    "swin_small_patch4_window7_224": Peer(83.0, 8.7, "arXiv 2103.14030"),
    "twins_pcpvt_small": Peer(81.2, 3.8, "arXiv 2104.13840"),
    "twins_svt_small": Peer(81.7, 2.9, "arXiv 2104.13840"),
    "pvt_v2_b0": Peer(70.5, 0.6, "arXiv 2106.13797"),
    "pvt_v2_b1": Peer(78.7, 2.1, "arXiv 2106.13797"),
    "pvt_v2_b2": Peer(82.0, 4.0, "arXiv 2106.13797"),
    "poolformer_s12": Peer(77.2, 1.8, "arXiv 2111.11418"),
    "poolformer_s24": Peer(80.3, 3.4, "arXiv 2111.11418"),
    "convnext_tiny": Peer(82.1, 4.5, "arXiv 2201.03545"),
    "convnext_small": Peer(83.1, 8.7, "arXiv 2201.03545"),
    "focalnet_tiny_lrf": Peer(82.3, 4.5, "arXiv 2203.11926"),
    "davit_tiny": Peer(82.8, 4.5, "arXiv 2204.03645"),
    "tiny_vit_5m_224": Peer(79.1, 1.3, "arXiv 2207.10666"),
    "tiny_vit_11m_224": Peer(81.5, 2.0, "arXiv 2207.10666"),
    "tiny_vit_21m_224": Peer(83.1, 4.3, "arXiv 2207.10666"),
}


class PublishedAccuracy(NamedTuple):
    top1: float
    source: str
    ours: bool


def published_accuracy(name: str) -> PublishedAccuracy | None:
    """What is published about a model at 224x224; None for anything else."""
    bare = name.partition(".")[0]
    if bare in PEERS:
        return PublishedAccuracy(PEERS[bare].top1, PEERS[bare].source, ours=False)
    entry = ENTRIES.get(bare)
    if entry is None or entry.published is None or entry.published.top1 is None or entry.published.data != DATA:
        return None
    config = get_pretrained_cfg(bare)
    if config is None or tuple(config.input_size[1:]) != (PUBLISHED_SIZE, PUBLISHED_SIZE):
        return None
    return PublishedAccuracy(entry.published.top1, entry.paper, ours=True)


def of_the_same_cost(gmacs: list[float], ours: dict[str, float]) -> list[str]:
    """Published models, ours and peers, that take between half and twice the multiply-adds of one of the given.

    `ours` are the billions of multiply-adds of our models, by name.
    """
    known = {name: ours[name] for name in list_models() if name in ours and published_accuracy(name) is not None}
    known |= {name: peer.gmacs for name, peer in PEERS.items()}
    return [name for name, own in known.items() if any(given / ALIKE <= own <= given * ALIKE for given in gmacs)]
