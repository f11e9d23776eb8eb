"""Vision towers over grids of patches whose neighbours are merged for the text model: Qwen's and GLM's, and those made
after them. Tensors as in transformers 5.24.0, names relative to the tower."""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.vision import Groups, all_norms, count, linears, num_patches, plain_encoder
from kvscope.model.modules import Layers, conv, embedding, gated_mlp, linear, norm

NORMS = ("norm1", "norm2")
BLOCK = "blocks.{}"


def _patches(config: ConfigReader, width: int, *, bias: bool) -> Groups:
    """Patches over two frames and their sides."""
    patch, frames = config.number("patch_size"), config.number("temporal_patch_size")
    return conv("patch_embed.proj", (width, config.number("in_channels"), frames, patch, patch), bias=bias)


def _merged(config: ConfigReader, width: int) -> int:
    """Width of the neighbours that become one token."""
    return width * config.number("spatial_merge_size") ** 2


def _merger(config: ConfigReader, width: int, outputs: int, *, norm_bias: bool) -> Groups:
    merged = _merged(config, width)
    return [
        *norm("merger.ln_q", width, bias=norm_bias),
        *linear("merger.mlp.0", merged, merged, bias=True),
        *linear("merger.mlp.2", merged, outputs, bias=True),
    ]


def _block_norms(width: int, layers: Layers, *, bias: bool) -> Groups:
    return all_norms([f"{BLOCK}.{name}" for name in NORMS], width, bias=bias, layers=layers)


def qwen2_vl_vision(config: ConfigReader) -> Groups:
    """hidden_size is the text model's width here, embed_dim the tower's."""
    width, layers = config.number("embed_dim"), count(config, "depth")
    inner = width * config.number("mlp_ratio")
    return [
        *_patches(config, width, bias=False),
        *linear(f"{BLOCK}.attn.qkv", width, 3 * width, bias=True, layers=layers),
        *linear(f"{BLOCK}.attn.proj", width, width, bias=True, layers=layers),
        *linear(f"{BLOCK}.mlp.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{BLOCK}.mlp.fc2", inner, width, bias=True, layers=layers),
        *_block_norms(width, layers, bias=True),
        *_merger(config, width, config.number("hidden_size"), norm_bias=True),
    ]


def qwen2_5_vl_vision(config: ConfigReader, *, apart: bool = False, grouped: bool = False) -> Groups:
    """``apart``: queries, keys and values are three matrices (Qwen2.5-Omni). ``grouped``: fewer heads of keys and
    values (EXAONE 4.5)."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config, "depth")
    heads = config.number("num_heads")
    kv_heads = config.number("num_key_value_heads") if grouped else heads
    packed = (heads + 2 * kv_heads) * (width // heads) if grouped else 3 * width
    if apart:
        attention = linears(f"{BLOCK}.attn.", "qkv", width, width, bias=True, layers=layers)
    else:
        attention = linear(f"{BLOCK}.attn.qkv", width, packed, bias=True, layers=layers)
    return [
        *_patches(config, width, bias=False),
        *attention,
        *linear(f"{BLOCK}.attn.proj", width, width, bias=True, layers=layers),
        *gated_mlp(f"{BLOCK}.mlp", width, inner, bias=True, layers=layers),
        *_block_norms(width, layers, bias=False),
        *_merger(config, width, config.number("out_hidden_size"), norm_bias=False),
    ]


def qwen3_vl_vision(
    config: ConfigReader, *, deepstack: bool = True, merger_names: tuple[str, str, str] | None = None
) -> Groups:
    """``deepstack``: inner layers have mergers of their own (none in Qwen3.5). ``merger_names``: what norm and the two
    matrices of a merger are called."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config, "depth")
    merged, outputs = _merged(config, width), config.number("out_hidden_size")
    first, up, down = merger_names or ("norm", "linear_fc1", "linear_fc2")
    listed = "deepstack_merger_list" if merger_names is None else "merger_list"
    deep = tuple(range(len(config.numbers("deepstack_visual_indexes") or ()))) if deepstack else ()
    weights = [
        *_patches(config, width, bias=True),
        *embedding("pos_embed", config.number("num_position_embeddings"), width),
        *linear(f"{BLOCK}.attn.qkv", width, 3 * width, bias=True, layers=layers),
        *linear(f"{BLOCK}.attn.proj", width, width, bias=True, layers=layers),
        *linear(f"{BLOCK}.mlp.linear_fc1", width, inner, bias=True, layers=layers),
        *linear(f"{BLOCK}.mlp.linear_fc2", inner, width, bias=True, layers=layers),
        *_block_norms(width, layers, bias=True),
    ]
    mergers: list[tuple[str, int, Layers]] = [("merger", width, ())]
    if deep:
        mergers.append((f"{listed}.{{}}", merged, deep))
    for prefix, normed, places in mergers:
        weights += norm(f"{prefix}.{first}", normed, bias=True, layers=places)
        weights += linear(f"{prefix}.{up}", merged, merged, bias=True, layers=places)
        weights += linear(f"{prefix}.{down}", merged, outputs, bias=True, layers=places)
    return weights


