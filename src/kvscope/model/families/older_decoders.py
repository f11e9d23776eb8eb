"""Older families with shapes of their own: Falcon, MPT, OPT, XGLM, BioGPT, CPM-Ant, Fuyu's text, XLNet, Reformer."""

import math
from collections.abc import Mapping
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import (
    Architecture,
    Heads,
    attention_layers,
    full_attention_model,
    library_caches,
    read_context,
    read_heads,
)
from kvscope.model.families.dense import persimmon
from kvscope.model.families.older import tied_head
from kvscope.model.modules import attention, embedding, head, linear, norm, norms, parameter
from kvscope.model.spec import CacheKind, DenseFfn, FullAttention, HiddenStateMemory, NoCache, WeightGroup

LEARNED_POSITIONS_OFFSET = 2  # OPT and BioGPT keep two more positions than they declare


def falcon(config: ConfigReader) -> Architecture:
    """Three forms. The new one (40B) shares keys among groups of heads, but transformers 5.24.0 caches a copy for every
    query head; the old one keeps one head with multi_query, whatever num_kv_heads says, else all."""
    hidden_key = "n_embed" if config.given("n_embed") else "hidden_size"
    heads = read_heads(config, hidden_key=hidden_key, head_dim_key=False, kv_heads_key=False)
    num_layers, is_new = config.num_layers(), config.flag("new_decoder_architecture")
    kv_heads = config.number_or("num_kv_heads", heads.q_heads, "num_attention_heads")
    if not is_new and config.flag("multi_query"):
        kv_heads = 1
    elif not is_new and kv_heads != heads.q_heads:
        raise config.refuse("num_kv_heads differs from num_attention_heads without multi_query")
    cached = replace(heads, kv_heads=kv_heads)
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.h.{}"
    width = config.number_or("ffn_hidden_size", 4 * hidden, "4 × hidden_size", field="ffn.width")
    bias, qkv = config.flag("bias"), (heads.q_heads + 2 * kv_heads) * heads.head_dim
    weights = [
        *embedding("transformer.word_embeddings", config.number("vocab_size"), hidden),
        *linear(f"{layer}.self_attention.query_key_value", hidden, qkv, bias=bias, layers=layers),
        *linear(f"{layer}.self_attention.dense", hidden, hidden, bias=bias, layers=layers),
        *linear(f"{layer}.mlp.dense_h_to_4h", hidden, width, bias=bias, layers=layers),
        *linear(f"{layer}.mlp.dense_4h_to_h", width, hidden, bias=bias, layers=layers),
        *norms([f"{layer}.{name}" for name in _falcon_norms(config, is_new)], hidden, bias=True, layers=layers),
        *norm("transformer.ln_f", hidden, bias=True),
        *tied_head(config, "lm_head", hidden),
    ]
    held = library_caches(config, heads.full if is_new else cached.full, num_layers)
    kept = [(heads if is_new else cached).full if cache is None else cache for cache in held]
    library = [None if cache == cached.full else cache for cache in kept]
    context = read_context(config)
    return full_attention_model(config, "falcon", cached, num_layers, width, weights, context=context, library=library)


def _falcon_norms(config: ConfigReader, is_new: bool) -> tuple[str, ...]:
    if not config.flag("parallel_attn"):
        return ("input_layernorm", "post_attention_layernorm")
    count = config.number_or("num_ln_in_parallel_attn", 2 if is_new else 1, "new_decoder_architecture")
    return ("ln_attn", "ln_mlp") if count == 2 else ("input_layernorm",)


