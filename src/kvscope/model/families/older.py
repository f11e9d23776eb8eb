"""Families from before Llama's key names: GPT-1 and GPT-2 and their relatives, BLOOM, CTRL. All keep full attention's
cache in transformers 5.24.0 unless said otherwise here; weights are those of their classes there. Falcon, MPT, OPT and
others with shapes of their own are in older_decoders.py."""

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import (
    Architecture,
    Heads,
    full_attention_model,
    library_caches,
    read_context,
    read_heads,
)
from kvscope.model.modules import attention, conv1d_linear, embedding, head, linear, norm, norms, parameter
from kvscope.model.spec import CacheKind, FullAttention, NoCache, SlidingWindow, WeightGroup


def _gpt_heads(config: ConfigReader) -> Heads:
    return read_heads(config, hidden_key="n_embd", heads_key="n_head", head_dim_key=False, kv_heads_key=False)


def _inner_width(config: ConfigReader, hidden: int, key: str = "n_inner") -> int:
    return config.number_or(key, 4 * hidden, "4 × the model's width", field="ffn.width")


def tied_head(config: ConfigReader, name: str, hidden: int, *, bias: bool = False) -> list[WeightGroup]:
    """The output matrix, where it is not the embeddings'."""
    return head(name, hidden, config.number("vocab_size"), tied=config.flag("tie_word_embeddings"), bias=bias)


NEO_KINDS = ("global", "local")


def gpt2(config: ConfigReader) -> Architecture:
    """One fused matrix for queries, keys and values, stored [in, out]; learned positions."""
    config.refuse_keys("add_cross_attention")
    heads, num_layers = _gpt_heads(config), config.num_layers("n_layer")
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.h.{}"
    width = _inner_width(config, hidden)
    positions = config.number("n_positions", field="trained_context_tokens")
    weights = [
        *embedding("transformer.wte", config.number("vocab_size"), hidden),
        *embedding("transformer.wpe", positions, hidden),
        *conv1d_linear(f"{layer}.attn.c_attn", hidden, 3 * hidden, layers=layers),
        *conv1d_linear(f"{layer}.attn.c_proj", hidden, hidden, layers=layers),
        *conv1d_linear(f"{layer}.mlp.c_fc", hidden, width, layers=layers),
        *conv1d_linear(f"{layer}.mlp.c_proj", width, hidden, layers=layers),
        *norms([f"{layer}.ln_1", f"{layer}.ln_2"], hidden, bias=True, layers=layers),
        *norm("transformer.ln_f", hidden, bias=True),
        *tied_head(config, "lm_head", hidden),
    ]
    return full_attention_model(config, "gpt2", heads, num_layers, width, weights, context=positions)


def openai_gpt(config: ConfigReader) -> Architecture:
    """GPT-1: transformers 5.24.0 keeps no cache and computes the whole context again for every token."""
    heads, num_layers = _gpt_heads(config), config.num_layers("n_layer")
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.h.{}"
    positions = config.number("n_positions", field="trained_context_tokens")
    weights = [
        *embedding("transformer.tokens_embed", config.number("vocab_size"), hidden),
        *embedding("transformer.positions_embed", positions, hidden),
        *conv1d_linear(f"{layer}.attn.c_attn", hidden, 3 * hidden, layers=layers),
        *conv1d_linear(f"{layer}.attn.c_proj", hidden, hidden, layers=layers),
        *conv1d_linear(f"{layer}.mlp.c_fc", hidden, 4 * hidden, layers=layers),
        *conv1d_linear(f"{layer}.mlp.c_proj", 4 * hidden, hidden, layers=layers),
        *norms([f"{layer}.ln_1", f"{layer}.ln_2"], hidden, bias=True, layers=layers),
        *tied_head(config, "lm_head", hidden),
    ]
    none: list[CacheKind | None] = [NoCache()] * num_layers
    return full_attention_model(config, "gpt", heads, num_layers, 4 * hidden, weights, context=positions, library=none)


