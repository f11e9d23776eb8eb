"""Models that write text about another input through cross-attention in every layer: Whisper. Facts of the classes in
transformers 5.24.0.

A decoder layer keeps two caches: keys and values of the text so far, and those of the encoder's output, which are made
once. Each is a layer here, in turn: layer 2 n is the self-attention of decoder layer n, 2 n + 1 its cross-attention.
"""

from kvscope.model.config_reader import MAX_HEADS, ConfigReader
from kvscope.model.families.architecture import Architecture
from kvscope.model.families.multimodal_audio import whisper_encoder
from kvscope.model.families.vision import QKVO, Groups, all_norms, linears, placed
from kvscope.model.modules import Layers, embedding, head, linear, norm
from kvscope.model.spec import CrossAttention, DenseFfn, FullAttention, LayerSpec


def whisper(config: ConfigReader) -> Architecture:
    """The encoder's output is always max_source_positions long: half a minute of sound, padded with silence."""
    width, heads = (
        config.number("d_model"),
        config.number("decoder_attention_heads", field="num_q_heads", limit=MAX_HEADS),
    )
    if width % heads or width % config.number("encoder_attention_heads"):
        raise config.malformed("d_model", "its heads do not divide it")
    count, source = config.num_layers("decoder_layers"), config.number("max_source_positions", field="source_tokens")
    inner, vocab, tied = (
        config.number("decoder_ffn_dim"),
        config.number("vocab_size"),
        config.flag("tie_word_embeddings"),
    )
    config.sources["num_kv_heads"] = "derived: decoder_attention_heads"
    config.sources["key_dim"] = "derived: d_model / decoder_attention_heads"
    context = config.number("max_target_positions", field="trained_context_tokens")
    own = FullAttention(num_kv_heads=heads, key_dim=width // heads, value_dim=width // heads)
    seen = CrossAttention(num_kv_heads=heads, key_dim=width // heads, value_dim=width // heads, source_tokens=source)
    layers = [
        layer
        for index in range(count)
        for layer in (
            LayerSpec(index=2 * index, cache=own, num_q_heads=heads, ffn=None),
            LayerSpec(index=2 * index + 1, cache=seen, num_q_heads=heads, ffn=DenseFfn(width=inner)),
        )
    ]
    return Architecture(
        family="whisper",
        layers=tuple(layers),
        weights=(
            *placed("model.encoder", whisper_encoder(config), "audio"),
            *placed("model.decoder", _decoder(width, inner, vocab, context, tuple(range(count))), "text"),
            *head("proj_out", width, vocab, tied=tied),
        ),
        vocab_size=vocab,
        hidden_size=width,
        trained_context_tokens=context,
        is_tied=tied,
    )


def _decoder(width: int, inner: int, vocab: int, positions: int, layers: Layers) -> Groups:
    layer = "layers.{}"
    weights = [*embedding("embed_tokens", vocab, width), *embedding("embed_positions", positions, width)]
    for module in ("self_attn", "encoder_attn"):
        biased = tuple(name for name in QKVO if name != "k_proj")
        weights += linears(f"{layer}.{module}.", biased, width, width, bias=True, layers=layers)
        weights += linear(f"{layer}.{module}.k_proj", width, width, layers=layers)
        weights += norm(f"{layer}.{module}_layer_norm", width, bias=True, layers=layers)
    return [
        *weights,
        *linear(f"{layer}.fc1", width, inner, bias=True, layers=layers),
        *linear(f"{layer}.fc2", inner, width, bias=True, layers=layers),
        *all_norms([f"{layer}.final_layer_norm"], width, bias=True, layers=layers),
        *norm("layer_norm", width, bias=True),
    ]
