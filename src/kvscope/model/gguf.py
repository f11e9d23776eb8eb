"""GGUF header → ModelSpec. Which architectures are known: layer_kinds.py; which layer holds what: gguf_layers.py."""

from pathlib import Path

from kvscope.errors import MissingField, UnsupportedArchitecture
from kvscope.model.context_plausibility import context_warnings
from kvscope.model.gguf_header import GgufHeader, SkippedArray, read_header
from kvscope.model.gguf_keys import MAX_LAYERS, Keys
from kvscope.model.gguf_layers import read_layers
from kvscope.model.gguf_split import read_shards
from kvscope.model.gguf_tensors import LayerTensors, check
from kvscope.model.layer_kinds import Family, gguf_family
from kvscope.model.spec import LayerSpec, ModelSpec, NoCache, SharedCache

__all__ = ["load_gguf", "read_header"]

# A config's names for what a GGUF says of its rotary positions.
_SCALING_KEYS = {
    "original_max_position_embeddings": "original_context_length",
    "factor": "factor",
    "rope_type": "type",
}
# Keys that give some layers another cache, or the model another graph. A file of an architecture that is not read with
# them (Family.handled) is a variant nobody has checked.
_GUARDED_KEYS = (
    "attention.sliding_window", "attention.sliding_window_pattern", "attention.chunk_size",
    "attention.kv_lora_rank", "attention.kv_lora_rank_swa", "attention.key_length_mla", "attention.value_length_mla",
    "attention.key_length_mla_swa", "attention.value_length_mla_swa", "attention.key_length_swa",
    "attention.value_length_swa", "attention.shared_kv_layers", "attention.recurrent_layers",
    "attention.compress_ratios", "attention.indexer.head_count", "attention.indexer.key_length",
    "attention.indexer.top_k", "attention.value_expert_count", "full_attention_interval", "expert_count",
    "ssm.conv_kernel", "ssm.state_size", "ssm.inner_size", "ssm.group_count", "kda.head_dim",
    "shortconv.l_cache", "wkv.head_size", "token_shift_count", "num_loops", "hrm.layers_per_stack",
    "decoder_block_count", "ple.layers", "hyper_connection.count",
)  # fmt: skip
# Keys that change llama.cpp's graph, and so its compute buffer, but no cache.
_GRAPH_KEYS = (
    "expert_weights_norm", "expert_group_count", "expert_group_used_count", "use_parallel_residual",
    "attn_logit_softcapping", "final_logit_softcapping", "logit_scale", "embedding_scale", "residual_scale",
)  # fmt: skip


def load_gguf(path: str | Path, source: str | None = None) -> ModelSpec:
    """The model that a GGUF file holds; of a split one, ``path`` is the first of its files.

    Raises ModelNotFound, MalformedFile, MissingField, UnsupportedArchitecture."""
    return model_from_header(read_shards(path), source or str(path))


def model_from_header(header: GgufHeader, source: str) -> ModelSpec:
    """Raises MalformedFile, MissingField, UnsupportedArchitecture."""
    keys = Keys(header)
    family = gguf_family(keys.architecture, keys.path)
    _refuse_variants(keys, family)
    num_listed = keys.number("block_count", "num_layers", limit=MAX_LAYERS)
    num_layers = num_listed - _num_draft_layers(keys, num_listed)
    hidden_size = keys.number("embedding_length", "hidden_size")
    context = keys.number("context_length", "trained_context_tokens")
    tensors = LayerTensors(header.tensors)
    layers = read_layers(keys, family, num_layers, hidden_size, tensors)
    check(keys, layers, tensors, num_listed)
    return ModelSpec(
        name=_name(keys),
        architecture=keys.architecture,
        family=family.name,
        source_kind="gguf",
        source=source,
        file_path=header.path,
        num_parameters=_num_parameters(keys, header),
        vocab_size=_vocab_size(keys),
        hidden_size=hidden_size,
        trained_context_tokens=context,
        layers=layers,
        tensors=header.tensors,
        is_tied=all(t.name != "output.weight" for t in header.tensors) if header.tensors else None,
        graph_keys={key: value for key in _GRAPH_KEYS if (value := keys.get(key)) is not None},
        warnings=(*_context_warnings(keys, family, context), *_cache_warnings(layers)),
        fingerprint=header.sha256,
        sources=keys.sources,
    )


def _refuse_variants(keys: Keys, family: Family) -> None:
    for key in _GUARDED_KEYS:
        value = keys.get(key)
        if key not in family.handled and value is not None and value != 0:
            raise UnsupportedArchitecture(
                f"{keys.path} is a {keys.architecture} model with {keys.name(key)} = {_shown(value)}, "
                "a variant whose memory kvscope does not know.",
                hint="Models of this architecture without that key are known.",
            )
    kind = keys.metadata.get("general.type", "model")
    if kind != "model":
        raise UnsupportedArchitecture(
            f"{keys.path} holds no language model: its general.type is {_shown(kind)}.",
            hint="Pass the GGUF of the model itself.",
        )


def _num_draft_layers(keys: Keys, num_listed: int) -> int:
    """Layers at the end that only draft tokens (multi-token prediction): llama.cpp leaves them out of its caches."""
    draft = keys.optional("nextn_predict_layers") or 0
    if draft >= num_listed:
        raise keys.malformed("nextn_predict_layers", f"{draft} of {num_listed} layers; some layer must be left")
    return draft


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:80]}..."


def _name(keys: Keys) -> str:
    name = keys.metadata.get("general.name")
    if isinstance(name, str) and name:
        keys.sources["name"] = "GGUF key general.name"
        return name
    keys.sources["name"] = "file name"
    return Path(keys.path).stem


def _num_parameters(keys: Keys, header: GgufHeader) -> int | None:
    keys.sources["num_parameters"] = "elements of all tensors in the GGUF tensor table"
    total = 0
    for tensor in header.tensors:
        elements = 1
        for size in tensor.shape:
            elements *= size
        total += elements
    return total or None


def _vocab_size(keys: Keys) -> int:
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if isinstance(tokens, SkippedArray | tuple):
        keys.sources["vocab_size"] = "length of the GGUF array tokenizer.ggml.tokens"
        return tokens.length if isinstance(tokens, SkippedArray) else len(tokens)
    if keys.has("vocab_size"):
        return keys.number("vocab_size", "vocab_size")
    places = ["tokenizer.ggml.tokens", keys.name("vocab_size")]
    raise MissingField("its vocabulary size", [f"GGUF key {place} of {keys.path}" for place in places])


def _context_warnings(keys: Keys, family: Family, context: int) -> tuple[str, ...]:
    """Whether the declared context is believable, by the same rules as for a config. A recurrent or chunked model may
    well reach further than its rotary positions do."""
    scaling = {name: keys.get(f"rope.scaling.{key}") for name, key in _SCALING_KEYS.items()}
    content: dict[str, object] = {
        "max_position_embeddings": context,
        "rope_theta": keys.get("rope.freq_base"),
        "rope_scaling": {name: value for name, value in scaling.items() if value is not None},
    }
    has_rope = family.recurrent == "none" and family.windows != "chunked"
    return context_warnings(content, context, has_rope=has_rope)


def _cache_warnings(layers: tuple[LayerSpec, ...]) -> tuple[str, ...]:
    if all(isinstance(layer.cache, NoCache | SharedCache) for layer in layers):
        return (
            "By its keys no layer of this model keeps anything for past tokens, which is implausible for a model that "
            "is not recurrent: its key-value cache would be 0 B per token.",
        )
    return ()
