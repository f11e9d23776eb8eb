"""Vision towers that one family alone has. Tensors as in transformers 5.24.0, names relative to the tower."""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.vision import (
    QKVO,
    Groups,
    all_norms,
    count,
    linears,
    num_patches,
    patch_conv,
    siglip_body,
)
from kvscope.model.modules import Layers, conv, embedding, gated_mlp, linear, norm, parameter

QKVO_SHORT = ("q_proj", "k_proj", "v_proj", "o_proj")


def _plain_layers(config: ConfigReader, layer: str, layers: Layers, *, norms: tuple[str, str], bias: bool) -> Groups:
    """Layers as SigLIP's under other names; ``bias``: of attention's matrices."""
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    if not layers:
        return []
    return [
        *linears(f"{layer}.self_attn.", QKVO_SHORT, width, width, bias=bias, layers=layers),
        *linear(f"{layer}.mlp.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc2", inner, width, bias=True, layers=layers),
        *all_norms([f"{layer}.{name}" for name in norms], width, bias=True, layers=layers),
    ]


def _two_matrix_layers(config: ConfigReader, layer: str = "layers.{}") -> Groups:
    """Kimi's and Muse Glimmer's layers: norm1, attn, norm2, mlp."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config)
    return [
        *all_norms([f"{layer}.norm1", f"{layer}.norm2"], width, bias=True, layers=layers),
        *linears(f"{layer}.attn.", ("proj", *QKVO[:3]), width, width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc2", inner, width, bias=True, layers=layers),
    ]


def llama4_vision(config: ConfigReader) -> Groups:
    """Patches as rows; a class token; neighbours merged by a projector of two matrices."""
    width, patch = config.number("hidden_size"), config.number("patch_size")
    if width % config.number("num_attention_heads"):
        raise config.refuse("the heads of its vision tower do not divide its width")
    rows, outputs = config.number("projector_input_dim"), config.number("projector_output_dim")
    names = ("input_layernorm", "post_attention_layernorm")
    return [
        *linear("patch_embedding.linear", config.number("num_channels") * patch * patch, width),
        *parameter("class_embedding", (width,)),
        *parameter("positional_embedding_vlm", (num_patches(config) + 1, width)),
        *all_norms(["layernorm_pre", "layernorm_post"], width, bias=True),
        *_plain_layers(config, "model.layers.{}", count(config), norms=names, bias=True),
        *linear("vision_adapter.mlp.fc1", config.number("intermediate_size"), rows),
        *linear("vision_adapter.mlp.fc2", outputs, outputs),
    ]


def mllama_vision(config: ConfigReader) -> Groups:
    """Tiles of an image, each with a class token; some layers see all tiles, behind gates."""
    width, tiles, patches = config.number("hidden_size"), config.number("max_num_tiles"), num_patches(config) + 1
    ratios = config.lookup("supported_aspect_ratios")[0]
    shapes = (len(ratios) if isinstance(ratios, list | tuple) else 8) + 1
    names = ("input_layernorm", "post_attention_layernorm")
    outer = "global_transformer.layers.{}"
    several = count(config, "num_global_layers")
    if width % config.number("attention_heads"):
        raise config.refuse("the heads of its vision tower do not divide its width")
    weights = [
        *parameter("class_embedding", (width,)),
        *patch_conv(config, "patch_embedding", width, bias=False),
        *parameter("gated_positional_embedding.gate", (1,)),
        *parameter("gated_positional_embedding.embedding", (patches, width)),
        *embedding("gated_positional_embedding.tile_embedding", shapes, tiles * patches * width),
    ]
    for place in ("pre_tile_positional_embedding", "post_tile_positional_embedding"):
        weights += parameter(f"{place}.gate", (1,))
        weights += embedding(f"{place}.embedding", shapes, tiles * width)
    return [
        *weights,
        *all_norms(["layernorm_pre", "layernorm_post"], width, bias=True),
        *_plain_layers(config, "transformer.layers.{}", count(config), norms=names, bias=False),
        *_plain_layers(config, outer, several, norms=names, bias=False),
        *parameter(f"{outer}.gate_attn", (1,), layers=several),
        *parameter(f"{outer}.gate_ffn", (1,), layers=several),
    ]


def kimi_vision(config: ConfigReader) -> Groups:
    """MoonViT."""
    width, patch = config.number("hidden_size"), config.number("patch_size")
    grid = (config.number("pos_emb_height"), config.number("pos_emb_width"))
    return [
        *conv("patch_embed.proj", (width, 3, patch, patch)),
        *parameter("patch_embed.pos_emb.position_embeddings", (*grid, width)),
        *_two_matrix_layers(config),
        *norm("final_layernorm", width, bias=True),
    ]


def muse_glimmer_vision(config: ConfigReader) -> Groups:
    width, patch = config.number("hidden_size"), config.number("patch_size")
    positions = config.number("pos_emb_height") * config.number("pos_emb_width")
    return [
        *linear("patch_embedder.patch_embedding", config.number("patch_temporal") * 3 * patch * patch, width),
        *embedding("patch_embedder.position_embedding_table", positions, width),
        *all_norms(["ln_pre", "ln_post"], width, bias=True),
        *_two_matrix_layers(config),
    ]


def hunyuan_vision(config: ConfigReader, text_width: int) -> Groups:
    """Neighbours merged by two convolutions and a matrix."""
    width, side, merger = config.number("hidden_size"), config.number("spatial_merge_size"), "patch_merger"
    return [
        *_hunyuan_body(config),
        *conv(f"{merger}.proj_conv", (2 * width, width, side, side)),
        *conv(f"{merger}.proj_out", (4 * width, 2 * width, 1, 1)),
        *linear(f"{merger}.mlp", 4 * width, text_width, bias=True),
        *parameter(f"{merger}.image_newline", (4 * width,)),
        *(group for name in ("begin", "end", "sep") for group in parameter(f"{merger}.image_{name}", (text_width,))),
        *norm(f"{merger}.before_rms", width),
        *norm(f"{merger}.after_rms", text_width),
    ]


def hy_v4_vision(config: ConfigReader) -> Groups:
    """Neighbours merged by two convolutions."""
    width, side, merger = config.number("hidden_size"), config.number("spatial_merge_size"), "patch_merger"
    merged, outputs = width * side * side, config.number("out_hidden_size")
    return [
        *_hunyuan_body(config),
        *conv(f"{merger}.proj_conv", (merged, width, side, side)),
        *conv(f"{merger}.proj_out", (outputs, merged, 1, 1)),
        *parameter(f"{merger}.image_newline", (outputs,)),
        *norm(f"{merger}.before_rms", width),
    ]


def _hunyuan_body(config: ConfigReader) -> Groups:
    """Positions of the largest image."""
    if config.given("head_dim"):
        raise config.refuse("its vision tower has a head_dim")
    width, edge = config.number("hidden_size"), config.number("max_image_size") // config.number("patch_size")
    return [
        *patch_conv(config, "embeddings.patch_embedding", width, bias=True),
        *embedding("embeddings.position_embedding", edge * edge + 1, width),
        *_plain_layers(config, "layers.{}", count(config), norms=("layer_norm1", "layer_norm2"), bias=True),
    ]


def ovis2_vision(config: ConfigReader) -> Groups:
    """AIMv2, and a head that turns patches into words of a visual vocabulary."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config)
    bias, stride = config.flag("qkv_bias"), config.number("hidden_stride")
    words = config.number("vocab_size") - config.number("num_visual_indicator_tokens")
    if words < 1:
        raise config.malformed("vocab_size", "more than num_visual_indicator_tokens was expected")
    body, layer = "transformer", "transformer.encoder.layers.{}"
    return [
        *patch_conv(config, f"{body}.embeddings.patch_embedding", width, bias=True),
        *embedding(f"{body}.embeddings.position_embedding", num_patches(config), width),
        *norm(f"{body}.embeddings.rms_norm", width),
        *linears(f"{layer}.attention.", QKVO, width, width, bias=bias, layers=layers),
        *gated_mlp(f"{layer}.ffn", width, inner, bias=config.flag("mlp_bias"), layers=layers),
        *all_norms([f"{layer}.rms_norm1", f"{layer}.rms_norm2"], width, bias=False, layers=layers),
        *norm(f"{body}.rms_norm", width),
        *linear("head_linear", width * stride * stride, words),
        *norm("head_norm", words, bias=True),
    ]


