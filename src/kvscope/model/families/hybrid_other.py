"""MiniMax (lightning attention), Qwen4-Exp (delta nets, indexed attention, n-gram embeddings) and Dory (layers that run
again). Facts of transformers 5.24.0's classes."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from kvscope.model.config_reader import MAX_LAYERS, ConfigReader
from kvscope.model.families.architecture import Architecture, Heads, read_heads
from kvscope.model.families.hybrid_conv import windowed
from kvscope.model.families.hybrid_delta import gated_attention, interval_types, qwen_ffn
from kvscope.model.families.hybrid_layers import (
    FULL,
    LINEAR,
    SLIDING,
    attention_weights,
    build_layers,
    stated_types,
    trained_context,
    which,
)
from kvscope.model.families.recurrent_mixers import delta_net_mixer, read_delta_net
from kvscope.model.modules import (
    Layers,
    conv1d,
    embedding,
    fused_experts,
    gated_mlp,
    head,
    linear,
    norm,
    norms,
    parameter,
)
from kvscope.model.spec import (
    CacheKind,
    DenseFfn,
    IndexedAttention,
    LayerSpec,
    MoeFfn,
    RecurrentState,
    StateTensor,
    WeightGroup,
)


def minimax(config: ConfigReader) -> Architecture:
    """Lightning attention keeps one matrix per head. The attention layers' masks use sliding_window where there is
    one, while the cache goes by layer_types and keeps everything."""
    num_layers = config.num_layers()
    types = stated_types(config, num_layers)
    if types is None:
        config.sources["layer_types"] = config.defaults.source
        types = tuple(LINEAR if index % 2 else FULL for index in range(num_layers))
    return _minimax(config, types)


def _minimax(config: ConfigReader, types: Sequence[str]) -> Architecture:
    heads = read_heads(config)
    width = config.number("intermediate_size", field="ffn.width")
    num_experts = config.number("num_local_experts")
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings", default=False)
    every = tuple(range(len(types)))
    layer = "model.layers.{}"
    names = [f"{layer}.{name}_layernorm" for name in ("input", "post_attention")]
    weights = [
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *_lightning(f"{layer}.self_attn", heads, which(types, LINEAR)),
        *attention_weights(f"{layer}.self_attn", heads, layers=which(types, FULL)),
        *norms(names, heads.hidden, layers=every),
        *parameter(f"{layer}.mlp.gate.weight", (num_experts, heads.hidden), layers=every),
        *fused_experts(f"{layer}.mlp.experts", num_experts, heads.hidden, width, layers=every),
        *norm("model.norm", heads.hidden),
        *head("lm_head", heads.hidden, vocab, tied=tied),
    ]
    shape = (heads.q_heads, heads.head_dim, heads.head_dim)
    state = RecurrentState(form="lightning", states=(StateTensor(name="kv_state", shape=shape, dtype="float32"),))
    caches: dict[str, CacheKind] = {LINEAR: state, FULL: heads.full}
    library: dict[str, CacheKind | tuple[CacheKind, ...]] = {}
    if config.optional("sliding_window", smallest=1) is not None:
        caches[FULL], library[FULL] = windowed(config, heads), heads.full
    per_token = config.number("num_experts_per_tok")
    ffn = MoeFfn(num_experts=num_experts, experts_per_token=per_token, width=width)
    return Architecture(
        family="minimax",
        layers=build_layers(config, types, caches, heads.q_heads, ffn, library),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


def _lightning(prefix: str, heads: Heads, layers: Layers) -> list[WeightGroup]:
    if not layers:
        return []
    width = heads.q_heads * heads.head_dim
    return [
        *linear(f"{prefix}.qkv_proj", heads.hidden, 3 * width, layers=layers),
        *linear(f"{prefix}.out_proj", width, heads.hidden, layers=layers),
        *linear(f"{prefix}.output_gate", heads.hidden, width, layers=layers),
        *norm(f"{prefix}.norm", width, layers=layers),
    ]


MINIMAX_ATTENTION = {0: LINEAR, 1: FULL}


def minimax_text_01(config: ConfigReader) -> Architecture:
    """MiniMax's own files before the library knew the family: attn_type_list, 0 lightning and 1 softmax."""
    config.refuse_keys("shared_intermediate_size")
    numbers = config.numbers("attn_type_list")
    num_layers = config.num_layers()
    if numbers is None or len(numbers) != num_layers or not set(numbers) <= set(MINIMAX_ATTENTION):
        raise config.malformed("attn_type_list", f"a list of {num_layers} numbers, 0 or 1, was expected")
    config.sources["layer_types"] = config.sources["attn_type_list"]
    return _minimax(config, [MINIMAX_ATTENTION[number] for number in numbers])


