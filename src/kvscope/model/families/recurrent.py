"""Families without a cache that grows with the text, and RecurrentGemma, most of whose layers have none.

Facts of transformers 5.24.0's classes; layer by layer in recurrent_mixers.py.
"""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, read_heads
from kvscope.model.families.hybrid_layers import (
    LINEAR,
    SLIDING,
    build_layers,
    only_derived,
    trained_context,
    which,
)
from kvscope.model.families.recurrent_mixers import (
    Mamba,
    Mamba2,
    check_mamba2,
    mamba2_mixer,
    mamba_mixer,
    stated_dtype,
    time_step_rank,
)
from kvscope.model.modules import Layers, attention, embedding, gated_mlp, head, linear, norm, norms, parameter
from kvscope.model.modules import conv1d as conv1d_weights
from kvscope.model.spec import CacheKind, DenseFfn, RecurrentState, SlidingWindow, StateTensor, WeightGroup


def mamba(config: ConfigReader) -> Architecture:
    """Mamba 1. A stated intermediate_size wins over expand × hidden_size, as it does in the library: falcon-mamba-7b
    says expand 16 and means 8192."""
    num_layers = config.num_layers()
    hidden = config.number("hidden_size")
    inner = config.number_or("intermediate_size", config.number("expand") * hidden, "expand × hidden_size")
    mixer = Mamba(
        hidden=hidden,
        inner=inner,
        state=config.number("state_size"),
        kernel=config.number("conv_kernel"),
        rank=time_step_rank(config, "time_step_rank", hidden),
        conv_bias=config.flag("use_conv_bias"),
        proj_bias=config.flag("use_bias"),
    )
    layers = tuple(range(num_layers))
    weights = mamba_mixer("backbone.layers.{}.mixer", mixer, layers=layers)
    return _backbone(config, "mamba", num_layers, hidden, mixer.cache, weights)


def falcon_mamba(config: ConfigReader) -> Architecture:
    """Mamba 1 whose B, C and step size are normalised, without weights."""
    return mamba(config)


def mamba2(config: ConfigReader) -> Architecture:
    """Mamba 2 alone."""
    num_layers = config.num_layers()
    hidden = config.number("hidden_size")
    bias = config.flag("use_bias")
    mixer = Mamba2(
        hidden=hidden,
        inner=config.number("expand") * hidden,
        heads=config.number("num_heads"),
        head_dim=config.number("head_dim"),
        groups=config.number("n_groups"),
        state=config.number("state_size"),
        kernel=config.number("conv_kernel"),
        conv_bias=config.flag("use_conv_bias"),
        in_bias=bias,
        out_bias=bias,
    )
    check_mamba2(config, mixer, "num_heads")
    layers = tuple(range(num_layers))
    weights = mamba2_mixer("backbone.layers.{}.mixer", mixer, layers=layers)
    return _backbone(config, "mamba2", num_layers, hidden, mixer.cache, weights)