def mpt(config: ConfigReader) -> Architecture:
    """ALiBi, no biases, a feed-forward of 4 × the width (expansion_ratio is not read by the class)."""
    inner = config.config.get("attn_config")
    kind = inner.get("attn_type", "multihead_attention") if isinstance(inner, Mapping) else "multihead_attention"
    if kind != "multihead_attention" or (isinstance(inner, Mapping) and inner.get("qk_ln")):
        raise config.refuse(f"its attention is {kind}, or has norms over queries and keys")
    heads = read_heads(config, hidden_key="d_model", heads_key="n_heads", head_dim_key=False, kv_heads_key=False)
    num_layers = config.num_layers("n_layers")
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "transformer.blocks.{}"
    config.sources["ffn.width"] = "derived: 4 × d_model"
    weights = [
        *embedding("transformer.wte", config.number("vocab_size"), hidden),
        *linear(f"{layer}.attn.Wqkv", hidden, 3 * hidden, layers=layers),
        *linear(f"{layer}.attn.out_proj", hidden, hidden, layers=layers),
        *linear(f"{layer}.ffn.up_proj", hidden, 4 * hidden, layers=layers),
        *linear(f"{layer}.ffn.down_proj", 4 * hidden, hidden, layers=layers),
        *norms([f"{layer}.norm_1", f"{layer}.norm_2"], hidden, layers=layers),
        *norm("transformer.norm_f", hidden),
        *tied_head(config, "lm_head", hidden),
    ]
    context = read_context(config, "max_seq_len")
    return full_attention_model(config, "mpt", heads, num_layers, 4 * hidden, weights, context=context)


