"""Families of latent attention that first chooses tokens by an index (DSA): DeepSeek V3.2 and what is built like it."""

from collections.abc import Sequence
from dataclasses import replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.latent import assemble, layer_norms, leading_dense, spaced_sparse
from kvscope.model.families.mla import Mla, feed_forward, mla_attention, mlp_layer_types, read_mla, read_moe
from kvscope.model.modules import Layers, linear, norm, parameter
from kvscope.model.spec import CacheKind, IndexedAttention, WeightGroup

# DeepSeek-V3.2's own format of an index key: float8, with one float32 scale for every 128 elements.
SCALE_GROUP, SCALE_BYTES = 128, 4


def deepseek_v32(config: ConfigReader) -> Architecture:
    """DeepSeek V3 with an index in every layer."""
    full = [True] * config.num_layers()
    sparse = mlp_layer_types(config, leading_dense(config))
    return _indexed(config, "deepseek32", full, sparse, float8_index=True)


def glm_moe_dsa(config: ConfigReader) -> Architecture:
    """As DeepSeek V3.2; layers whose indexer is "shared" use the last full one's choice and keep no index keys."""
    sparse = mlp_layer_types(config, leading_dense(config))
    return _indexed(config, "glm_moe_dsa", scheduled_indexers(config), sparse, float8_index=True)


def hy_v4(config: ConfigReader) -> Architecture:
    """Every fourth layer after the first has an index; gated attention with sinks, hyper-connections around it."""
    count = config.num_layers()
    full = indexer_types(config, [index == 0 or (index - 1) % 4 == 0 for index in range(count)])
    sparse = mlp_layer_types(config, [index > 0 for index in range(count)])
    found = _indexed(config, "hy_v4", full, sparse, float8_index=False, index_dtype="float32")
    assert found.weights is not None
    mla, mult, every = read_mla(config), config.number("hc_mult"), tuple(range(count))
    layer, gate = "model.layers.{}", mla.q_heads * mla.value
    extra = [
        *linear(f"{layer}.self_attn.gate_proj", mla.hidden, gate, layers=every),
        *parameter(f"{layer}.self_attn.sinks", (mla.q_heads,), layers=every, dtype="float32"),
        *parameter("model.hc_head.hc_fn", (mult, mult * mla.hidden), dtype="float32"),
        *parameter("model.hc_head.hc_base", (mult,), dtype="float32"),
        *parameter("model.hc_head.hc_scale", (1,), dtype="float32"),
    ]
    for side in ("attn_hc", "ffn_hc"):
        extra += parameter(f"{layer}.{side}.fn", (2 * mult, mult * mla.hidden), layers=every, dtype="float32")
        extra += parameter(f"{layer}.{side}.base", (2 * mult,), layers=every, dtype="float32")
        extra += parameter(f"{layer}.{side}.scale", (2,), layers=every, dtype="float32")
    kept = [replace(group, dtype="float32") if group.kind == "head" else group for group in found.weights]
    return replace(found, weights=(*kept, *extra))


def axk2(config: ConfigReader) -> Architecture:
    """Queries and an output gate from one matrix; norms with a low-rank gate of their own."""
    sparse = mlp_layer_types(config, spaced_sparse(config))
    found = _indexed(config, "axk2", [True] * len(sparse), sparse, float8_index=False)
    assert found.weights is not None
    mla, rank, every = _read_ranked(config), config.number("gated_norm_rank"), tuple(range(len(sparse)))
    assert mla.q_rank is not None
    layer = "model.layers.{}"
    replaced = (f"{layer}.self_attn.q_b_proj", f"{layer}.input_layernorm", f"{layer}.post_attention_layernorm")
    weights = [group for group in found.weights if not group.name.startswith(replaced)]
    gated = mla.q_heads * (mla.query + mla.value)
    weights += linear(f"{layer}.self_attn.q_gate_proj", 2 * mla.q_rank, gated, layers=every)
    weights += _gated_norm(f"{layer}.input_layernorm", mla.hidden, rank, every)
    after, dense = f"{layer}.post_attention_layernorm", tuple(i for i in every if not sparse[i])
    weights += _gated_norm(after, mla.hidden, rank, tuple(i for i in every if sparse[i]))
    if dense:
        weights += norm(after, mla.hidden, layers=dense)
    return replace(found, weights=tuple(weights))


def _gated_norm(name: str, hidden: int, rank: int, layers: Layers) -> list[WeightGroup]:
    if not layers:
        return []
    return [
        *norm(f"{name}.norm", hidden, layers=layers),
        *linear(f"{name}.mlp.fc1", hidden, rank, layers=layers),
        *linear(f"{name}.mlp.fc2", rank, hidden, layers=layers),
    ]


