"""The smallest classifier of each of timm's families, with random weights."""

import timm
import torch
from torch import Tensor, nn

# family -> a small model, and the side of the images. Left out for their size, all plain vision transformers:
# deepseek_vit, gemma4_vit, qwen3_vit.
QUICK = {
    "byobnet": ("test_byobnet", 96),
    "convnext": ("test_convnext", 96),
    "efficientnet": ("test_efficientnet", 96),
    "mambaout": ("test_mambaout", 96),
    "resnet": ("test_resnet", 96),
    "vision_transformer": ("test_vit", 160),
    "nfnet": ("test_nfnet", 96),
    "mobilenetv3": ("lcnet_035", 96),
    "levit": ("levit_128s", 224),
    "mobilevit": ("mobilevit_xxs", 128),
    "pvt_v2": ("pvt_v2_b0", 96),
    "pit": ("pit_ti_224", 224),
}
SLOW = {
    "beit": ("beit_base_patch16_224", 224),
    "byoanet": ("halonet_h1", 256),
    "cait": ("cait_xxs24_224", 224),
    "coat": ("coat_tiny", 224),
    "convit": ("convit_tiny", 224),
    "convmixer": ("convmixer_768_32", 160),
    "cpubone": ("cpubone_nano", 160),
    "crossvit": ("crossvit_tiny_240", 240),
    "csatv2": ("csatv2", 512),
    "cspnet": ("cs3darknet_focus_s", 160),
    "davit": ("davit_tiny", 160),
    "deit": ("deit_tiny_patch16_224", 224),
    "densenet": ("densenet121", 160),
    "dla": ("dla46x_c", 160),
    "dpn": ("dpn48b", 160),
    "edgenext": ("edgenext_xx_small", 160),
    "efficientformer": ("efficientformer_l1", 224),
    "efficientformer_v2": ("efficientformerv2_s0", 224),
    "efficientvim": ("efficientvim_m1", 160),
    "efficientvit_mit": ("efficientvit_b0", 160),
    "efficientvit_msra": ("efficientvit_m0", 224),
    "eva": ("eva02_tiny_patch14_224", 224),
    "fasternet": ("fasternet_t0", 160),
    "fastvit": ("fastvit_t8", 160),
    "focalnet": ("focalnet_tiny_srf", 160),
    "gcvit": ("gcvit_xxtiny", 224),
    "ghostnet": ("ghostnet_050", 160),
    "hardcorenas": ("hardcorenas_b", 160),
    "hgnet": ("hgnetv2_b0", 160),
    "hiera": ("hiera_tiny_224", 224),
    "hieradet_sam2": ("hieradet_small", 256),
    "hrnet": ("hrnet_w18_small", 160),
    "iformer": ("iformer_t", 160),
    "inception_next": ("inception_next_atto", 160),
    "inception_resnet_v2": ("ens_adv_inception_resnet_v2", 299),
    "inception_v3": ("adv_inception_v3", 299),
    "inception_v4": ("inception_v4", 299),
    "lcnetv2": ("lcnetv2_small", 160),
    "lowformer": ("lowformer_b0", 160),
    "maxxvit": ("maxvit_pico_rw_256", 256),
    "metaformer": ("poolformerv2_s12", 160),
    "mlp_mixer": ("gmlp_ti16_224", 224),
    "mobilenetv5": ("mobilenetv5_base", 256),
    "mvitv2": ("mvitv2_tiny", 224),
    "naflexvit": ("naflexvit_base_patch16_parfac_gap", 384),
    "nasnet": ("nasnetalarge", 331),
    "nest": ("nest_tiny_jx", 224),
    "nextvit": ("nextvit_small", 160),
    "pnasnet": ("pnasnet5large", 331),
    "rdnet": ("rdnet_tiny", 160),
    "regnet": ("regnetx_002", 160),
    "repghost": ("repghostnet_050", 160),
    "repvit": ("repvit_m1", 160),
    "res2net": ("res2next50", 160),
    "resnest": ("resnest14d", 160),
    "resnetv2": ("resnetv2_18", 160),
    "rexnet": ("rexnet_100", 160),
    "selecsls": ("selecsls42", 160),
    "senet": ("legacy_seresnet18", 160),
    "sequencer": ("sequencer2d_s", 224),
    "shvit": ("shvit_s1", 160),
    "sknet": ("skresnet18", 160),
    "starnet": ("starnet_s050", 160),
    "swiftformer": ("swiftformer_xs", 224),
    "swin_transformer": ("swin_tiny_patch4_window7_224", 224),
    "swin_transformer_v2": ("swinv2_tiny_window16_256", 256),
    "swin_transformer_v2_cr": ("swinv2_cr_tiny_224", 224),
    "tiny_vit": ("tiny_vit_5m_224", 160),
    "tnt": ("tnt_s_legacy_patch16_224", 224),
    "tresnet": ("tresnet_m", 160),
    "twins": ("twins_svt_small", 224),
    "vgg": ("vgg11", 224),
    "visformer": ("visformer_tiny", 224),
    "vision_transformer_hybrid": ("vit_tiny_r_s16_p8_224", 224),
    "vision_transformer_relpos": ("vit_srelpos_small_patch16_224", 224),
    "vision_transformer_sam": ("samvit_base_patch16_224", 224),
    "vitamin": ("vitamin_small_224", 224),
    "volo": ("volo_d1_224", 224),
    "vovnet": ("ese_vovnet19b_slim_dw", 160),
    "xception": ("legacy_xception", 299),
    "xception_aligned": ("xception41p", 299),
    "xcit": ("xcit_nano_12_p8_224", 224),
}


def awake_classifier(name: str, **arguments: object) -> nn.Module:
    """None of its tensors is all zero, as many classifiers and residual branches begin."""
    torch.manual_seed(0)
    model = timm.create_model(name, num_classes=7, **arguments).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            if not parameter.any():
                parameter.normal_(std=0.2)
    return model


def noise(count: int, height: int, width: int | None = None) -> Tensor:
    return torch.randn(count, 3, height, width or height, generator=torch.Generator().manual_seed(1))
