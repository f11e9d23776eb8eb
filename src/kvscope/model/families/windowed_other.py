"""Decoders of their own build: ModernBERT's, Moshi's, and the Hierarchical Reasoning Model, which runs its layers
several times. Facts of the classes in transformers 5.24.0."""

from kvscope.model.config_reader import MAX_LAYERS, ConfigReader
from kvscope.model.families.architecture import (
    Architecture,
    Heads,
    attention_layers,
    library_caches,
    read_context,
    read_heads,
    typed_caches,
)
from kvscope.model.families.dense_decoder import Decoder
from kvscope.model.families.windowed_decoder import FULL, SLIDING, keyed_caches, listed_types, read_window
from kvscope.model.modules import attention, embedding, gated_mlp, head, linear, norm, parameter
from kvscope.model.spec import DenseFfn, WeightGroup


def modernbert_decoder(config: ConfigReader) -> Architecture:
    """The first layer of every three is full; the others see half of local_attention, counted without its middle."""
    num_layers = config.num_layers()
    heads = read_heads(config, head_dim_key=False, kv_heads_key=False)
    period = config.optional("global_attn_every_n_layers", smallest=1) or 3
    types = listed_types(config, num_layers, [SLIDING if index % period else FULL for index in range(num_layers)])
    window = _modernbert_window(config) if SLIDING in types else None
    width = config.number("intermediate_size", field="ffn.width")
    vocab = config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    return Architecture(
        family="modernbert",
        layers=attention_layers(typed_caches(config, types, heads.full, window), heads.q_heads, DenseFfn(width=width)),
        weights=tuple(_modernbert_weights(config, heads, width, vocab, num_layers, tied=tied)),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=read_context(config),
        is_tied=tied,
    )