def indexer(
    prefix: str, hidden: int, inputs: int, heads: int, width: int, *, layers: Layers, dtype: str | None = None
) -> list[WeightGroup]:
    """wq_b, wk, k_norm and weights_proj; ``dtype``: of the last two where the model fixes one."""
    if not layers:
        return []
    fixed = [
        *norm(f"{prefix}.k_norm", width, bias=True, layers=layers),
        *linear(f"{prefix}.weights_proj", hidden, heads, layers=layers),
    ]
    return [
        *linear(f"{prefix}.wq_b", inputs, heads * width, layers=layers),
        *linear(f"{prefix}.wk", hidden, width, layers=layers),
        *(replace(group, dtype=dtype) for group in fixed),
    ]


def indexer_types(config: ConfigReader, derived: Sequence[bool]) -> list[bool]:
    """Which layers have an index of their own: indexer_types ("full"), else as the class derives it."""
    types = config.words("indexer_types")
    if types is None:
        return list(derived)
    if len(types) != len(derived) or not set(types) <= {"full", "shared"}:
        raise config.malformed("indexer_types", f'one "full" or "shared" for each of {len(derived)} layers expected')
    return [name == "full" for name in types]


def scheduled_indexers(config: ConfigReader) -> list[bool]:
    """indexer_types, else index_topk_pattern ("FSSF"), else every index_topk_freq-th (1) layer from
    index_skip_topk_offset (2) on, and those before."""
    count = config.num_layers()
    pattern = config.config.get("index_topk_pattern")
    if config.given("indexer_types") or pattern is None:
        spacing = max(config.optional("index_topk_freq") or 1, 1)
        stated = config.optional("index_skip_topk_offset")
        offset = 2 if stated is None else stated
        return indexer_types(config, [max(i - offset + 1, 0) % spacing == 0 for i in range(count)])
    names = {"F": True, "S": False, "full": True, "shared": False}
    if not isinstance(pattern, str | list) or len(pattern) < count or any(name not in names for name in pattern):
        raise config.malformed("index_topk_pattern", f'"F" or "S" for each of {count} layers was expected')
    config.sources["indexer_types"] = f"derived: {config.prefix}index_topk_pattern"
    return [names[name] for name in pattern[:count]]


def index_cache(config: ConfigReader, main: CacheKind, *, float8: bool, dtype: str | None = None) -> IndexedAttention:
    """``main`` with an index key beside it. ``float8``: the model's own format is float8 with scales."""
    width = config.number("index_head_dim", field="index_dim")
    scaled = width + SCALE_BYTES * -(-width // SCALE_GROUP)
    return IndexedAttention(
        main=main,  # type: ignore[arg-type]  # of the kinds that have an index, as its callers see to
        index_dim=width,
        index_row_bytes=scaled if float8 else None,
        index_dtype=dtype,
    )


def check_indexed(config: ConfigReader, count: int) -> None:
    """Refuse layer_types that are anything but "indexed_attention"."""
    types = config.layer_types(count)
    if types is not None and not set(types) <= {"indexed_attention", "deepseek_sparse_attention"}:
        raise config.refuse("it has layers that are not indexed_attention")


def _read_ranked(config: ConfigReader) -> Mla:
    mla = read_mla(config)
    if mla.q_rank is None:
        raise config.refuse("its q_lora_rank is null, and the index is made from the query's latent")
    return mla


def _indexed(
    config: ConfigReader,
    family: str,
    full: Sequence[bool],
    sparse: Sequence[bool],
    *,
    float8_index: bool,
    index_dtype: str | None = None,
) -> Architecture:
    mla, count, prefix = _read_ranked(config), len(full), "model.layers.{}"
    assert mla.q_rank is not None
    check_indexed(config, count)
    width, experts = config.number("intermediate_size", field="ffn.width"), read_moe(config, num_experts_wins=True)
    ffn_weights, ffn = feed_forward(f"{prefix}.mlp", mla.hidden, width, experts, sparse)
    heads, index_dim = config.number("index_n_heads"), config.number("index_head_dim")
    own_index = tuple(index for index, is_full in enumerate(full) if is_full)
    weights = [
        *mla_attention(f"{prefix}.self_attn", mla, bias=config.flag("attention_bias"), layers=tuple(range(count))),
        *indexer(f"{prefix}.self_attn.indexer", mla.hidden, mla.q_rank, heads, index_dim,
                 layers=own_index, dtype=index_dtype),
        *ffn_weights,
        *layer_norms(mla, count),
    ]  # fmt: skip
    indexed = index_cache(config, mla.cache, float8=float8_index)
    caches: list[CacheKind] = [indexed if is_full else mla.cache for is_full in full]
    return assemble(config, family, weights, caches, ffn, mla)
