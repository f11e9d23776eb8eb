"""Multi-head latent attention and the mixture of experts that goes with it: DeepSeek's modules, which many families
share. Other families' readers build on these.

Facts of transformers 5.24.0's DeepseekV3Attention, DeepseekV3MoE and the classes derived from them.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from kvscope.model.config_reader import ConfigReader
from kvscope.model.modules import Layers, fused_experts, gated_mlp, linear, norm, parameter
from kvscope.model.spec import CacheKind, DenseFfn, FullAttention, LatentAttention, MoeFfn, WeightGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Mla:
    """The numbers of latent attention. ``q_rank`` None: queries are one dense projection. A key of a head is ``nope``
    elements made from the latent and ``rope`` rotary ones, which all heads share."""

    hidden: int
    q_heads: int
    q_rank: int | None
    kv_rank: int
    nope: int
    rope: int
    value: int
    query: int

    @property
    def cache(self) -> LatentAttention:
        """The latent and the rotary key; ``expanded``: every head's keys and values, for engines without MLA."""
        return LatentAttention(
            latent_dim=self.kv_rank,
            rope_dim=self.rope,
            expanded=FullAttention(num_kv_heads=self.q_heads, key_dim=self.nope + self.rope, value_dim=self.value),
        )


def read_mla(config: ConfigReader, *, value_dim: int | None = None) -> Mla:
    """kv_lora_rank, q_lora_rank (null: none), qk_nope_head_dim, qk_rope_head_dim, v_head_dim. num_key_value_heads and
    head_dim play no part. ``value_dim``: what a missing v_head_dim means; None: it must be known."""
    hidden = config.number("hidden_size")
    q_heads = config.number("num_attention_heads", field="num_q_heads")
    nope = config.number("qk_nope_head_dim", field="nope_dim")
    rope = config.number("qk_rope_head_dim", field="rope_dim")
    if value_dim is None:
        value = config.number("v_head_dim", field="value_dim")
    else:
        value = config.number_or("v_head_dim", value_dim, "hidden_size / num_attention_heads", field="value_dim")
    return Mla(
        hidden=hidden,
        q_heads=q_heads,
        q_rank=config.optional("q_lora_rank", smallest=1),
        kv_rank=config.number("kv_lora_rank", field="latent_dim"),
        nope=nope,
        rope=rope,
        value=value,
        query=nope + rope,
    )


def mla_attention(prefix: str, mla: Mla, *, bias: bool = False, layers: Layers = ()) -> list[WeightGroup]:
    """q_proj, or q_a_proj, q_a_layernorm, q_b_proj; kv_a_proj_with_mqa, kv_a_layernorm, kv_b_proj; o_proj. ``bias``:
    of the projections into the ranks and of o_proj (attention_bias)."""
    queries, latent = mla.q_heads * mla.query, mla.kv_rank + mla.rope
    if mla.q_rank is None:
        found = linear(f"{prefix}.q_proj", mla.hidden, queries, layers=layers)
    else:
        found = [
            *linear(f"{prefix}.q_a_proj", mla.hidden, mla.q_rank, bias=bias, layers=layers),
            *norm(f"{prefix}.q_a_layernorm", mla.q_rank, layers=layers),
            *linear(f"{prefix}.q_b_proj", mla.q_rank, queries, layers=layers),
        ]
    return [
        *found,
        *linear(f"{prefix}.kv_a_proj_with_mqa", mla.hidden, latent, bias=bias, layers=layers),
        *norm(f"{prefix}.kv_a_layernorm", mla.kv_rank, layers=layers),
        *linear(f"{prefix}.kv_b_proj", mla.kv_rank, mla.q_heads * (mla.nope + mla.value), layers=layers),
        *linear(f"{prefix}.o_proj", mla.q_heads * mla.value, mla.hidden, bias=bias, layers=layers),
    ]


