"""What a model is, whatever file said so: layers, each with one kind of cache, and tensors.

A layer is an object, not a count, and a kind of cache is a type. Code that handles kinds uses ``match`` with
``assert_never``, so that a new kind is a type error at every place that has to know it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention:
    """Every token is kept."""

    num_kv_heads: int
    key_dim: int
    value_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SlidingWindow:
    """The last ``window_tokens`` tokens are needed."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    window_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ChunkedAttention:
    """Tokens of the current chunk of ``chunk_tokens`` are needed."""

    num_kv_heads: int
    key_dim: int
    value_dim: int
    chunk_tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LatentAttention:
    """One compressed latent and one rotary key per token (MLA)."""

    latent_dim: int
    rope_dim: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """A state of fixed size per sequence, whatever its length."""

    state_elements: int
    conv_elements: int


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache:
    """Reads the cache of the layer ``layer_index``; holds none of its own."""

    layer_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCache:
    """Holds nothing between steps."""


CacheKind = FullAttention | SlidingWindow | ChunkedAttention | LatentAttention | RecurrentState | SharedCache | NoCache


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    index: int
    cache: CacheKind
    num_q_heads: int
    ffn: DenseFfn | None


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """``shape`` is in the file's own order (GGUF: fastest dimension first)."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    offset: int | None = None
    layer_index: int | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """``sources`` maps a field ("layers[0].num_kv_heads") to where its value came from: "config.json: head_dim",
    "derived: ...", "class default of transformers 5.x Gemma3TextConfig". ``fingerprint`` is a hash of the headers
    read. ``tensors`` is empty when the source lists none (a bare config.json).

    ``architecture`` is the file's own word ("gemma3_text"), ``family`` kvscope's for the same thing in any format
    ("gemma3"). ``dtype`` is the format the file says its weights are in, None where it differs per tensor (GGUF) or is
    not said. ``source_kind`` is "gguf" or "config": engines treat them differently."""

    name: str
    architecture: str
    source: str
    file_path: str | None
    num_parameters: int | None
    vocab_size: int
    hidden_size: int
    trained_context_tokens: int | None
    layers: tuple[LayerSpec, ...]
    family: str = ""
    source_kind: str = ""
    dtype: str | None = None
    tensors: tuple[TensorInfo, ...] = ()
    fingerprint: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
