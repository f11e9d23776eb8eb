"""Vision towers built like the first ViTs: patches, equal encoder layers, a norm; their tensors as in transformers
5.24.0. Each function reads a tower's own config and returns names relative to the tower; ``placed`` puts them into the
model. Towers keep no cache between tokens."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.modules import Layers, conv, embedding, gated_mlp, linear, norm, parameter
from kvscope.model.spec import WeightGroup

Groups = list[WeightGroup]
QKVO = ("q_proj", "k_proj", "v_proj", "out_proj")


def placed(prefix: str, groups: Iterable[WeightGroup], part: str = "vision") -> Groups:
    """The same tensors inside the module ``prefix`` of a model."""
    return [replace(group, name=f"{prefix}.{group.name}", part=part) for group in groups]


def linears(prefix: str, names: Iterable[str], inputs: int, outputs: int, *, bias: bool, layers: Layers = ()) -> Groups:
    """Linear layers of one size."""
    return [group for name in names for group in linear(f"{prefix}{name}", inputs, outputs, bias=bias, layers=layers)]


def all_norms(names: Iterable[str], width: int, *, bias: bool, layers: Layers = ()) -> Groups:
    return [group for name in names for group in norm(name, width, bias=bias, layers=layers)]


def pair(config: ConfigReader, key: str) -> tuple[int, int]:
    """A size that is one number for both sides, or one for each."""
    if isinstance(config.lookup(key)[0], list | tuple):
        sides = config.numbers(key, smallest=1) or ()
        if len(sides) != 2:
            raise config.malformed(key, f"{len(sides)} numbers; 2 were expected")
        return sides[0], sides[1]
    side = config.number(key)
    return side, side


def num_patches(config: ConfigReader) -> int:
    """Whole patches of a square image."""
    return (config.number("image_size") // config.number("patch_size")) ** 2


def count(config: ConfigReader, key: str = "num_hidden_layers") -> Layers:
    """The numbers of a tower's layers."""
    return tuple(range(config.num_layers(key)))


def patch_conv(config: ConfigReader, name: str, width: int, *, bias: bool, channels: str = "num_channels") -> Groups:
    patch = config.number("patch_size")
    return conv(name, (width, config.number(channels), patch, patch), bias=bias)


def plain_encoder(config: ConfigReader, layer: str = "encoder.layers.{}") -> Groups:
    """SigLIP's and CLIP's layers: four square matrices and two of the feed-forward, all with biases, two norms."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config)
    if not layers:
        return []
    return [
        *linears(f"{layer}.self_attn.", QKVO, width, width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc2", inner, width, bias=True, layers=layers),
        *all_norms([f"{layer}.layer_norm1", f"{layer}.layer_norm2"], width, bias=True, layers=layers),
    ]


def pooling_head(config: ConfigReader) -> Groups:
    """Attention of one learnt query over all patches (SigLIP)."""
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    return [
        *parameter("head.probe", (1, 1, width)),
        *packed_attention("head.attention", width),
        *norm("head.layernorm", width, bias=True),
        *linear("head.mlp.fc1", width, inner, bias=True),
        *linear("head.mlp.fc2", inner, width, bias=True),
    ]


def packed_attention(prefix: str, width: int) -> Groups:
    """PyTorch's own attention module: queries, keys and values in one matrix."""
    return [
        *parameter(f"{prefix}.in_proj_weight", (3 * width, width)),
        *parameter(f"{prefix}.in_proj_bias", (3 * width,)),
        *linear(f"{prefix}.out_proj", width, width, bias=True),
    ]


def siglip_body(config: ConfigReader) -> Groups:
    """SigLIP without its pooling head; also Idefics 3's, SmolVLM's, PaddleOCR's and MiniCPM's towers."""
    width = config.number("hidden_size")
    return [
        *patch_conv(config, "embeddings.patch_embedding", width, bias=True),
        *embedding("embeddings.position_embedding", num_patches(config), width),
        *plain_encoder(config),
        *norm("post_layernorm", width, bias=True),
    ]


def siglip(config: ConfigReader) -> Groups:
    return [*siglip_body(config), *(pooling_head(config) if config.flag("vision_use_head") else [])]


def siglip2(config: ConfigReader) -> Groups:
    return [*siglip2_body(config), *(pooling_head(config) if config.flag("vision_use_head") else [])]