def latent_library_caches(
    config: ConfigReader, caches: Sequence[LatentAttention], *, derived: Sequence[str] | None = None
) -> list[CacheKind | None]:
    """What transformers' cache holds for latent layers: DynamicCache goes by layer_types (``derived``: those the class
    makes where the file has none), else by the mere presence of sliding_window or attention_chunk_size."""
    types = config.layer_types(len(caches)) or derived
    window = config.optional("sliding_window", smallest=1)
    chunk = config.optional("attention_chunk_size", smallest=1)
    if types is None:
        types = ["sliding_attention" if window else "chunked_attention" if chunk else "full_attention"] * len(caches)
    return [_library_cache(config, name, cache, window, chunk) for name, cache in zip(types, caches, strict=True)]


def _library_cache(
    config: ConfigReader, layer_type: str, cache: LatentAttention, window: int | None, chunk: int | None
) -> CacheKind | None:
    if layer_type in ("full_attention", "attention", "indexed_attention"):
        return None
    kept = {"sliding_attention": window, "chunked_attention": chunk}.get(layer_type)
    if kept is None:
        raise config.refuse(f"it has a layer of type {layer_type!r} and no width for it")
    return replace(cache, window_tokens=kept)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moe:
    """Routed experts of ``width`` and shared ones of ``shared_width`` together (0: none). ``router_dtype``: the format
    that the router's weight keeps whatever the model's is; None: the model's."""

    num_experts: int
    per_token: int
    width: int
    shared_width: int
    router_dtype: str | None = "float32"

    @property
    def ffn(self) -> MoeFfn:
        return MoeFfn(
            num_experts=self.num_experts,
            experts_per_token=self.per_token,
            width=self.width,
            shared_width=self.shared_width,
        )


def read_moe(config: ConfigReader, *, num_experts_wins: bool = False) -> Moe:
    """n_routed_experts, num_experts_per_tok, moe_intermediate_size, and n_shared_experts times that width shared.
    ``num_experts_wins``: the class takes a num_experts in the file before n_routed_experts."""
    width = config.number("moe_intermediate_size", field="ffn.width")
    key = "num_experts" if num_experts_wins and config.given("num_experts") else "n_routed_experts"
    return Moe(
        num_experts=config.number(key, field="ffn.num_experts"),
        per_token=config.number("num_experts_per_tok", field="ffn.experts_per_token"),
        width=width,
        shared_width=width * config.number("n_shared_experts", smallest=0),
    )


def moe(prefix: str, hidden: int, found: Moe, *, bias: bool = False, layers: Layers = ()) -> list[WeightGroup]:
    """gate.weight (the router), all experts in two tensors, and the shared experts as one gated MLP. ``bias``: of the
    shared one (mlp_bias). No ``layers``: nothing."""
    if not layers:
        return []
    return [
        *parameter(f"{prefix}.gate.weight", (found.num_experts, hidden), layers=layers, dtype=found.router_dtype),
        *fused_experts(f"{prefix}.experts", found.num_experts, hidden, found.width, layers=layers),
        *gated_mlp(f"{prefix}.shared_experts", hidden, found.shared_width, bias=bias, layers=layers),
    ]


def feed_forward(
    prefix: str, hidden: int, dense_width: int, found: Moe, sparse: Sequence[bool], *, bias: bool = False
) -> tuple[list[WeightGroup], list[DenseFfn | MoeFfn]]:
    """Weights and kinds of layers of which the ``sparse`` ones are mixtures of experts and the others gated MLPs."""
    dense_layers = tuple(index for index, is_sparse in enumerate(sparse) if not is_sparse)
    sparse_layers = tuple(index for index, is_sparse in enumerate(sparse) if is_sparse)
    weights = moe(prefix, hidden, found, bias=bias, layers=sparse_layers)
    if dense_layers:
        weights += gated_mlp(prefix, hidden, dense_width, bias=bias, layers=dense_layers)
    return weights, [found.ffn if is_sparse else DenseFfn(width=dense_width) for is_sparse in sparse]


def mlp_layer_types(config: ConfigReader, derived: Sequence[bool]) -> list[bool]:
    """Which layers are mixtures of experts: mlp_layer_types ("sparse"), else as the class derives it."""
    types = config.words("mlp_layer_types")
    if types is None:
        return list(derived)
    if len(types) != len(derived) or not set(types) <= {"sparse", "dense"}:
        raise config.malformed("mlp_layer_types", f'one "sparse" or "dense" for each of {len(derived)} layers expected')
    return [name == "sparse" for name in types]
