"""DeepSeek V4: a window of single tokens, and entries that each stand for a block of tokens.

Facts of transformers 5.24.0's DeepseekV4Config and DeepseekV4Model.
"""

from collections.abc import Mapping

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, attention_layers
from kvscope.model.modules import Layers, embedding, fused_experts, gated_mlp, head, linear, norms, parameter
from kvscope.model.spec import CacheKind, CompressedAttention, LayerSpec, MoeFfn, SlidingWindow, WeightGroup

SLIDING, SPARSE, HEAVY = "sliding_attention", "compressed_sparse_attention", "heavily_compressed_attention"
# Published files give each layer's rate (compress_ratios) in place of its type.
TYPE_OF_RATE = {0: SLIDING, 4: SPARSE, 128: HEAVY}
DEFAULT_RATES = {SPARSE: 4, HEAVY: 128}
FLOAT32 = "float32"


def deepseek_v4(config: ConfigReader) -> Architecture:
    """Every layer is a mixture of experts; its attention slides alone, or beside sparsely or heavily compressed
    entries. Keys and values are one tensor of head_dim elements."""
    count = config.num_layers()
    types, rates = _layer_types(config, count), _rates(config)
    hidden, q_heads = config.number("hidden_size"), config.number("num_attention_heads", field="num_q_heads")
    width = config.number("moe_intermediate_size", field="ffn.width")
    experts = config.number("n_routed_experts", field="ffn.num_experts")
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings")
    every, layer = tuple(range(count)), "model.layers.{}"
    weights = [
        *embedding("model.embed_tokens", vocab, hidden),
        *_attention(config, f"{layer}.self_attn", hidden, q_heads, every),
        *parameter(f"{layer}.mlp.gate.weight", (experts, hidden), layers=every),
        *fused_experts(f"{layer}.mlp.experts", experts, hidden, width, layers=every),
        *gated_mlp(f"{layer}.mlp.shared_experts", hidden, width, bias=config.flag("mlp_bias"), layers=every),
        *_float32_norms([f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm"], hidden, every),
        *_hyper_connections(config, hidden, every),
        *_float32_norms(["model.norm"], hidden, ()),
        *head("lm_head", hidden, vocab, tied=tied),
    ]
    for kind in (SPARSE, HEAVY):
        own = tuple(index for index, name in enumerate(types) if name == kind)
        if own:
            weights += _compressor(config, f"{layer}.self_attn.compressor", hidden, rates[kind], own, kind == SPARSE)
    ffn = MoeFfn(
        num_experts=experts,
        experts_per_token=config.number("num_experts_per_tok", field="ffn.experts_per_token"),
        width=width,
        shared_width=width,
    )
    return Architecture(
        family="deepseek4",
        layers=_layers(config, types, rates, q_heads, ffn),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=config.optional("max_position_embeddings", field="trained_context_tokens"),
        is_tied=tied,
    )


def _layer_types(config: ConfigReader, count: int) -> tuple[str, ...]:
    """layer_types or the older compress_ratios (either may go on for the prediction modules), else two heavily
    compressed layers, then heavy and sparse ones in turn."""
    types = config.words("layer_types")
    ratios = config.numbers("compress_ratios")
    if types is None and ratios is not None:
        if not set(ratios) <= set(TYPE_OF_RATE):
            raise config.refuse("its compress_ratios hold rates other than 0, 4 and 128")
        types = tuple(TYPE_OF_RATE[ratio] for ratio in ratios)
        config.sources["layer_types"] = config.sources["compress_ratios"]
    if types is None:
        config.sources["layer_types"] = f"derived: as {config.defaults.class_name} alternates its layers"
        types = tuple(SPARSE if index >= 2 and index % 2 else HEAVY for index in range(count))
    if len(types) < count:
        raise config.malformed("layer_types", f"{len(types)} entries for {count} layers")
    unknown = set(types[:count]) - {SLIDING, SPARSE, HEAVY}
    if unknown:
        raise config.refuse(f"it has layers of type {', '.join(sorted(unknown))}")
    return types[:count]


def _rates(config: ConfigReader) -> dict[str, int]:
    """Tokens per entry of both kinds: compress_rates, and the older compress_rate_csa and compress_rate_hca over it."""
    stated = config.lookup("compress_rates")[0]
    if stated is not None and not isinstance(stated, Mapping):
        raise config.malformed("compress_rates", "a JSON object was expected")
    rates = DEFAULT_RATES if stated is None else stated
    found = {}
    for kind, older in ((SPARSE, "compress_rate_csa"), (HEAVY, "compress_rate_hca")):
        rate = config.optional(older, smallest=1) or rates.get(kind)
        if isinstance(rate, bool) or not isinstance(rate, int) or rate < 1:
            raise config.malformed("compress_rates", f"a whole number of tokens was expected for {kind}")
        found[kind] = rate
    return found


def _layers(
    config: ConfigReader, types: tuple[str, ...], rates: dict[str, int], q_heads: int, ffn: MoeFfn
) -> tuple[LayerSpec, ...]:
    width = config.number("head_dim", field="key_dim")
    window = config.number("sliding_window", field="window_tokens")
    index_dim = config.number("index_head_dim", field="index_dim")
    kinds: dict[str, CacheKind] = {
        SLIDING: CompressedAttention(entry_dim=width, window_tokens=window, rate_tokens=None),
        HEAVY: CompressedAttention(entry_dim=width, window_tokens=window, rate_tokens=rates[HEAVY]),
        SPARSE: CompressedAttention(
            entry_dim=width, window_tokens=window, rate_tokens=rates[SPARSE], index_dim=index_dim, overlaps=True
        ),
    }
    # The library's plain window layer keeps keys and values apart, though they are the same.
    plain = SlidingWindow(num_kv_heads=1, key_dim=width, value_dim=width, window_tokens=window)
    library = [plain if name == SLIDING else None for name in types]
    return attention_layers([kinds[name] for name in types], q_heads, ffn, library)


def _attention(config: ConfigReader, prefix: str, hidden: int, q_heads: int, layers: Layers) -> list[WeightGroup]:
    width, rank = config.number("head_dim"), config.number("q_lora_rank")
    groups, group_rank = config.number("o_groups"), config.number("o_lora_rank")
    if q_heads * width % groups:
        raise config.malformed("o_groups", f"{groups} does not divide num_attention_heads × head_dim")
    return [
        *linear(f"{prefix}.q_a_proj", hidden, rank, layers=layers),
        *_float32_norms([f"{prefix}.q_a_norm"], rank, layers),
        *linear(f"{prefix}.q_b_proj", rank, q_heads * width, layers=layers),
        *linear(f"{prefix}.kv_proj", hidden, width, layers=layers),
        *_float32_norms([f"{prefix}.kv_norm"], width, layers),
        *linear(f"{prefix}.o_a_proj", q_heads * width // groups, groups * group_rank, layers=layers),
        *linear(f"{prefix}.o_b_proj", groups * group_rank, hidden, layers=layers),
        *parameter(f"{prefix}.sinks", (q_heads,), layers=layers, dtype=FLOAT32),
    ]


def _compressor(
    config: ConfigReader, prefix: str, hidden: int, rate: int, layers: Layers, is_sparse: bool
) -> list[WeightGroup]:
    width = config.number("head_dim")
    found = _block_weights(prefix, hidden, width, rate, layers, overlaps=is_sparse)
    if is_sparse:
        heads, index_dim = config.number("index_n_heads"), config.number("index_head_dim")
        found += [
            *_block_weights(f"{prefix}.indexer", hidden, index_dim, rate, layers, overlaps=True),
            *linear(f"{prefix}.indexer.q_b_proj", config.number("q_lora_rank"), heads * index_dim, layers=layers),
            *linear(f"{prefix}.indexer.scorer.weights_proj", hidden, heads, layers=layers),
        ]
    return found


def _block_weights(
    prefix: str, hidden: int, width: int, rate: int, layers: Layers, *, overlaps: bool
) -> list[WeightGroup]:
    inputs = 2 * width if overlaps else width
    return [
        *linear(f"{prefix}.kv_proj", hidden, inputs, layers=layers),
        *linear(f"{prefix}.gate_proj", hidden, inputs, layers=layers),
        *parameter(f"{prefix}.position_bias", (rate, inputs), layers=layers, dtype=FLOAT32),
        *_float32_norms([f"{prefix}.kv_norm"], width, layers),
    ]


def _hyper_connections(config: ConfigReader, hidden: int, layers: Layers) -> list[WeightGroup]:
    mult = config.number("hc_mult")
    rows, inputs = (2 + mult) * mult, mult * hidden
    found = [
        *parameter("model.hc_head.hc_fn", (mult, inputs), dtype=FLOAT32),
        *parameter("model.hc_head.hc_base", (mult,), dtype=FLOAT32),
        *parameter("model.hc_head.hc_scale", (1,), dtype=FLOAT32),
    ]
    for side in ("attn_hc", "ffn_hc"):
        for name, shape in (("fn", (rows, inputs)), ("base", (rows,)), ("scale", (3,))):
            found += parameter(f"model.layers.{{}}.{side}.{name}", shape, layers=layers, dtype=FLOAT32)
    return found


def _float32_norms(names: list[str], width: int, layers: Layers) -> list[WeightGroup]:
    """Norms that stay float32 whatever the model's format."""
    return [
        WeightGroup(name=group.name, shape=group.shape, kind=group.kind, layers=group.layers, dtype=FLOAT32)
        for group in norms(names, width, layers=layers)
    ]