def minimax_m1(config: ConfigReader) -> Architecture:
    """The same modules as MiniMax-Text-01."""
    return minimax_text_01(config)


INDEXED = "indexed_attention"


def qwen4_exp_text(config: ConfigReader) -> Architecture:
    """Qwen3.5's layers over several residual streams; attention chooses tokens by an index, and delta layers of
    ple_layer_ids add hashed n-gram embeddings."""
    num_layers = config.num_layers()
    heads = read_heads(config)
    types = tuple(INDEXED if name == FULL else name for name in interval_types(config, num_layers, INDEXED))
    net = read_delta_net(config, heads.hidden)
    streams = config.number("hc_count")
    index_dim = config.number("indexer_head_dim", field="index_dim")
    ffn_weights, ffns = qwen_ffn(config, heads.hidden, [True] * num_layers)
    ple = _read_ple(config, heads.hidden, types)
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings")
    weights = [
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *delta_net_mixer("model.layers.{}.linear_attn", net, fused=False, layers=which(types, LINEAR)),
        *gated_attention(config, heads, which(types, INDEXED)),
        *_indexer(config, heads.hidden, index_dim, which(types, INDEXED)),
        *ffn_weights,
        *_hyper_connections(config, heads.hidden, streams, tuple(range(num_layers))),
        *([] if ple is None else _ple_weights(ple)),
        *head("lm_head", heads.hidden, vocab, tied=tied),
    ]
    caches: dict[str, CacheKind] = {
        LINEAR: net.cache,
        INDEXED: IndexedAttention(main=heads.full, index_dim=index_dim),
    }
    layers = build_layers(config, types, caches, heads.q_heads, ffns)
    indexed = [layer for layer in layers if isinstance(layer.cache, IndexedAttention)]
    return Architecture(
        family="qwen4_exp",
        layers=tuple(_as_kept(layer, ple, layer in indexed[:1]) for layer in layers),
        weights=tuple(weights),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


def _indexer(config: ConfigReader, hidden: int, index_dim: int, layers: Layers) -> list[WeightGroup]:
    if config.number("indexer_kv_heads") != 1:
        raise config.malformed("indexer_kv_heads", "1 was expected")
    if not layers:
        return []
    prefix = "model.layers.{}.self_attn.indexer"
    outputs = (config.number("indexer_n_heads") + 1) * index_dim
    return [
        *linear(f"{prefix}.index_qk_proj", hidden, outputs, layers=layers),
        *norms([f"{prefix}.q_layernorm", f"{prefix}.k_layernorm"], index_dim, layers=layers),
    ]


def _hyper_connections(config: ConfigReader, hidden: int, streams: int, layers: Layers) -> list[WeightGroup]:
    """Of both halves of every layer, and one without block_inject_weight at the end."""
    wide, rank = streams * hidden, config.number("hc_lowrank")
    places = ("model.layers.{}.attn_hyper_connection", "model.layers.{}.mlp_hyper_connection")
    weights: list[WeightGroup] = []
    for prefix, numbers in ((places[0], layers), (places[1], layers), ("model.hyper_connection_mixer", ())):
        weights += norm(f"{prefix}.hc_norm", wide, layers=numbers)
        weights += linear(f"{prefix}.input_mix_weight_down", wide, rank, layers=numbers)
        weights += linear(f"{prefix}.input_mix_weight_up", rank, wide, layers=numbers)
        if numbers:
            weights += linear(f"{prefix}.block_inject_weight", wide, streams, layers=numbers)
    return weights


@dataclass(frozen=True, slots=True, kw_only=True)
class Ngrams:
    """Per-layer embeddings. ``layers``: those that have them, from 0. ``rows``: of each one's table. ``kernel`` taps
    at a distance of ``context + 1`` tokens, over ``channels``."""

    layers: Layers
    rows: tuple[int, ...]
    hidden: int
    channels: int
    width: int
    head_width: int
    kernel: int
    context: int

    @property
    def columns(self) -> int:
        return (self.kernel - 1) * (self.context + 1)


MAX_NGRAM_HEADS = 4096  # each has a prime of its own to be found


def _read_ple(config: ConfigReader, hidden: int, types: Sequence[str]) -> Ngrams | None:
    numbers = sorted(set(config.numbers("ple_layer_ids", smallest=1) or ()))
    if not numbers:
        return None
    layers = tuple(number - 1 for number in numbers)
    if not set(layers) <= set(which(types, LINEAR)):
        raise config.malformed("ple_layer_ids", "numbers of linear_attention layers, counted from 1, were expected")
    size = config.number("ngram_size", smallest=2, limit=MAX_NGRAM_HEADS)
    heads = (size - 1) * config.number("heads_per_ngram", limit=MAX_NGRAM_HEADS)
    if heads * len(layers) > MAX_NGRAM_HEADS:
        raise config.malformed("heads_per_ngram", f"up to {MAX_NGRAM_HEADS} n-gram heads were expected")
    width = config.number_or("ple_embed_dim", hidden, "hidden_size")
    if width % heads:
        raise config.malformed("ple_embed_dim", f"{heads} n-gram heads do not divide {width}")
    primes = _primes_from(config.number("ngram_vocab_size_base"))
    divisor = config.number("make_ngram_vocab_size_divisible_by")
    # Every head of every such layer has the next prime number of rows; a layer's table is padded to the divisor.
    rows = tuple(-(-sum(next(primes) for _ in range(heads)) // divisor) * divisor for _ in layers)
    return Ngrams(
        layers=layers,
        rows=rows,
        hidden=hidden,
        channels=hidden * config.number("hc_count"),
        width=width,
        head_width=width // heads,
        kernel=config.number("ple_conv_kernel_size"),
        context=size - 1,
    )


def _primes_from(start: int) -> Iterator[int]:
    candidate = start
    while True:
        if _is_prime(candidate):
            yield candidate
        candidate += 1


def _is_prime(number: int) -> bool:
    """Miller-Rabin with bases that decide every number below 3.3e24."""
    bases = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37, 41)
    if number < 2:
        return False
    for base in bases:
        if number % base == 0:
            return number == base
    odd, twos = number - 1, 0
    while odd % 2 == 0:
        odd, twos = odd // 2, twos + 1
    for base in bases:
        power = pow(base, odd, number)
        if power in (1, number - 1):
            continue
        for _ in range(twos - 1):
            power = power * power % number
            if power == number - 1:
                break
        else:
            return False
    return True


def _ple_weights(ple: Ngrams) -> list[WeightGroup]:
    prefix = "model.layers.{}.ple"
    tables = [
        WeightGroup(
            name=f"model.layers.{index}.ple.ple_embedding.ngram_embedding.weight",
            shape=(rows, ple.head_width),
            kind="embedding",
        )
        for index, rows in zip(ple.layers, ple.rows, strict=True)
    ]
    return [
        *tables,
        *linear(f"{prefix}.key_proj", ple.width, ple.channels, layers=ple.layers),
        *linear(f"{prefix}.value_proj", ple.width, ple.hidden, layers=ple.layers),
        *norms([f"{prefix}.norm_{name}" for name in ("key", "query", "conv")], ple.channels, layers=ple.layers),
        *conv1d(f"{prefix}.conv1d", ple.channels, ple.kernel, layers=ple.layers),
    ]


POSITION_ROWS = 3  # of time, height and width


def _as_kept(layer: LayerSpec, ple: Ngrams | None, is_first_indexed: bool) -> LayerSpec:
    """The layer with what the library keeps in it for others: the first indexed one holds every token's position, a
    delta layer with n-grams the columns of their own convolution and their last token ids."""
    if isinstance(layer.cache, IndexedAttention) and is_first_indexed:
        return replace(layer, transformers_cache=replace(layer.cache, position_rows=POSITION_ROWS))
    if ple is None or layer.index not in ple.layers:
        return layer
    assert isinstance(layer.cache, RecurrentState)
    more = (
        StateTensor(name="ngram_conv_state", shape=(ple.channels, ple.columns)),
        StateTensor(name="ngram_token_ids", shape=(ple.context,), dtype="int64"),
    )
    return replace(
        layer,
        cache=replace(layer.cache, states=(*layer.cache.states, *more)),
        transformers_cache=(layer.cache, RecurrentState(form="ngram", states=more)),
    )


def dory(config: ConfigReader) -> Architecture:
    """Layers in the middle run n_recurrent_loops times, and keep their cache once per run ("per_loop") or once
    ("last_loop"). Listed here as they are kept: a layer that runs again is another entry, at the end."""
    types, sections = _dory_layout(config)
    heads = read_heads(config)
    width = config.number("intermediate_size", field="ffn.width")
    vocab, tied = config.number("vocab_size"), config.flag("tie_word_embeddings")
    caches: dict[str, CacheKind] = {FULL: heads.full}
    if SLIDING in types:
        caches[SLIDING] = windowed(config, heads)
    loops = config.number("n_recurrent_loops", limit=MAX_LAYERS)
    if loops * len(types) > MAX_LAYERS:
        raise config.malformed("n_recurrent_loops", f"more than {MAX_LAYERS} layers in all runs")
    mode = config.word("recurrent_kv_cache_mode")
    if mode not in ("per_loop", "last_loop"):
        raise config.malformed("recurrent_kv_cache_mode", '"per_loop" or "last_loop" was expected')
    again = types[sections[0] : sections[0] + sections[1]] * (loops - 1) if mode == "per_loop" else ()
    return Architecture(
        family="dory",
        layers=build_layers(config, (*types, *again), caches, heads.q_heads, DenseFfn(width=width)),
        weights=tuple(_dory_weights(config, heads, width, vocab, tied, tuple(range(len(types))))),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=trained_context(config),
        is_tied=tied,
    )


def _dory_layout(config: ConfigReader) -> tuple[tuple[str, ...], tuple[int, int, int]]:
    """Layer types, and how many layers come before, in and after the loop. Files that list "mlp" among the layer types
    count attention and MLP apart: every count there is twice ours."""
    stated = config.words("layer_types")
    factor = 2 if stated is not None and "mlp" in stated else 1
    num_layers = config.num_layers() // factor
    before, after = (config.number(f"n_{p}_layers", smallest=0) // factor for p in ("input", "output"))
    inside = config.optional("n_recurrent_layers", smallest=0)
    inside = num_layers - before - after if inside is None else inside // factor
    if inside < 0 or before + inside + after != num_layers:
        raise config.malformed("n_input_layers", f"the sections do not make up {num_layers} layers")
    if stated is None:
        config.sources["layer_types"] = config.defaults.source
        return tuple(FULL if (i + 1) % 4 == 0 else SLIDING for i in range(num_layers)), (before, inside, after)
    types = stated[::factor]
    if len(types) != num_layers or (factor == 2 and set(stated[1::2]) != {"mlp"}):
        raise config.malformed("layer_types", f"{len(stated)} entries for {num_layers} layers")
    return types, (before, inside, after)


def _dory_weights(
    config: ConfigReader, heads: Heads, width: int, vocab: int, tied: bool, layers: Layers
) -> list[WeightGroup]:
    """nGPT: no norms; scales of the residual, of queries and keys, of the gates and of the logits."""
    layer, queries = "model.layers.{}", heads.q_heads * heads.head_dim
    scales = {
        "lambda_1": heads.hidden,
        "lambda_2": heads.hidden,
        "self_attn.sqk": queries,
        "self_attn.s_gate": queries,
        "mlp.suv_gate": width,
        "mlp.suv_up": width,
    }
    return [
        *embedding("model.embed_tokens", vocab, heads.hidden),
        *attention_weights(f"{layer}.self_attn", heads, bias=config.flag("attention_bias"), layers=layers),
        *linear(f"{layer}.self_attn.gate_proj", heads.hidden, queries, layers=layers),
        *gated_mlp(f"{layer}.mlp", heads.hidden, width, bias=config.flag("mlp_bias"), layers=layers),
        *(group for name, size in scales.items() for group in parameter(f"{layer}.{name}", (size,), layers=layers)),
        *head("lm_head", heads.hidden, vocab, tied=tied),
        *parameter("lm_head.logit_scale", (vocab,)),
    ]
