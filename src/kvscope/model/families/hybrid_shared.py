"""Zamba: Mamba layers, some of which first run a transformer block whose weights they share with one another.

Every such layer keeps keys and values of its own, whatever it shares. Facts of transformers 5.24.0's ZambaModel and
Zamba2Model, which tie the blocks only where the config ties its word embeddings too.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from kvscope.model.config_reader import ConfigReader
from kvscope.model.families.architecture import Architecture, Heads
from kvscope.model.families.hybrid_layers import (
    HYBRID,
    LINEAR,
    build_layers,
    stated_types,
    trained_context,
    which,
)
from kvscope.model.families.recurrent_mixers import Mamba2, check_mamba2, mamba2_mixer, time_step_rank
from kvscope.model.modules import Layers, conv1d, embedding, gated_mlp, head, linear, norm, parameter
from kvscope.model.spec import CacheKind, DenseFfn, HybridCache, RecurrentState, StateTensor, WeightGroup

# Zamba2Config's own 54 layers, where a config names none.
ZAMBA2_HYBRID = (6, 12, 18, 24, 30, 36, 42, 47, 51)
ZAMBA2_LAYERS = 54
MAX_HYBRID = 300  # no model has more than a few dozen; their adapters may number its square
ZAMBA2_LONG_CONTEXT = 16384  # Zamba2Config, with use_long_context


def zamba(config: ConfigReader) -> Architecture:
    """Mamba 1 in several heads; one shared block."""
    num_layers = config.num_layers()
    types = stated_types(config, num_layers, "layers_block_type") or _zamba_types(config, num_layers)
    heads = _heads(config)
    mixer = ZambaMixer(
        hidden=config.number("hidden_size"),
        inner=config.number("mamba_expand") * config.number("hidden_size"),
        heads=config.number("n_mamba_heads"),
        state=config.number("mamba_d_state"),
        kernel=config.number("mamba_d_conv"),
        rank=time_step_rank(config, "mamba_dt_rank", config.number("hidden_size")),
        conv_bias=config.flag("mamba_conv_bias"),
        proj_bias=config.flag("mamba_proj_bias"),
    )
    if mixer.inner % mixer.heads:
        raise config.malformed("n_mamba_heads", f"{mixer.heads} heads do not divide a width of {mixer.inner}")
    width = config.number("intermediate_size", field="ffn.width")
    weights = []
    for block in _owners(config, types, 1):
        prefix = f"model.layers.{block[0]}.shared_transf"
        weights += _block_attention(prefix, heads, mixer.hidden)
        weights += gated_mlp(f"{prefix}.feed_forward", mixer.hidden, width)
    for name, layers in (("mamba", which(types, LINEAR)), ("mamba_decoder.mamba", which(types, HYBRID))):
        weights += _zamba_mixer(f"model.layers.{{}}.{name}", mixer, layers)
    return _model(config, "zamba", types, heads, mixer.cache, width, weights)


def _zamba_types(config: ConfigReader, num_layers: int) -> tuple[str, ...]:
    """Two plain layers, a hybrid one, then one hybrid in every attn_layer_period."""
    config.sources["layer_types"] = "derived: attn_layer_period and attn_layer_offset"
    if num_layers < 3:
        raise config.refuse("it has fewer than three layers and names no layers_block_type")
    period, offset = config.number("attn_layer_period"), config.number("attn_layer_offset", smallest=0)
    rest = (HYBRID if index % period == offset else LINEAR for index in range(num_layers - 3))
    return (LINEAR, LINEAR, HYBRID, *rest)


def _heads(config: ConfigReader) -> Heads:
    """Attention over the hidden state and the embedding side by side: twice as wide as the model."""
    hidden = config.number("hidden_size")
    q_heads = config.number("num_attention_heads", field="num_q_heads")
    if q_heads > 2 * hidden:
        raise config.malformed("num_attention_heads", f"more heads than the {2 * hidden} elements they share")
    return Heads(
        hidden=config.number_or("attention_hidden_size", 2 * hidden, "2 × hidden_size"),
        q_heads=q_heads,
        kv_heads=config.number_or("num_key_value_heads", q_heads, "num_attention_heads", field="num_kv_heads"),
        head_dim=config.number_or(
            "attention_head_dim", 2 * hidden // q_heads, "2 × hidden_size / num_attention_heads", field="key_dim"
        ),
    )


def _owners(config: ConfigReader, types: Sequence[str], num_blocks: int) -> list[list[int]]:
    """Hybrid layers that use one block's weights together, the layer that holds them first."""
    hybrid = which(types, HYBRID)
    if not config.flag("tie_word_embeddings"):
        return [[index] for index in hybrid]
    return [list(hybrid[start::num_blocks]) for start in range(min(num_blocks, len(hybrid)))]