def _backbone(
    config: ConfigReader, family: str, num_layers: int, hidden: int, cache: RecurrentState, mixer: list[WeightGroup]
) -> Architecture:
    """Norm and mixer in each layer, and nothing between them."""
    types = only_derived(config, (LINEAR,) * num_layers, f"every {family} model")
    vocab = config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    weights = [
        *embedding("backbone.embeddings", vocab, hidden),
        *norm("backbone.layers.{}.norm", hidden, layers=tuple(range(num_layers))),
        *mixer,
        *norm("backbone.norm_f", hidden),
        *head("lm_head", hidden, vocab, tied=tied),
    ]
    return Architecture(
        family=family,
        layers=build_layers(config, types, {LINEAR: cache}, 0, None),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


def rwkv(config: ConfigReader) -> Architecture:
    """RWKV 4: the last token's input of both halves of a layer, and three float32 sums of the attention half."""
    num_layers = config.num_layers()
    hidden = config.number("hidden_size")
    width = config.number_or("intermediate_size", 4 * hidden, "4 × hidden_size", field="ffn.width")
    if config.number_or("attention_hidden_size", hidden, "hidden_size") != hidden:
        raise config.refuse("its attention_hidden_size is not its hidden_size, with which no library runs it")
    vocab = config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    every = tuple(range(num_layers))
    block = "rwkv.blocks.{}"
    weights = [
        *embedding("rwkv.embeddings", vocab, hidden),
        *norm("rwkv.blocks.0.pre_ln", hidden, bias=True),
        *norms([f"{block}.ln1", f"{block}.ln2"], hidden, bias=True, layers=every),
        *_rwkv_attention(f"{block}.attention", hidden, every),
        *_time_mix(f"{block}.feed_forward", ("key", "receptance"), hidden, every),
        *linear(f"{block}.feed_forward.key", hidden, width, layers=every),
        *linear(f"{block}.feed_forward.receptance", hidden, hidden, layers=every),
        *linear(f"{block}.feed_forward.value", width, hidden, layers=every),
        *norm("rwkv.ln_out", hidden, bias=True),
        *head("head", hidden, vocab, tied=tied),
    ]
    sums = tuple(
        StateTensor(name=name, shape=(hidden,), dtype="float32") for name in ("numerator", "denominator", "maximum")
    )
    # The shift by one token is a convolution of two taps, of which one column is kept, in each half of the layer.
    cache = RecurrentState(form="rwkv", conv_channels=2 * hidden, conv_kernel=2, states=sums)
    return Architecture(
        family="rwkv",
        layers=build_layers(config, (LINEAR,) * num_layers, {LINEAR: cache}, 0, DenseFfn(width=width)),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=config.optional(
            "context_length", "max_position_embeddings", field="trained_context_tokens"
        ),
        is_tied=tied,
    )


def _rwkv_attention(prefix: str, hidden: int, layers: Layers) -> list[WeightGroup]:
    return [
        *parameter(f"{prefix}.time_decay", (hidden,), layers=layers),
        *parameter(f"{prefix}.time_first", (hidden,), layers=layers),
        *_time_mix(prefix, ("key", "value", "receptance"), hidden, layers),
        *(
            group
            for name in ("key", "value", "receptance", "output")
            for group in linear(f"{prefix}.{name}", hidden, hidden, layers=layers)
        ),
    ]


def _time_mix(prefix: str, names: tuple[str, ...], hidden: int, layers: Layers) -> list[WeightGroup]:
    return [group for name in names for group in parameter(f"{prefix}.time_mix_{name}", (1, 1, hidden), layers=layers)]


XLSTM_DIM_MULTIPLE = 64  # xLSTMConfig.qk_dim and v_dim round up to it; the layers themselves do not


def xlstm(config: ConfigReader) -> Architecture:
    """xLSTM of mLSTM blocks: a matrix, a vector and a number per head."""
    num_layers = config.num_layers()
    hidden = config.number("hidden_size")
    if config.number_or("embedding_dim", hidden, "hidden_size") != hidden:
        raise config.refuse("its embedding_dim is not its hidden_size")
    if config.number_or("num_blocks", num_layers, "num_hidden_layers") != num_layers:
        raise config.refuse("its num_blocks are not its num_hidden_layers")
    if config.word("weight_mode") not in (None, "single"):
        raise config.refuse("its weight_mode is not 'single'; transformers 5.24.0 cannot build another")
    heads = config.number("num_heads", field="num_q_heads")
    keys = _xlstm_width(config, hidden, "qk_dim_factor")
    values = _xlstm_width(config, hidden, "v_dim_factor")
    bias = config.flag("use_bias")
    width = _xlstm_ffn(config, hidden)
    vocab = config.number("vocab_size")
    every = tuple(range(num_layers))
    block = "backbone.blocks.{}"
    weights = [
        *embedding("backbone.embeddings", vocab, hidden),
        *norms([f"{block}.norm_mlstm", f"{block}.norm_ffn"], hidden, bias=bias, layers=every),
        *_mlstm(f"{block}.mlstm_layer", hidden, keys, values, heads, bias, every),
        *linear(f"{block}.ffn.proj_up_gate", hidden, width, bias=bias, layers=every),
        *linear(f"{block}.ffn.proj_up", hidden, width, bias=bias, layers=every),
        *linear(f"{block}.ffn.proj_down", width, hidden, bias=bias, layers=every),
        *norm("backbone.out_norm", hidden),
        *head("lm_head", hidden, vocab, tied=False),  # the class ties nothing, whatever tie_word_embeddings says
    ]
    key_dim, value_dim = keys // heads, values // heads
    dtype = stated_dtype(config, "inference_state_dtype")
    states = tuple(
        StateTensor(name=name, shape=shape, dtype=dtype)
        for name, shape in (
            ("matrix", (heads, key_dim, value_dim)),
            ("normaliser", (heads, key_dim)),
            ("maximum", (heads, 1)),
        )
    )
    cache = RecurrentState(form="xlstm", states=states)
    return Architecture(
        family="xlstm",
        layers=build_layers(config, (LINEAR,) * num_layers, {LINEAR: cache}, 0, DenseFfn(width=width)),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=trained_context(config),
        is_tied=False,
    )


def _factor(config: ConfigReader, key: str) -> float:
    value, source = config.lookup(key)
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        raise config.malformed(key, "a number above 0 was expected")
    config.sources[key] = source
    return float(value)


def _xlstm_width(config: ConfigReader, hidden: int, key: str) -> int:
    """hidden_size × factor. The cache rounds it up, the layers do not: a model runs only where both agree."""
    exact = hidden * _factor(config, key)
    if int(exact) % XLSTM_DIM_MULTIPLE or int(exact) != exact:
        raise config.refuse(f"hidden_size × {key} is no multiple of {XLSTM_DIM_MULTIPLE}, with which it does not run")
    return int(exact)


def _xlstm_ffn(config: ConfigReader, hidden: int) -> int:
    multiple = config.number("ffn_round_up_to_multiple_of")
    config.sources["ffn.width"] = "derived: hidden_size × ffn_proj_factor, rounded up"
    return int((hidden * _factor(config, "ffn_proj_factor") + multiple - 1) // multiple) * multiple


def _mlstm(
    prefix: str, hidden: int, keys: int, values: int, heads: int, bias: bool, layers: Layers
) -> list[WeightGroup]:
    widths = {"q": keys, "k": keys, "v": values, "ogate_preact": values}
    return [
        *(
            group
            for name, width in widths.items()
            for group in linear(f"{prefix}.{name}", hidden, width, bias=bias, layers=layers)
        ),
        *linear(f"{prefix}.igate_preact", hidden, heads, bias=True, layers=layers),
        *linear(f"{prefix}.fgate_preact", hidden, heads, bias=True, layers=layers),
        *norm(f"{prefix}.multihead_norm", values, bias=bias, layers=layers),
        *linear(f"{prefix}.out_proj", values, hidden, bias=bias, layers=layers),
    ]


def recurrent_gemma(config: ConfigReader) -> Architecture:
    """Griffin: RG-LRU layers and local attention in the order of block_types, repeated."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    if config.number_or("lru_width", heads.hidden, "hidden_size") != heads.hidden:
        raise config.refuse("its lru_width is not its hidden_size, with which transformers 5.24.0 does not run it")
    types = _gemma_blocks(config, num_layers)
    window = config.number("attention_window_size", "sliding_window", field="window_tokens")
    kernel = config.number("conv1d_width")
    width = config.number("intermediate_size") // 2
    config.sources["ffn.width"] = "derived: intermediate_size / 2"
    vocab = config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    every = tuple(range(num_layers))
    layer = "model.layers.{}"
    weights = [
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *norms([f"{layer}.temporal_pre_norm", f"{layer}.channel_pre_norm"], heads.hidden, layers=every),
        *_rg_lru(f"{layer}.temporal_block", heads.hidden, heads.q_heads, kernel, which(types, LINEAR)),
        *gated_mlp(f"{layer}.mlp_block", heads.hidden, width, bias=True, layers=every),
        *norm("model.final_norm", heads.hidden),
        *head("lm_head", heads.hidden, vocab, tied=tied),
    ]
    if sliding := which(types, SLIDING):
        weights += attention(f"{layer}.temporal_block", heads.hidden, heads.q_heads, heads.kv_heads, heads.head_dim,
                             qkv_bias=config.flag("attention_bias"), out_bias=True, layers=sliding)  # fmt: skip
    full = heads.full
    caches: dict[str, CacheKind] = {
        LINEAR: RecurrentState(
            form="rg_lru",
            conv_channels=heads.hidden,
            conv_kernel=kernel,
            states=(StateTensor(name="recurrent_state", shape=(heads.hidden,), dtype="float32"),),
        ),
        SLIDING: SlidingWindow(
            num_kv_heads=full.num_kv_heads, key_dim=full.key_dim, value_dim=full.value_dim, window_tokens=window
        ),
    }
    return Architecture(
        family="recurrent_gemma",
        layers=build_layers(config, types, caches, heads.q_heads, DenseFfn(width=width)),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


def _gemma_blocks(config: ConfigReader, num_layers: int) -> tuple[str, ...]:
    blocks = config.words("block_types")
    if not blocks or not set(blocks) <= {"recurrent", "attention"}:
        raise config.malformed("block_types", 'a list of "recurrent" and "attention" was expected')
    names = {"recurrent": LINEAR, "attention": SLIDING}
    types = tuple(names[blocks[index % len(blocks)]] for index in range(num_layers))
    return only_derived(config, types, "block_types, repeated")


def _rg_lru(prefix: str, hidden: int, heads: int, kernel: int, layers: Layers) -> list[WeightGroup]:
    if not layers:
        return []
    block = hidden // heads
    gates = [
        group
        for gate in ("input_gate", "recurrent_gate")
        for group in (
            *parameter(f"{prefix}.rg_lru.{gate}_weight", (heads, block, block), layers=layers),
            *parameter(f"{prefix}.rg_lru.{gate}_bias", (heads, block), layers=layers),
        )
    ]
    return [
        *linear(f"{prefix}.linear_y", hidden, hidden, bias=True, layers=layers),
        *linear(f"{prefix}.linear_x", hidden, hidden, bias=True, layers=layers),
        *linear(f"{prefix}.linear_out", hidden, hidden, bias=True, layers=layers),
        *conv1d_weights(f"{prefix}.conv_1d", hidden, kernel, bias=True, layers=layers),
        *parameter(f"{prefix}.rg_lru.recurrent_param", (hidden,), layers=layers),
        *gates,
    ]