def gpt_bigcode(config: ConfigReader) -> Architecture:
    """With multi_query all heads share one key and value, whatever num_key_value_heads says."""
    config.refuse_keys("add_cross_attention")
    heads, num_layers = _gpt_heads(config), config.num_layers("n_layer")
    if config.flag("multi_query"):
        heads = _with_kv_heads(config, heads, 1, "multi_query")
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.h.{}"
    width, qkv = _inner_width(config, hidden), hidden + 2 * heads.kv_heads * heads.head_dim
    positions = config.number("n_positions", field="trained_context_tokens")
    weights = [
        *embedding("transformer.wte", config.number("vocab_size"), hidden),
        *embedding("transformer.wpe", positions, hidden),
        *linear(f"{layer}.attn.c_attn", hidden, qkv, bias=True, layers=layers),
        *linear(f"{layer}.attn.c_proj", hidden, hidden, bias=True, layers=layers),
        *linear(f"{layer}.mlp.c_fc", hidden, width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.c_proj", width, hidden, bias=True, layers=layers),
        *norms([f"{layer}.ln_1", f"{layer}.ln_2"], hidden, bias=True, layers=layers),
        *norm("transformer.ln_f", hidden, bias=True),
        *tied_head(config, "lm_head", hidden),
    ]
    return full_attention_model(config, "starcoder", heads, num_layers, width, weights, context=positions)


def _with_kv_heads(config: ConfigReader, heads: Heads, kv_heads: int, why: str) -> Heads:
    config.sources["num_kv_heads"] = f"derived: {why}"
    return Heads(hidden=heads.hidden, q_heads=heads.q_heads, kv_heads=kv_heads, head_dim=heads.head_dim)


def gptj(config: ConfigReader) -> Architecture:
    """Separate matrices for queries, keys and values; rotary positions."""
    return _gptj_like(config, "gptj", fused=False)


def codegen(config: ConfigReader) -> Architecture:
    """As GPT-J, with queries, keys and values in one matrix."""
    return _gptj_like(config, "codegen", fused=True)


def _gptj_like(config: ConfigReader, family: str, *, fused: bool) -> Architecture:
    """GPT-J and CodeGen: no biases in attention, one in the output matrix; ``fused``: qkv_proj."""
    heads, num_layers = _gpt_heads(config), config.num_layers("n_layer")
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.h.{}"
    width = _inner_width(config, hidden)
    names = (("qkv_proj", 3 * hidden),) if fused else tuple((name, hidden) for name in ("q_proj", "k_proj", "v_proj"))
    projections = [
        group for name, wide in names for group in linear(f"{layer}.attn.{name}", hidden, wide, layers=layers)
    ]
    weights = [
        *embedding("transformer.wte", config.number("vocab_size"), hidden),
        *projections,
        *linear(f"{layer}.attn.out_proj", hidden, hidden, layers=layers),
        *linear(f"{layer}.mlp.fc_in", hidden, width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.fc_out", width, hidden, bias=True, layers=layers),
        *norm(f"{layer}.ln_1", hidden, bias=True, layers=layers),
        *norm("transformer.ln_f", hidden, bias=True),
        *tied_head(config, "lm_head", hidden, bias=True),
    ]
    return full_attention_model(
        config, family, heads, num_layers, width, weights, context=read_context(config, "n_positions")
    )


def gpt_neo(config: ConfigReader) -> Architecture:
    """Local layers attend to a window, but transformers 5.24.0 keeps every token for them too."""
    heads = read_heads(config, heads_key="num_heads", head_dim_key=False, kv_heads_key=False)
    num_layers = config.num_layers("num_layers")
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.h.{}"
    width = _inner_width(config, hidden, "intermediate_size")
    positions = config.number("max_position_embeddings", field="trained_context_tokens")
    weights = [
        *embedding("transformer.wte", config.number("vocab_size"), hidden),
        *embedding("transformer.wpe", positions, hidden),
        *attention(f"{layer}.attn.attention", hidden, heads.q_heads, heads.q_heads, heads.head_dim,
                   out_bias=True, layers=layers, out="out_proj"),
        *linear(f"{layer}.mlp.c_fc", hidden, width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.c_proj", width, hidden, bias=True, layers=layers),
        *norms([f"{layer}.ln_1", f"{layer}.ln_2"], hidden, bias=True, layers=layers),
        *norm("transformer.ln_f", hidden, bias=True),
        *tied_head(config, "lm_head", hidden),
    ]  # fmt: skip
    caches = _neo_caches(config, heads.full, num_layers)
    kept = [heads.full if cache is None else cache for cache in library_caches(config, heads.full, num_layers)]
    library = [None if held == cache else held for held, cache in zip(kept, caches, strict=True)]
    return full_attention_model(
        config, "gptneo", heads, num_layers, width, weights, context=positions, caches=caches, library=library
    )


def _neo_caches(config: ConfigReader, full: FullAttention, num_layers: int) -> list[CacheKind]:
    """attention_types: [[["global", "local"], 12]] is twelve times a global and a local layer."""
    stated, source = config.lookup("attention_types")
    if stated is None:
        stated, source = [[["global", "local"], 12]], f"{config.defaults.source}: attention_types"
    kinds: list[str] = []
    for entry in stated if isinstance(stated, list | tuple) else [stated]:
        match entry:
            case [list() as names, int() as times] if 0 < times <= num_layers and all(n in NEO_KINDS for n in names):
                kinds += names * times
            case _:
                raise config.malformed("attention_types", 'pairs such as [["global", "local"], 12] were expected')
    if len(kinds) != num_layers:
        raise config.malformed("attention_types", f"it describes {len(kinds)} layers of {num_layers}")
    config.sources["layer_types"] = source
    window = config.number("window_size", field="window_tokens")
    local = SlidingWindow(num_kv_heads=full.num_kv_heads, key_dim=full.key_dim, value_dim=full.value_dim,
                          window_tokens=window)  # fmt: skip
    return [full if kind == "global" else local for kind in kinds]


def gpt_neox(config: ConfigReader) -> Architecture:
    """One fused matrix for queries, keys and values; rotary positions."""
    heads, num_layers = read_heads(config, head_dim_key=False, kv_heads_key=False), config.num_layers()
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "gpt_neox.layers.{}"
    width, bias = config.number("intermediate_size", field="ffn.width"), config.flag("attention_bias")
    weights = [
        *embedding("gpt_neox.embed_in", config.number("vocab_size"), hidden),
        *linear(f"{layer}.attention.query_key_value", hidden, 3 * hidden, bias=bias, layers=layers),
        *linear(f"{layer}.attention.dense", hidden, hidden, bias=bias, layers=layers),
        *linear(f"{layer}.mlp.dense_h_to_4h", hidden, width, bias=True, layers=layers),
        *linear(f"{layer}.mlp.dense_4h_to_h", width, hidden, bias=True, layers=layers),
        *norms([f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"], hidden, bias=True, layers=layers),
        *norm("gpt_neox.final_layer_norm", hidden, bias=True),
        *tied_head(config, "lm_head", hidden),
    ]
    return full_attention_model(config, "gptneox", heads, num_layers, width, weights, context=read_context(config))


def gpt_neox_japanese(config: ConfigReader) -> Architecture:
    """Only the last layer's attention has a bias."""
    heads, num_layers = read_heads(config, head_dim_key=False, kv_heads_key=False), config.num_layers()
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "gpt_neox_japanese.layers.{}"
    width = hidden * config.number("intermediate_multiple_size")
    config.sources["ffn.width"] = "derived: hidden_size × intermediate_multiple_size"
    weights = [
        *embedding("gpt_neox_japanese.embed_in", config.number("vocab_size"), hidden),
        *linear(f"{layer}.attention.query_key_value", hidden, 3 * hidden, layers=layers),
        *linear(f"{layer}.attention.dense", hidden, hidden, layers=layers),
        *parameter(f"{layer}.attention.dense_bias", (hidden,), layers=layers[-1:]),
        *linear(f"{layer}.mlp.dense_h_to_4h", hidden, width, layers=layers),
        *linear(f"{layer}.mlp.dense_4h_to_h", width, hidden, layers=layers),
        *norms([f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"], hidden, bias=True, layers=layers),
        *norm("gpt_neox_japanese.final_layer_norm", hidden, bias=True),
        *tied_head(config, "embed_out", hidden),
    ]
    return full_attention_model(
        config, "gptneox-japanese", heads, num_layers, width, weights, context=read_context(config)
    )


def bloom(config: ConfigReader) -> Architecture:
    """``n_embed``, of older files, wins over hidden_size."""
    hidden_key = "n_embed" if config.given("n_embed") else "hidden_size"
    heads = read_heads(config, hidden_key=hidden_key, heads_key="n_head", head_dim_key=False, kv_heads_key=False)
    num_layers = config.num_layers("n_layer")
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.h.{}"
    config.sources["ffn.width"] = f"derived: 4 × {hidden_key}"
    weights = [
        *embedding("transformer.word_embeddings", config.number("vocab_size"), hidden),
        *norm("transformer.word_embeddings_layernorm", hidden, bias=True),
        *linear(f"{layer}.self_attention.query_key_value", hidden, 3 * hidden, bias=True, layers=layers),
        *linear(f"{layer}.self_attention.dense", hidden, hidden, bias=True, layers=layers),
        *linear(f"{layer}.mlp.dense_h_to_4h", hidden, 4 * hidden, bias=True, layers=layers),
        *linear(f"{layer}.mlp.dense_4h_to_h", 4 * hidden, hidden, bias=True, layers=layers),
        *norms([f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"], hidden, bias=True, layers=layers),
        *norm("transformer.ln_f", hidden, bias=True),
        *tied_head(config, "lm_head", hidden),
    ]
    return full_attention_model(
        config, "bloom", heads, num_layers, 4 * hidden, weights, context=read_context(config, "seq_length")
    )


def ctrl(config: ConfigReader) -> Architecture:
    """Biases everywhere, on the output matrix too; positions are computed."""
    heads, num_layers = _gpt_heads(config), config.num_layers("n_layer")
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.h.{}"
    width = config.number("dff", field="ffn.width")
    projections = [
        group
        for name in ("Wq", "Wk", "Wv", "dense")
        for group in linear(f"{layer}.multi_head_attention.{name}", hidden, hidden, bias=True, layers=layers)
    ]
    weights = [
        *embedding("transformer.w", config.number("vocab_size"), hidden),
        *projections,
        *linear(f"{layer}.ffn.0", hidden, width, bias=True, layers=layers),
        *linear(f"{layer}.ffn.2", width, hidden, bias=True, layers=layers),
        *norms([f"{layer}.layernorm1", f"{layer}.layernorm2"], hidden, bias=True, layers=layers),
        *norm("transformer.layernorm", hidden, bias=True),
        *tied_head(config, "lm_head", hidden, bias=True),
    ]
    return full_attention_model(
        config, "ctrl", heads, num_layers, width, weights, context=read_context(config, "n_positions")
    )


READERS = {"openai-gpt": openai_gpt, "gpt-sw3": gpt2}