def opt(config: ConfigReader) -> Architecture:
    """Embeddings may be narrower than the model, with a matrix in and one out; norms may have no weights."""
    heads, num_layers = read_heads(config, head_dim_key=False, kv_heads_key=False), config.num_layers()
    hidden, layers, layer = heads.hidden, tuple(range(num_layers)), "model.decoder.layers.{}"
    width, bias = config.number("ffn_dim", field="ffn.width"), config.flag("enable_bias")
    outer = config.number_or("word_embed_proj_dim", hidden, "hidden_size")
    positions = config.number("max_position_embeddings", field="trained_context_tokens")
    weights = [
        *embedding("model.decoder.embed_tokens", config.number("vocab_size"), outer),
        *embedding("model.decoder.embed_positions", positions + LEARNED_POSITIONS_OFFSET, hidden),
        *_bart_like_layer(layer, heads, width, layers, bias=bias),
        *tied_head(config, "lm_head", outer),
    ]
    if outer != hidden:
        weights += linear("model.decoder.project_in", outer, hidden)
        weights += linear("model.decoder.project_out", hidden, outer)
    if config.flag("layer_norm_elementwise_affine"):
        names = [f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"]
        weights += norms(names, hidden, bias=True, layers=layers)
        if config.flag("do_layer_norm_before") and not config.flag("_remove_final_layer_norm"):
            weights += norm("model.decoder.final_layer_norm", hidden, bias=True)
    return full_attention_model(config, "opt", heads, num_layers, width, weights, context=positions)


def _bart_like_layer(
    layer: str, heads: Heads, width: int, layers: tuple[int, ...], *, bias: bool = True
) -> list[WeightGroup]:
    """Attention and feed-forward as BART's decoder names them, without its norms."""
    return [
        *attention(f"{layer}.self_attn", heads.hidden, heads.q_heads, heads.q_heads, heads.head_dim,
                   qkv_bias=bias, out_bias=bias, layers=layers, out="out_proj"),
        *linear(f"{layer}.fc1", heads.hidden, width, bias=bias, layers=layers),
        *linear(f"{layer}.fc2", width, heads.hidden, bias=bias, layers=layers),
    ]  # fmt: skip


def xglm(config: ConfigReader) -> Architecture:
    """Its positions are computed, not kept."""
    config.refuse_keys("add_cross_attention")
    heads = read_heads(
        config, hidden_key="d_model", heads_key="attention_heads", head_dim_key=False, kv_heads_key=False
    )
    num_layers = config.num_layers("num_layers")
    layers, layer = tuple(range(num_layers)), "model.layers.{}"
    width = config.number("ffn_dim", field="ffn.width")
    weights = [
        *embedding("model.embed_tokens", config.number("vocab_size"), heads.hidden),
        *_bart_like_layer(layer, heads, width, layers),
        *norms([f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"], heads.hidden, bias=True, layers=layers),
        *norm("model.layer_norm", heads.hidden, bias=True),
        *tied_head(config, "lm_head", heads.hidden),
    ]
    return full_attention_model(config, "xglm", heads, num_layers, width, weights, context=read_context(config))


def biogpt(config: ConfigReader) -> Architecture:
    """BART's layers; learned positions, of which the first two are reserved."""
    heads, num_layers = read_heads(config, head_dim_key=False, kv_heads_key=False), config.num_layers()
    layers, layer = tuple(range(num_layers)), "biogpt.layers.{}"
    width = config.number("intermediate_size", field="ffn.width")
    positions = config.number("max_position_embeddings", field="trained_context_tokens")
    weights = [
        *embedding("biogpt.embed_tokens", config.number("vocab_size"), heads.hidden),
        *embedding("biogpt.embed_positions", positions + LEARNED_POSITIONS_OFFSET, heads.hidden),
        *_bart_like_layer(layer, heads, width, layers),
        *norms([f"{layer}.self_attn_layer_norm", f"{layer}.final_layer_norm"], heads.hidden, bias=True, layers=layers),
        *norm("biogpt.layer_norm", heads.hidden, bias=True),
        *tied_head(config, "output_projection", heads.hidden),
    ]
    return full_attention_model(config, "biogpt", heads, num_layers, width, weights, context=positions)


def cpmant(config: ConfigReader) -> Architecture:
    """Every sequence starts with a trained prompt of prompt_length positions, whose keys and values are kept too. Its
    output matrix is its own, whatever tie_word_embeddings says."""
    config.refuse_keys("sliding_window", "attention_chunk_size", "layer_types")
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads", field="num_q_heads")
    head_dim, width = config.number("dim_head", field="key_dim"), config.number("dim_ff", field="ffn.width")
    num_layers, vocab = config.num_layers(), config.number("vocab_size")
    prompt, segments = config.number("prompt_length"), config.number("segment_types")
    layers, layer = tuple(range(num_layers)), "cpmant.encoder.layers.{}"
    attention, ffn = f"{layer}.self_att", f"{layer}.ffn"
    weights = [
        *norm("cpmant.encoder.output_layernorm", hidden),
        *norms([f"{attention}.layernorm_before_attention", f"{ffn}.layernorm_before_ffn"], hidden, layers=layers),
        *linear(f"{attention}.self_attention.project_q", hidden, heads * head_dim, layers=layers),
        *linear(f"{attention}.self_attention.project_k", hidden, heads * head_dim, layers=layers),
        *linear(f"{attention}.self_attention.project_v", hidden, heads * head_dim, layers=layers),
        *linear(f"{attention}.self_attention.attention_out", heads * head_dim, hidden, layers=layers),
        *linear(f"{ffn}.ffn.w_in.w_0", hidden, width, layers=layers),
        *linear(f"{ffn}.ffn.w_in.w_1", hidden, width, layers=layers),
        *linear(f"{ffn}.ffn.w_out", width, hidden, layers=layers),
        *embedding("cpmant.segment_embedding", segments, hidden),
        *embedding("cpmant.input_embedding", vocab + config.number("prompt_types") * prompt, hidden),
        *parameter(
            "cpmant.position_bias.relative_attention_bias",
            (segments**2 + config.number("position_bias_num_buckets"), heads),
        ),
        *head("lm_head", hidden, vocab, tied=False),
    ]
    cache = FullAttention(num_kv_heads=heads, key_dim=head_dim, value_dim=head_dim, prefix_tokens=prompt)
    config.sources["num_kv_heads"] = "derived: num_attention_heads"
    return Architecture(
        family="cpmant",
        layers=attention_layers([cache] * num_layers, heads, DenseFfn(width=width)),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=None,
        is_tied=False,
    )


# The keys of a flat (older) fuyu config that describe its text part (FuyuConfig, transformers 5.24.0).
FUYU_TEXT_KEYS = (
    "vocab_size", "max_position_embeddings", "hidden_size", "intermediate_size", "num_hidden_layers",
    "num_attention_heads", "hidden_act", "qk_layernorm", "rope_scaling", "rope_theta",
)  # fmt: skip


def fuyu(config: ConfigReader) -> Architecture:
    """Persimmon, with image patches entering through one matrix."""
    text = config.nested("text_config", "persimmon")
    if not config.given("text_config"):
        flat = {key: config.config[key] for key in FUYU_TEXT_KEYS if key in config.config}
        text = ConfigReader(flat, "persimmon", where=config.where, sources=config.sources)
    if text.model_type != "persimmon":
        raise config.refuse(f"its text part is {text.model_type!r}")
    tied = config.flag("tie_word_embeddings")
    text.config = {**text.config, "tie_word_embeddings": tied}
    inner = persimmon(text)
    patch = config.number("patch_size") ** 2 * config.number("num_channels")
    renamed = [
        replace(group, name=f"model.language_{group.name}" if group.name.startswith("model.") else group.name)
        for group in inner.weights or ()
    ]
    vision = linear("model.vision_embed_tokens", patch, inner.hidden_size, bias=True, part="vision")
    return replace(inner, weights=(*renamed, *vision))


def xlnet(config: ConfigReader) -> Architecture:
    """Keeps hidden states, not keys and values: the last mem_len of them, or all where mem_len is 0 or null."""
    config.refuse_keys("reuse_len", "bi_data")  # bi_data halves the batch of all but the first of them
    heads = read_heads(config, hidden_key="d_model", heads_key="n_head", head_dim_key=False, kv_heads_key=False)
    stated = config.optional("d_head")
    if stated and stated != heads.head_dim:
        raise config.malformed("d_head", f"{stated}; d_model / n_head = {heads.head_dim} was expected")
    num_layers, hidden = config.num_layers("n_layer"), heads.hidden
    width, vocab = config.number("d_inner", field="ffn.width"), config.number("vocab_size", "n_token")
    memory = config.optional("mem_len") or None
    cache: CacheKind = HiddenStateMemory(width=hidden, memory_tokens=memory)
    if not config.flag("use_mems_eval"):
        cache = NoCache()
    tied = config.flag("tie_word_embeddings")
    return Architecture(
        family="xlnet",
        layers=attention_layers([cache] * num_layers, heads.q_heads, DenseFfn(width=width)),
        weights=(
            *parameter("transformer.mask_emb", (1, 1, hidden)),
            *embedding("transformer.word_embedding", vocab, hidden),
            *_xlnet_layers(heads, width, tuple(range(num_layers))),
            *head("lm_loss", hidden, vocab, tied=tied, bias=True),
        ),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=None,
        is_tied=tied,
    )


def _xlnet_layers(heads: Heads, width: int, layers: tuple[int, ...]) -> list[WeightGroup]:
    layer, shape = "transformer.layer.{}", (heads.q_heads, heads.head_dim)
    found = []
    for name in ("q", "k", "v", "o", "r"):
        found += parameter(f"{layer}.rel_attn.{name}", (heads.hidden, *shape), layers=layers)
    for name in ("r_r_bias", "r_s_bias", "r_w_bias"):
        found += parameter(f"{layer}.rel_attn.{name}", shape, layers=layers)
    found += parameter(f"{layer}.rel_attn.seg_embed", (2, *shape), layers=layers)
    found += norms([f"{layer}.rel_attn.layer_norm", f"{layer}.ff.layer_norm"], heads.hidden, bias=True, layers=layers)
    found += linear(f"{layer}.ff.layer_1", heads.hidden, width, bias=True, layers=layers)
    found += linear(f"{layer}.ff.layer_2", width, heads.hidden, bias=True, layers=layers)
    return found


def reformer(config: ConfigReader) -> Architecture:
    """Keeps the normalised hidden states of every token, and in LSH layers the bucket number of each token for every
    head and hash. A longer prefill is computed at a multiple of the chunks (ReformerModel, transformers 5.24.0)."""
    types = config.words("attn_layers") or ()
    if not types or not set(types) <= {"local", "lsh"}:
        raise config.malformed("attn_layers", 'a list of "local" and "lsh" was expected')
    hidden, heads = config.number("hidden_size"), config.number("num_attention_heads", field="num_q_heads")
    width, vocab = config.number("feed_forward_size", field="ffn.width"), config.number("vocab_size")
    config.sources["layer_types"] = config.sources["attn_layers"]
    caches = _reformer_caches(config, types, hidden, heads)
    return Architecture(
        family="reformer",
        layers=attention_layers(caches, heads, DenseFfn(width=width)),
        weights=(
            *embedding("reformer.embeddings.word_embeddings", vocab, hidden),
            *_reformer_positions(config, hidden),
            *_reformer_layers(types, hidden, heads * config.number("attention_head_size"), width),
            *norm("reformer.encoder.layer_norm", 2 * hidden, bias=True),
            *parameter("lm_head.bias", (vocab,)),
            *linear("lm_head.decoder", 2 * hidden, vocab, bias=True),
        ),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=read_context(config),
        is_tied=False,
    )


def _reformer_caches(config: ConfigReader, types: tuple[str, ...], hidden: int, heads: int) -> list[CacheKind]:
    chunks = {kind: config.number(f"{kind}_attn_chunk_length") for kind in sorted(set(types))}
    shortest, multiple = min(chunks.values()), math.lcm(*chunks.values())
    local = HiddenStateMemory(width=hidden, memory_tokens=None, padding=(shortest, multiple))
    if "lsh" not in chunks:
        return [local] * len(types)
    chunk = chunks["lsh"]
    lsh = replace(
        local,
        extra_row_bytes=8 * heads * config.number("num_hashes"),
        extra_from_tokens=1 + (shortest if multiple > chunk else chunk),
        extra_always_tokens=chunk,
    )
    return [lsh if kind == "lsh" else local for kind in types]


def _reformer_positions(config: ConfigReader, hidden: int) -> list[WeightGroup]:
    place = "reformer.embeddings.position_embeddings"
    if not config.flag("axial_pos_embds"):
        return embedding(f"{place}.embedding", config.number("max_position_embeddings"), hidden)
    shape = config.numbers("axial_pos_shape", smallest=1) or ()
    widths = config.numbers("axial_pos_embds_dim", smallest=1) or ()
    if len(shape) != len(widths) or sum(widths) != hidden:
        raise config.malformed("axial_pos_embds_dim", f"one width per axis, {hidden} together, was expected")
    weights = []
    for axis, (rows, width) in enumerate(zip(shape, widths, strict=True)):
        sides = tuple(rows if index == axis else 1 for index in range(len(shape)))
        weights += parameter(f"{place}.weights.{axis}", (*sides, width), dtype="float32")
    return weights


def _reformer_layers(types: tuple[str, ...], hidden: int, inner: int, width: int) -> list[WeightGroup]:
    layer, layers = "reformer.encoder.layers.{}", tuple(range(len(types)))
    of_kind = {kind: tuple(index for index in layers if types[index] == kind) for kind in ("local", "lsh")}
    names = (("local", "query"), ("local", "key"), ("lsh", "query_key"))
    weights = [
        group
        for kind, name in names
        if of_kind[kind]
        for group in linear(f"{layer}.attention.self_attention.{name}", hidden, inner, layers=of_kind[kind])
    ]
    return [
        *weights,
        *linear(f"{layer}.attention.self_attention.value", hidden, inner, layers=layers),
        *linear(f"{layer}.attention.output.dense", inner, hidden, layers=layers),
        *linear(f"{layer}.feed_forward.dense.dense", hidden, width, bias=True, layers=layers),
        *linear(f"{layer}.feed_forward.output.dense", width, hidden, bias=True, layers=layers),
        *norms([f"{layer}.attention.layer_norm", f"{layer}.feed_forward.layer_norm"], hidden, bias=True, layers=layers),
    ]