def _block_attention(prefix: str, heads: Heads, hidden: int) -> list[WeightGroup]:
    queries, keys = heads.q_heads * heads.head_dim, heads.kv_heads * heads.head_dim
    return [
        *linear(f"{prefix}.self_attn.q_proj", heads.hidden, queries),
        *linear(f"{prefix}.self_attn.k_proj", heads.hidden, keys),
        *linear(f"{prefix}.self_attn.v_proj", heads.hidden, keys),
        *linear(f"{prefix}.self_attn.o_proj", queries, hidden),
        *norm(f"{prefix}.input_layernorm", heads.hidden),
        *norm(f"{prefix}.pre_ff_layernorm", hidden),
    ]


@dataclass(frozen=True, slots=True, kw_only=True)
class ZambaMixer:
    """Mamba 1 whose channels are split over heads, each with its own projections."""

    hidden: int
    inner: int
    heads: int
    state: int
    kernel: int
    rank: int
    conv_bias: bool
    proj_bias: bool

    @property
    def cache(self) -> RecurrentState:
        shape = (self.heads, self.inner // self.heads, self.state)
        return RecurrentState(
            form="mamba",
            conv_channels=self.inner,
            conv_kernel=self.kernel,
            states=(StateTensor(name="ssm_state", shape=shape),),
        )


def _zamba_mixer(prefix: str, mixer: ZambaMixer, layers: Layers) -> list[WeightGroup]:
    if not layers:
        return []
    heads, per_head = mixer.heads, mixer.inner // mixer.heads
    return [
        *linear(f"{prefix}.in_proj", mixer.hidden, 2 * mixer.inner, bias=mixer.proj_bias, layers=layers),
        *conv1d(f"{prefix}.conv1d", mixer.inner, mixer.kernel, bias=mixer.conv_bias, layers=layers),
        *parameter(f"{prefix}.x_proj_weight", (heads, mixer.rank + 2 * mixer.state, per_head), layers=layers),
        *parameter(f"{prefix}.dt_proj_weight", (heads, per_head, mixer.rank), layers=layers),
        *parameter(f"{prefix}.dt_proj_bias", (heads, per_head), layers=layers),
        *parameter(f"{prefix}.A_log", (heads, per_head, mixer.state), layers=layers),
        *parameter(f"{prefix}.D", (heads, per_head), layers=layers),
        *linear(f"{prefix}.out_proj", mixer.inner, mixer.hidden, bias=mixer.proj_bias, layers=layers),
    ]


def zamba2(config: ConfigReader) -> Architecture:
    """Mamba 2; num_mem_blocks shared blocks in turn, with a low-rank adapter for each layer that uses one."""
    num_layers = config.num_layers()
    if not config.given("layers_block_type"):
        config.refuse_keys("layer_types")  # the class takes its shared blocks' places from its own default then
    types = stated_types(config, num_layers, "layers_block_type") or _zamba2_types(config, num_layers)
    if config.given("hybrid_layer_ids") and config.numbers("hybrid_layer_ids") != which(types, HYBRID):
        raise config.refuse("its hybrid_layer_ids are not those of its layers_block_type")
    heads = _heads(config)
    mixer = _zamba2_mixer(config)
    width = config.number_or("intermediate_size", 4 * mixer.hidden, "4 × hidden_size", field="ffn.width")
    weights = []
    num_blocks = config.number("num_mem_blocks")
    owners = _owners(config, types, num_blocks)
    for number, block in enumerate(owners):
        prefix = f"model.layers.{block[0]}.shared_transformer"
        bias = config.flag("add_bias_linear")
        weights += _block_attention(prefix, heads, mixer.hidden)
        weights += linear(f"{prefix}.feed_forward.gate_up_proj", mixer.hidden, 2 * width, bias=bias)
        weights += linear(f"{prefix}.feed_forward.down_proj", width, mixer.hidden, bias=bias)
        weights += _adapters(config, prefix, heads, mixer.hidden, width, number % num_blocks, which(types, HYBRID))
    for name, layers in (("mamba", which(types, LINEAR)), ("mamba_decoder.mamba", which(types, HYBRID))):
        weights += mamba2_mixer(f"model.layers.{{}}.{name}", mixer, layers=layers)
    return _model(config, "zamba2", types, heads, mixer.cache, width, weights)


def _zamba2_types(config: ConfigReader, num_layers: int) -> tuple[str, ...]:
    if num_layers != ZAMBA2_LAYERS:
        raise config.refuse(f"it names no layers_block_type and has {num_layers} layers, not {ZAMBA2_LAYERS}")
    config.sources["layer_types"] = config.defaults.source
    return tuple(HYBRID if index in ZAMBA2_HYBRID else LINEAR for index in range(num_layers))


def _zamba2_mixer(config: ConfigReader) -> Mamba2:
    hidden, heads = config.number("hidden_size"), config.number("n_mamba_heads")
    inner = config.number("mamba_expand") * hidden
    bias = config.flag("add_bias_linear")
    mixer = Mamba2(
        hidden=hidden,
        inner=inner,
        heads=heads,
        head_dim=config.number_or("mamba_headdim", inner // heads, "mamba_expand × hidden_size / n_mamba_heads"),
        groups=config.number("mamba_ngroups"),
        state=config.number("mamba_d_state"),
        kernel=config.number("mamba_d_conv"),
        conv_bias=True,  # whatever use_conv_bias says
        in_bias=bias,
        out_bias=bias,
    )
    return check_mamba2(config, mixer, "n_mamba_heads")


def _adapters(
    config: ConfigReader, prefix: str, heads: Heads, hidden: int, width: int, block: int, hybrid: Layers
) -> list[WeightGroup]:
    """A pair of narrow matrices for each hybrid layer whose turn it is: of the MLP, and of attention where asked."""
    if len(hybrid) > MAX_HYBRID:
        raise config.malformed("layers_block_type", f"up to {MAX_HYBRID} hybrid layers were expected")
    rank = config.number("adapter_rank")
    pairs = [("feed_forward.gate_up_proj_adapter_list", hidden, 2 * width)]
    if config.flag("use_shared_attention_adapter"):
        pairs += [(f"self_attn.linear_{name}_adapter_list", heads.hidden, heads.hidden) for name in "qkv"]
    turns = range(block, len(hybrid), config.number("num_mem_blocks"))
    return [
        group
        for name, inputs, outputs in pairs
        for turn in turns
        for group in (
            *linear(f"{prefix}.{name}.{turn}.0", inputs, rank),
            *linear(f"{prefix}.{name}.{turn}.1", rank, outputs),
        )
    ]


def _model(
    config: ConfigReader,
    family: str,
    types: Sequence[str],
    heads: Heads,
    recurrent: RecurrentState,
    width: int,
    weights: list[WeightGroup],
) -> Architecture:
    hidden, vocab = config.number("hidden_size"), config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    plain, hybrid = which(types, LINEAR), which(types, HYBRID)
    if plain:
        weights = [*weights, *norm("model.layers.{}.input_layernorm", hidden, layers=plain)]
    if hybrid:
        weights = [*weights, *norm("model.layers.{}.mamba_decoder.input_layernorm", hidden, layers=hybrid)]
        weights += linear("model.layers.{}.linear", hidden, hidden, layers=hybrid)
    caches: dict[str, CacheKind] = {LINEAR: recurrent, HYBRID: HybridCache(attention=heads.full, recurrent=recurrent)}
    ffns = [DenseFfn(width=width) if name == HYBRID else None for name in types]
    return Architecture(
        family=family,
        layers=build_layers(config, types, caches, heads.q_heads, ffns),
        weights=(
            *embedding("model.embed_tokens", vocab, hidden),
            *weights,
            *norm("model.final_layernorm", hidden),
            *head("lm_head", hidden, vocab, tied=tied),
        ),
        vocab_size=vocab,
        hidden_size=hidden,
        trained_context_tokens=_context(config, family),
        is_tied=tied,
    )


def _context(config: ConfigReader, family: str) -> int | None:
    if family == "zamba2" and config.flag("use_long_context"):
        config.sources["trained_context_tokens"] = "derived: use_long_context"
        return ZAMBA2_LONG_CONTEXT
    return trained_context(config)