def glm4v_vision(config: ConfigReader) -> Groups:
    """The blocks' feed-forward is as wide as the text model, the merger's is intermediate_size wide."""
    width, outputs = config.number("hidden_size"), config.number("out_hidden_size")
    layers, bias = count(config, "depth"), config.flag("attention_bias")
    return [
        *embedding("embeddings.position_embedding", num_patches(config), width),
        *_patches(config, width, bias=True),
        *linear(f"{BLOCK}.attn.qkv", width, 3 * width, bias=bias, layers=layers),
        *linear(f"{BLOCK}.attn.proj", width, width, layers=layers),
        *gated_mlp(f"{BLOCK}.mlp", width, outputs, layers=layers),
        *_block_norms(width, layers, bias=False),
        *norm("post_conv_layernorm", width),
        *_glm_merger(config, width, outputs, config.number("intermediate_size")),
    ]


def glm_ocr_vision(config: ConfigReader) -> Groups:
    """Norms per head, no position embeddings; the merger is as wide as the text model times the image's channels."""
    width, outputs = config.number("hidden_size"), config.number("out_hidden_size")
    layers, bias = count(config, "depth"), config.flag("attention_bias")
    head = width // config.number("num_heads")
    return [
        *_patches(config, width, bias=True),
        *linear(f"{BLOCK}.attn.qkv", width, 3 * width, bias=bias, layers=layers),
        *linear(f"{BLOCK}.attn.proj", width, width, bias=bias, layers=layers),
        *all_norms([f"{BLOCK}.attn.q_norm", f"{BLOCK}.attn.k_norm"], head, bias=False, layers=layers),
        *gated_mlp(f"{BLOCK}.mlp", width, config.number("intermediate_size"), bias=bias, layers=layers),
        *_block_norms(width, layers, bias=False),
        *_glm_merger(config, width, outputs, outputs * config.number("in_channels")),
    ]


def _glm_merger(config: ConfigReader, width: int, outputs: int, inner: int) -> Groups:
    side = config.number("spatial_merge_size")
    return [
        *norm("post_layernorm", width),
        *conv("downsample", (outputs, width, side, side)),
        *linear("merger.proj", outputs, outputs),
        *norm("merger.post_projection_norm", outputs, bias=True),
        *gated_mlp("merger", outputs, inner),
    ]


def minimax_vision(config: ConfigReader) -> Groups:
    """CLIP's layers over patches of two frames."""
    width, patch, frames = (
        config.number("hidden_size"),
        config.number("patch_size"),
        config.number("temporal_patch_size"),
    )
    return [
        *conv("embeddings.proj", (width, config.number("num_channels"), frames, patch, patch), bias=False),
        *norm("pre_layrnorm", width, bias=True),
        *plain_encoder(config, "layers.{}"),
    ]


def ernie_vision(config: ConfigReader) -> Groups:
    """Patches come as rows; merging is done outside."""
    width, inner, layers = config.number("hidden_size"), config.number("intermediate_size"), count(config, "depth")
    return [
        *linear("patch_embed.proj", config.number("in_channels") * config.number("patch_size") ** 2, width),
        *linear(f"{BLOCK}.attn.qkv", width, 3 * width, bias=True, layers=layers),
        *linear(f"{BLOCK}.attn.proj", width, width, bias=True, layers=layers),
        *linear(f"{BLOCK}.mlp.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{BLOCK}.mlp.fc2", inner, width, bias=True, layers=layers),
        *_block_norms(width, layers, bias=True),
        *norm("ln", width, bias=True),
    ]