def minicpm_vision(config: ConfigReader) -> Groups:
    """SigLIP, and attention that merges windows of patches inside it."""
    width, inner = config.number("hidden_size"), config.number("intermediate_size")
    sides = config.numbers("window_kernel_size", smallest=1) or ()
    if len(sides) != 2:
        raise config.malformed("window_kernel_size", "two numbers were expected")
    window, merger = sides[0] * sides[1], "vit_merger"
    return [
        *siglip_body(config),
        *linears(f"{merger}.self_attn.", QKVO, width, width, bias=True),
        *norm(f"{merger}.layer_norm1", width, bias=True),
        *norm(f"{merger}.pre_norm", window * width, bias=True),
        *linear(f"{merger}.linear_1", window * width, window * inner, bias=True),
        *linear(f"{merger}.linear_2", window * inner, width, bias=True),
    ]


def granite_docling_vision(config: ConfigReader) -> Groups:
    """SigLIP, and a connector by a coarse and a fine way, with mergers for inner layers."""
    width, outputs, scale = (
        config.number("hidden_size"),
        config.number("out_hidden_size"),
        config.number("scale_factor"),
    )
    stated = config.numbers("deepstack_visual_indexes")
    inner = tuple(range(3 if stated is None else len(stated)))
    ways = {"coarse": scale, "fine": scale // 2} if config.flag("use_fine_route") else {"coarse": scale}
    weights = [*siglip_body(config), *norm("connector.ln_in", width, bias=True)]
    for name, factor in ways.items():
        prefix, merged = f"connector.{name}", width * factor**2
        weights += linear(f"{prefix}.projection", merged, outputs)
        if inner:
            deep = f"{prefix}.deepstack_mergers.{{}}"
            weights += norm(f"{deep}.layer_norm", merged, bias=True, layers=inner)
            weights += linear(f"{deep}.linear_1", merged, outputs, bias=True, layers=inner)
            weights += linear(f"{deep}.linear_2", outputs, outputs, bias=True, layers=inner)
    return [
        *weights,
        *all_norms(["connector.ln_mid", "connector.ln_out"], outputs, bias=True),
        *linear("connector.mlp_fc2", outputs, outputs),
    ]


def gemma4_vision(config: ConfigReader) -> Groups:
    """Gemma 4's layers over patches. Its clipped linear layers hold limits as buffers, which are no parameters."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config)
    heads, head = config.number("num_attention_heads"), config.number("head_dim")
    kv_heads, layer = config.number("num_key_value_heads"), "encoder.layers.{}"
    pre = [f"{layer}.{name}_layernorm" for name in ("input", "post_attention", "pre_feedforward", "post_feedforward")]
    sizes = {"q_proj": (width, heads * head), "k_proj": (width, kv_heads * head), "v_proj": (width, kv_heads * head)}
    sizes["o_proj"] = (heads * head, width)
    patch = config.number("patch_size")
    weights = linear("patch_embedder.input_proj", 3 * patch**2, width)
    weights += parameter(
        "patch_embedder.position_embedding_table", (2, config.number("position_embedding_size"), width)
    )
    for name, (inputs, outputs) in sizes.items():
        weights += linear(f"{layer}.self_attn.{name}.linear", inputs, outputs, layers=layers)
    for name in ("gate_proj", "up_proj"):
        weights += linear(f"{layer}.mlp.{name}.linear", width, inner, layers=layers)
    return [
        *weights,
        *linear(f"{layer}.mlp.down_proj.linear", inner, width, layers=layers),
        *all_norms([f"{layer}.self_attn.q_norm", f"{layer}.self_attn.k_norm"], head, bias=False, layers=layers),
        *all_norms(pre, width, bias=False, layers=layers),
    ]


def sam_vision(config: ConfigReader) -> Groups:
    """SAM's tower (also GOT-OCR 2's): windows in most layers, relative positions, a neck of convolutions."""
    width, layers = config.number("hidden_size"), count(config)
    inner = config.number_or("mlp_dim", _widened(config, width), "hidden_size × mlp_ratio")
    patch = config.number("patch_size")
    side, head = config.number("image_size") // patch, width // config.number("num_attention_heads")
    everywhere = set(config.numbers("global_attn_indexes") or ())
    window, layer = config.number("window_size", smallest=0), "layers.{}"
    weights = patch_conv(config, "patch_embed.projection", width, bias=True)
    if config.flag("use_abs_pos"):
        weights += parameter("pos_embed", (1, side, side, width))
    if config.flag("use_rel_pos"):
        for is_whole in (False, True):
            places = tuple(index for index in layers if (index in everywhere or not window) == is_whole)
            rows = 2 * (side if is_whole else window) - 1
            for name in ("rel_pos_h", "rel_pos_w"):
                weights += parameter(f"{layer}.attn.{name}", (rows, head), layers=places) if places else []
    return [
        *weights,
        *linear(f"{layer}.attn.qkv", width, 3 * width, bias=config.flag("qkv_bias"), layers=layers),
        *linear(f"{layer}.attn.proj", width, width, bias=True, layers=layers),
        *all_norms([f"{layer}.layer_norm1", f"{layer}.layer_norm2"], width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.lin1", width, inner, bias=True, layers=layers),
        *linear(f"{layer}.mlp.lin2", inner, width, bias=True, layers=layers),
        *sam_neck(config, "neck"),
    ]


def sam_neck(config: ConfigReader, prefix: str) -> Groups:
    """Two convolutions from the tower's width to its output channels."""
    width, outputs = config.number("hidden_size"), config.number("output_channels")
    return [
        *conv(f"{prefix}.conv1", (outputs, width, 1, 1), bias=False),
        *norm(f"{prefix}.layer_norm1", outputs, bias=True),
        *conv(f"{prefix}.conv2", (outputs, outputs, 3, 3), bias=False),
        *norm(f"{prefix}.layer_norm2", outputs, bias=True),
    ]