def siglip2_body(config: ConfigReader) -> Groups:
    """Patches come as rows, at most num_patches of them."""
    width, patch = config.number("hidden_size"), config.number("patch_size")
    return [
        *linear("embeddings.patch_embedding", config.number("num_channels") * patch * patch, width, bias=True),
        *embedding("embeddings.position_embedding", config.number("num_patches"), width),
        *plain_encoder(config),
        *norm("post_layernorm", width, bias=True),
    ]


def clip(config: ConfigReader) -> Groups:
    """A class token beside the patches, and a norm before the layers."""
    width = config.number("hidden_size")
    return [
        *parameter("embeddings.class_embedding", (width,)),
        *patch_conv(config, "embeddings.patch_embedding", width, bias=False),
        *embedding("embeddings.position_embedding", num_patches(config) + 1, width),
        *norm("pre_layrnorm", width, bias=True),
        *plain_encoder(config),
        *norm("post_layernorm", width, bias=True),
    ]


def pixtral(config: ConfigReader) -> Groups:
    """Llama's layers over patches, with rotary positions."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config)
    layer = "transformer.layers.{}"
    return [
        *patch_conv(config, "patch_conv", width, bias=False),
        *norm("ln_pre", width),
        *linears(
            f"{layer}.attention.", ("q_proj", "k_proj", "v_proj", "o_proj"), width, width, bias=False, layers=layers
        ),
        *gated_mlp(f"{layer}.feed_forward", width, inner, layers=layers),
        *all_norms([f"{layer}.attention_norm", f"{layer}.ffn_norm"], width, bias=False, layers=layers),
    ]


def internvl_vision(config: ConfigReader, layer: str = "encoder.layer.{}") -> Groups:
    """BEiT's form: a class token, scales per channel on both residuals."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config)
    (high, wide), (patch_high, patch_wide) = pair(config, "image_size"), pair(config, "patch_size")
    patches = (high // patch_high) * (wide // patch_wide)
    channels = config.number("num_channels")
    norm_bias = config.word("norm_type") == "layer_norm"
    qk_norms = [f"{layer}.attention.q_norm", f"{layer}.attention.k_norm"] if config.flag("use_qk_norm") else []
    has_positions = config.flag("use_absolute_position_embeddings")
    return [
        *parameter("embeddings.cls_token", (1, 1, width)),
        *(parameter("embeddings.mask_token", (1, 1, width)) if config.flag("use_mask_token") else []),
        *conv("embeddings.patch_embeddings.projection", (width, channels, patch_high, patch_wide)),
        *(parameter("embeddings.position_embeddings", (1, patches + 1, width)) if has_positions else []),
        *linears(f"{layer}.attention.", QKVO[:3], width, width, bias=config.flag("attention_bias"), layers=layers),
        *linear(f"{layer}.attention.projection_layer", width, width, bias=True, layers=layers),
        *all_norms(qk_norms, width, bias=False, layers=layers),
        *linear(f"{layer}.mlp.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc2", inner, width, bias=True, layers=layers),
        *all_norms([f"{layer}.layernorm_before", f"{layer}.layernorm_after"], width, bias=norm_bias, layers=layers),
        *parameter(f"{layer}.lambda_1", (width,), layers=layers),
        *parameter(f"{layer}.lambda_2", (width,), layers=layers),
        *([] if config.flag("use_mean_pooling") else norm("layernorm", width, bias=True)),
    ]


# Towers that transformers makes by the model_type of vision_config alone.
TOWERS: dict[str, Callable[[ConfigReader], Groups]] = {
    "siglip_vision_model": siglip,
    "siglip2_vision_model": siglip2,
    "clip_vision_model": clip,
    "pixtral": pixtral,
    "idefics3_vision": siglip_body,
    "smolvlm_vision": siglip_body,
    "internvl_vision": internvl_vision,
}


def tower(config: ConfigReader) -> Groups | None:
    """The tower a vision_config names, or None where its tensors are not known."""
    build = TOWERS.get(config.model_type)
    return None if build is None else build(config)


def joined(*parts: Sequence[WeightGroup] | None) -> Groups | None:
    """All tensors, or None where those of one part are not known."""
    found: Groups = []
    for part in parts:
        if part is None:
            return None
        found += part
    return found