def moshi(config: ConfigReader) -> Architecture:
    """The text decoder alone (MoshiForCausalLM): one embedding more than words, and matrices one module deeper. A file
    of the whole speech model is refused: its audio codec's and depth decoder's tensors are not known."""
    if config.config.get("architectures") not in (None, [], ["MoshiForCausalLM"]):
        raise config.refuse("it is not the text decoder alone")
    config.refuse_keys("tie_word_embeddings")
    decoder = Decoder(
        config=config,
        num_layers=config.num_layers(),
        heads=read_heads(config),
        width=config.number("ffn_dim", field="ffn.width"),
        vocab=config.number("vocab_size"),
        tied=False,
    )
    hidden, layers, heads = decoder.heads.hidden, decoder.layers, decoder.heads
    if hidden % heads.q_heads or decoder.width % 2:
        raise config.malformed("hidden_size", "heads that divide it, and an even ffn_dim, were expected")
    needed, kept = keyed_caches(decoder, read_window(config))
    projections = (("q", hidden, heads.q_heads), ("k", hidden, heads.kv_heads), ("v", hidden, heads.kv_heads))
    attend = [
        group
        for name, inputs, count in projections
        for group in linear(
            decoder.path(f"self_attn.{name}_proj.linear"), inputs, count * heads.head_dim, layers=layers
        )
    ]
    return decoder.model(
        "moshi",
        embedding("model.embed_tokens", decoder.vocab + 1, hidden),
        norm("model.norm", hidden),
        head("lm_head", hidden, decoder.vocab, tied=False),
        attend,
        linear(decoder.path("self_attn.o_proj.linear"), heads.q_heads * heads.head_dim, hidden, layers=layers),
        linear(decoder.path("mlp.fc1"), hidden, decoder.width, layers=layers),
        linear(decoder.path("mlp.fc2"), decoder.width // 2, hidden, layers=layers),
        decoder.norms(),
        caches=needed,
        library=kept,
    )


def _modernbert_window(config: ConfigReader) -> int:
    """A saved config has the window beside local_attention; the class lets it win."""
    if config.given("sliding_window"):
        return config.number("sliding_window", field="window_tokens")
    half = config.number("local_attention", smallest=2) // 2
    config.sources["window_tokens"] = "derived: local_attention // 2"
    return half


def _modernbert_weights(
    config: ConfigReader, heads: Heads, width: int, vocab: int, num_layers: int, *, tied: bool
) -> list[WeightGroup]:
    hidden, layer, layers = heads.hidden, "model.layers.{}", tuple(range(num_layers))
    bias, mlp_bias, norm_bias = (config.flag(key) for key in ("attention_bias", "mlp_bias", "norm_bias"))
    # The first layer has no norm before its attention: the embeddings' norm stands in for it.
    later = norm(f"{layer}.attn_norm", hidden, bias=norm_bias, layers=layers[1:]) if num_layers > 1 else []
    return [
        *embedding("model.embeddings.tok_embeddings", vocab, hidden),
        *norm("model.embeddings.norm", hidden, bias=norm_bias),
        *attention(f"{layer}.attn", hidden, heads.q_heads, heads.kv_heads, heads.head_dim,
                   qkv_bias=bias, out_bias=bias, layers=layers, out="Wo"),
        *later,
        *norm(f"{layer}.mlp_norm", hidden, bias=norm_bias, layers=layers),
        *linear(f"{layer}.mlp.Wi", hidden, 2 * width, bias=mlp_bias, layers=layers),
        *linear(f"{layer}.mlp.Wo", width, hidden, bias=mlp_bias, layers=layers),
        *norm("model.final_norm", hidden, bias=norm_bias),
        *linear("lm_head.dense", hidden, hidden, bias=config.flag("classifier_bias")),
        *norm("lm_head.norm", hidden, bias=norm_bias),
        *head("decoder", hidden, vocab, tied=tied, bias=config.flag("decoder_bias")),
    ]  # fmt: skip


def hrm_text(config: ConfigReader) -> Architecture:
    """Two stacks run again and again: each run of a layer keeps a cache of its own.

    H_cycles × (L_cycles + 1) runs of a stack. A config made by hand counts one stack's layers as num_hidden_layers; a
    saved one counts all runs there, and one stack's layers as num_layers_per_stack. Layers here are runs.
    """
    runs_per_layer = config.number("H_cycles") * (config.number("L_cycles") + 1)
    stated = config.num_layers()
    stack = config.optional("num_layers_per_stack", smallest=1)
    if stack is None:
        stack = stated
        config.sources["num_layers"] = "derived: num_hidden_layers × H_cycles × (L_cycles + 1)"
    elif stated != stack * runs_per_layer:
        raise config.refuse(f"its {stated} layers are not {stack} × H_cycles × (L_cycles + 1)")
    num_layers = stack * runs_per_layer
    if num_layers > MAX_LAYERS:
        raise config.malformed("L_cycles", f"{num_layers} layers in all cycles; at most {MAX_LAYERS} were expected")
    heads = read_heads(config, kv_heads_key=False)
    width = config.number("intermediate_size", field="ffn.width")
    vocab = config.number("vocab_size")
    tied = config.flag("tie_word_embeddings")
    return Architecture(
        family="hrm_text",
        layers=attention_layers(
            [heads.full] * num_layers,
            heads.q_heads,
            DenseFfn(width=width),
            library_caches(config, heads.full, num_layers),
        ),
        weights=tuple(_hrm_weights(config, heads, width, vocab, tuple(range(stack)), tied=tied)),
        vocab_size=vocab,
        hidden_size=heads.hidden,
        trained_context_tokens=read_context(config),
        is_tied=tied,
    )


def _hrm_weights(
    config: ConfigReader, heads: Heads, width: int, vocab: int, layers: tuple[int, ...], *, tied: bool
) -> list[WeightGroup]:
    """Norms have no weights. Each stack's layers exist once, however often they run."""
    bias, mlp_bias = config.flag("attention_bias"), config.flag("mlp_bias")
    hidden, rows = heads.hidden, heads.q_heads * heads.head_dim
    found = [*parameter("model.z_L_init", (hidden,)), *embedding("model.embed_tokens", vocab, hidden)]
    for stack in ("L_module", "H_module"):
        layer = f"model.{stack}.layers.{{}}"
        found += attention(f"{layer}.self_attn", hidden, heads.q_heads, heads.kv_heads, heads.head_dim,
                           qkv_bias=bias, out_bias=bias, layers=layers)  # fmt: skip
        found += linear(f"{layer}.self_attn.gate_proj", hidden, rows, bias=bias, layers=layers)
        found += gated_mlp(f"{layer}.mlp", hidden, width, bias=mlp_bias, layers=layers)
    return [*found, *head("lm_head", hidden, vocab, tied=tied)]