def _widened(config: ConfigReader, width: int) -> int:
    """hidden_size × mlp_ratio, which need not be a whole number."""
    ratio = config.lookup("mlp_ratio")[0]
    ratio = 4.0 if ratio is None else ratio
    if isinstance(ratio, bool) or not isinstance(ratio, int | float) or not 0 < ratio < 1000:
        raise config.malformed("mlp_ratio", "a positive number was expected")
    return int(width * ratio)


def idefics2_resampler(config: ConfigReader, width: int) -> Groups:
    """A few learnt queries that look at all patches; as wide as the text model."""
    heads, head = config.number("resampler_n_heads"), config.number("resampler_head_dim")
    kv_heads, layers = config.number("num_key_value_heads"), count(config, "resampler_depth")
    layer = "layers.{}"
    names = ("input_latents_norm", "input_context_norm", "post_attention_layernorm")
    return [
        *parameter("latents", (config.number("resampler_n_latents"), width)),
        *all_norms([f"{layer}.{name}" for name in names], width, bias=False, layers=layers),
        *linear(f"{layer}.self_attn.q_proj", width, heads * head, layers=layers),
        *linear(f"{layer}.self_attn.k_proj", width, kv_heads * head, layers=layers),
        *linear(f"{layer}.self_attn.v_proj", width, kv_heads * head, layers=layers),
        *linear(f"{layer}.self_attn.o_proj", heads * head, width, layers=layers),
        *gated_mlp(f"{layer}.mlp", width, 4 * width, layers=layers),
        *norm("norm", width),
    ]


