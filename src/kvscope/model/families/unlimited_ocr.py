"""Unlimited-OCR: a decoder with experts behind two image towers, one after the other. Its layers keep every token of
the prompt, and a window of those that follow. Tensors and rules of transformers 5.24.0."""

from collections.abc import Mapping
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, attention_layers
from kvscope.model.families.dense_decoder import read_decoder
from kvscope.model.families.moe_decoder import dense_mlp, layers_named_sparse, read_experts, sparse_mlp
from kvscope.model.families.multimodal_parts import read_tied, section, text_section, wrapped
from kvscope.model.families.vision import Groups, num_patches, placed, plain_encoder
from kvscope.model.families.vision_own import sam_vision
from kvscope.model.modules import conv, embedding, linear, norm, parameter
from kvscope.model.spec import DenseFfn, FullAttention

WINDOWED, FULL = "reference_sliding_attention", "full_attention"


def unlimited_ocr(config: ConfigReader) -> Architecture:
    text = text_section(_renamed(config), "unlimited_ocr_text", fixed=True)
    model = _text(ConfigReader(
        {**text.config, "tie_word_embeddings": read_tied(config, text)},
        text.model_type,
        where=text.where,
        prefix=text.prefix,
        sources=text.sources,
    ))  # fmt: skip
    hidden = model.hidden_size
    vision = section(config, "vision_config", "unlimited_ocr_vision", fixed=True)
    sam = section(vision, "sam_config", "unlimited_ocr_sam_vision_model", fixed=True)
    encoder = section(vision, "encoder_config", "unlimited_ocr_vision_encoder", fixed=True)
    channels = sam.numbers("downsample_channels", smallest=1) or ()
    if len(channels) != 2:
        raise sam.malformed("downsample_channels", "two numbers were expected")
    outer = [
        *linear("model.multi_modal_projector", channels[-1] + encoder.number("hidden_size"), hidden, bias=True),
        *parameter("model.view_separator", (hidden,)),
        *parameter("model.image_newline", (hidden,)),
    ]
    return wrapped(
        model,
        placed("model.vision_tower.sam_encoder", [*sam_vision(sam), *_downsampling(sam, channels)]),
        placed("model.vision_tower.vision_encoder", _encoder(encoder)),
        [replace(group, part="vision") for group in outer],
    )


def _renamed(config: ConfigReader) -> ConfigReader:
    """The published file calls its text part language_config, and has that part's window outside of it."""
    if config.given("text_config"):
        config.refuse_keys("language_config", "sliding_window")
        return config
    text = config.config.get("language_config") or {}
    if not isinstance(text, Mapping):
        raise config.malformed("language_config", "a JSON object was expected")
    text = {key: value for key, value in text.items() if key != "model_type"}
    if "sliding_window" in config.config:
        text["sliding_window"] = config.config["sliding_window"]
    return ConfigReader(
        {**config.config, "text_config": text}, config.model_type, where=config.where, sources=config.sources
    )


def _text(config: ConfigReader) -> Architecture:
    decoder = read_decoder(config, head_dim_key=False)
    heads, bias, mlp_bias = decoder.heads, config.flag("attention_bias"), config.flag("mlp_bias")
    experts = read_experts(config, "n_routed_experts", shared_count="n_shared_experts")
    first = config.optional("first_k_dense_replace")
    sparse = layers_named_sparse(decoder, decoder.layers[1 if first is None else first :])
    types = config.layer_types(decoder.num_layers) or (WINDOWED,) * decoder.num_layers
    if set(types) - {WINDOWED, FULL}:
        raise config.refuse(f"its layer_types name {sorted(set(types) - {WINDOWED, FULL})}")
    window = config.number("sliding_window", field="window_tokens")
    shape = {"num_kv_heads": heads.kv_heads, "key_dim": heads.head_dim, "value_dim": heads.head_dim}
    # A window of one token is cut at -0, which keeps every token.
    windowed = FullAttention(**shape, window_after_prompt=window if window > 1 else None)
    weights = [
        *decoder.outer(),
        *decoder.attention(qkv_bias=bias, out_bias=bias),
        *dense_mlp(decoder, sparse, bias=mlp_bias),
        *sparse_mlp(decoder, experts, sparse, shared_bias=mlp_bias),
        *decoder.norms(),
    ]
    return Architecture(
        family="unlimited_ocr",
        layers=attention_layers(
            [windowed if kind == WINDOWED else heads.full for kind in types],
            heads.q_heads,
            [experts.ffn if index in sparse else DenseFfn(width=decoder.width) for index in decoder.layers],
        ),
        weights=tuple(weights),
        vocab_size=decoder.vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=config.optional("max_position_embeddings", field="trained_context_tokens", smallest=1),
        is_tied=decoder.tied,
    )


def _downsampling(config: ConfigReader, channels: tuple[int, ...]) -> Groups:
    """Two convolutions that halve the image, behind the neck of SAM's tower."""
    return [
        *conv("proj.conv1", (channels[0], config.number("output_channels"), 3, 3), bias=False),
        *conv("proj.conv2", (channels[1], channels[0], 3, 3), bias=False),
    ]


def _encoder(config: ConfigReader) -> Groups:
    """CLIP's layers over the first tower's output: no patches of their own, no norm after them."""
    width = config.number("hidden_size")
    return [
        *parameter("embeddings.class_embedding", (width,)),
        *embedding("embeddings.position_embedding", num_patches(config) + 1, width),
        *norm("pre_layrnorm", width, bias=True),
        *plain_encoder(config),
    ]