def lfm3_vision(config: ConfigReader) -> Groups:
    """LFM's layers over patches: attention in some, a convolution over the grid in the others."""
    width, layers, layer = config.number("hidden_size"), count(config), "layers.{}"
    types = config.layer_types(len(layers))
    if types is None:
        types = tuple("conv" if index < 2 or index % 2 else "full_attention" for index in layers)
    mixing = tuple(index for index in layers if types[index] == "conv")
    attending = tuple(index for index in layers if types[index] != "conv")
    inputs = config.number("in_channels") * config.number("temporal_patch_size") * config.number("patch_size") ** 2
    weights = [*linear("patch_embed", inputs, width), *norm("embedding_norm", width)]
    if mixing:
        kernel = config.number("conv_kernel_size")
        weights += linear(f"{layer}.conv.in_proj", width, 3 * width, layers=mixing)
        weights += conv(f"{layer}.conv.spatial_conv", (width, 1, kernel, kernel), bias=False, layers=mixing)
        weights += linear(f"{layer}.conv.out_proj", width, width, layers=mixing)
    if attending:
        heads, kv_heads = config.number("num_attention_heads"), config.number("num_key_value_heads")
        head = width // heads
        weights += linear(f"{layer}.self_attn.q_proj", width, heads * head, layers=attending)
        weights += linears(
            f"{layer}.self_attn.", ("k_proj", "v_proj"), width, kv_heads * head, bias=False, layers=attending
        )
        weights += linear(f"{layer}.self_attn.out_proj", heads * head, width, layers=attending)
        names = [f"{layer}.self_attn.{name}_norm" for name in "qk"]
        weights += all_norms(names, head, bias=False, layers=attending)
    inner = config.number("intermediate_size")
    return [
        *weights,
        *linears(f"{layer}.feed_forward.", ("w1", "w3"), width, inner, bias=False, layers=layers),
        *linear(f"{layer}.feed_forward.w2", inner, width, layers=layers),
        *all_norms([f"{layer}.operator_norm", f"{layer}.ffn_norm"], width, bias=False, layers=layers),
    ]


def step3_vision(config: ConfigReader) -> Groups:
    """Scales per channel on both residuals; two convolutions merge neighbours. Older files say width, layers, heads;
    the feed-forward's width is always mlp_ratio's."""
    width = config.number("width") if config.given("width") else config.number("hidden_size")
    layers = count(config, "layers" if config.given("layers") else "num_hidden_layers")
    inner, layer, patch = _widened(config, width), "layers.{}", config.number("patch_size")
    return [
        *conv("embeddings.patch_embedding", (width, config.number("num_channels"), patch, patch), bias=False),
        *embedding("embeddings.position_embedding", num_patches(config), width),
        *norm("pre_layernorm", width, bias=True),
        *linears(f"{layer}.self_attn.", QKVO, width, width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc2", inner, width, bias=True, layers=layers),
        *all_norms([f"{layer}.layernorm_before", f"{layer}.layernorm_after"], width, bias=True, layers=layers),
        *parameter(f"{layer}.lambda_1", (width,), layers=layers),
        *parameter(f"{layer}.lambda_2", (width,), layers=layers),
        *conv("downsampler1", (2 * width, width, 3, 3)),
        *conv("downsampler2", (4 * width, 2 * width, 3, 3)),
    ]
