"""What a model is, whatever file said so: layers, each with one kind of cache, and tensors.

A layer is an object, not a count, and a kind of cache is a type. Code that handles kinds uses ``match`` with
``assert_never``, so that a new kind is a type error at every place that has to know it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class FullAttention:
    """Every token is kept. ``prefix_tokens``: positions of a trained prompt that are kept before them.

    ``window_after_prompt``: of the tokens that follow the prompt, only the last so many are needed; how many tokens the
    prompt has is the run's matter.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    prefix_tokens: int = 0
    window_after_prompt: int | None = None


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
    """One compressed latent and one rotary key per token (MLA), whatever the number of heads.

    ``expanded``: the per-head keys and values that an engine without MLA keeps instead (old llama.cpp files,
    transformers 4.x). ``window_tokens``: only the last so many are needed.
    """

    latent_dim: int
    rope_dim: int
    window_tokens: int | None = None
    expanded: FullAttention | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexedAttention:
    """Attention that first chooses tokens by a small index key, kept per token beside the cache itself (DSA).

    ``main`` SharedCache: keys and values are another layer's, the index keys its own. ``index_dim``: elements of one
    index key, shared by all heads. ``index_row_bytes``: bytes of one stored index key in the model's own format
    (DeepSeek: float8 with one float32 scale); None: the cache's own element format. ``index_dtype``: the element format
    a library keeps index keys in, whatever the cache's is; None: the cache's. ``position_rows``: int64 positions of
    every token that a library keeps in this layer for the index.
    """

    main: "FullAttention | SlidingWindow | LatentAttention | SharedCache"
    index_dim: int
    index_row_bytes: int | None = None
    index_dtype: str | None = None
    position_rows: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CompressedAttention:
    """A window of single tokens beside compressed entries, one for every ``rate_tokens`` tokens (DeepSeek V4).

    Keys and values are one tensor of ``entry_dim`` elements. ``rate_tokens`` None: the window alone. ``index_dim``: the
    index key per compressed entry, or None. ``overlaps``: an entry is made of its own block and the one before, so
    inputs of a block are twice as wide and half of the last finished block's are kept.
    """

    entry_dim: int
    window_tokens: int
    rate_tokens: int | None
    index_dim: int | None = None
    overlaps: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class StateTensor:
    """One tensor of recurrent state per sequence. ``dtype`` None: the model's own format."""

    name: str
    shape: tuple[int, ...]
    dtype: str | None = None

    @property
    def num_elements(self) -> int:
        total = 1
        for size in self.shape:
            total *= size
        return total


StateForm = Literal[
    "mamba",
    "mamba2",
    "gated_delta_net",
    "kda",
    "lightning",
    "rg_lru",
    "rwkv",
    "xlstm",
    "short_conv",
    "linear",
    "cca",
    "ngram",
]


@dataclass(frozen=True, slots=True, kw_only=True)
class RecurrentState:
    """A state of fixed size per sequence, whatever its length.

    A short convolution over ``conv_channels`` channels with ``conv_kernel`` taps needs the last kernel - 1 columns
    (engines keep kernel - 1 or kernel of them); 0 channels: none. ``states``: the other tensors, as the model defines
    them. ``form`` decides what an engine makes of them.
    """

    form: StateForm
    conv_channels: int = 0
    conv_kernel: int = 0
    conv_dtype: str | None = None
    states: tuple[StateTensor, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class HybridCache:
    """A layer that holds attention's cache and a recurrent state at once (Falcon-H1)."""

    attention: "FullAttention | SlidingWindow | LatentAttention"
    recurrent: RecurrentState


@dataclass(frozen=True, slots=True, kw_only=True)
class CrossAttention:
    """Keys and values of another input (image, audio, encoder text): constant while the text grows.

    ``source_tokens``: how many there are for one full input; None: as many as the input has.
    """

    num_kv_heads: int
    key_dim: int
    value_dim: int
    source_tokens: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class HiddenStateMemory:
    """Past hidden states are kept instead of keys and values (XLNet, Reformer): ``width`` elements a token.

    ``memory_tokens``: only the last so many; None: all. ``padding``: (tokens, multiple): a prefill of more than so many
    tokens is computed at a multiple, and its storage kept (Reformer: smallest chunk length, least common multiple of
    the chunk lengths). ``extra_row_bytes``: what else is kept per token (Reformer's LSH layers: heads × hashes bucket
    numbers of int64, 8 bytes each): after a prefill of ``extra_from_tokens`` or more, and after a shorter
    one once single tokens have reached ``extra_always_tokens`` (transformers then keeps them as float32).
    """

    width: int
    memory_tokens: int | None
    extra_row_bytes: int = 0
    extra_from_tokens: int = 0
    extra_always_tokens: int = 0
    padding: tuple[int, int] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedCache:
    """Reads the cache of the layer ``layer_index``; holds none of its own."""

    layer_index: int


@dataclass(frozen=True, slots=True, kw_only=True)
class NoCache:
    """Holds nothing between steps."""


CacheKind = (
    FullAttention
    | SlidingWindow
    | ChunkedAttention
    | LatentAttention
    | IndexedAttention
    | CompressedAttention
    | RecurrentState
    | HybridCache
    | CrossAttention
    | HiddenStateMemory
    | SharedCache
    | NoCache
)


@dataclass(frozen=True, slots=True, kw_only=True)
class DenseFfn:
    """A feed-forward of two or three matrices, ``width`` wide inside."""

    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MoeFfn:
    """``width``: of one routed expert; all experts are held in memory, ``experts_per_token`` of them compute."""

    num_experts: int
    experts_per_token: int
    width: int
    shared_width: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerSpec:
    """``cache``: what the architecture needs. ``transformers_cache``: what the transformers library's own cache holds
    for this layer where that is another kind (a window its attention never uses); None: the same. A layer may hold
    several caches there (a model that runs its layers twice): then this lists one for each."""

    index: int
    cache: CacheKind
    num_q_heads: int
    ffn: DenseFfn | MoeFfn | None
    transformers_cache: "CacheKind | tuple[CacheKind, ...] | None" = None


WeightKind = Literal["embedding", "linear", "experts", "head", "norm", "conv", "other"]


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightGroup:
    """Equal tensors of a model known from its config: one tensor in each of ``layers``, or one alone (empty).

    ``name`` is the module path in transformers, with ``{}`` for the layer's number. ``kind`` "linear": a matrix of a
    linear layer, which quantisers replace. Tied weights are listed once. ``part``: "text", or the other part of a
    multimodal model it belongs to ("vision"). ``dtype``: the format it is kept in whatever the model is loaded in, and
    ``float16_dtype`` where the model is loaded in float16; None: the model's.
    """

    name: str
    shape: tuple[int, ...]
    kind: WeightKind
    layers: tuple[int, ...] = ()
    part: str = "text"
    dtype: str | None = None
    float16_dtype: str | None = None

    def kept_dtype(self, loaded: str) -> str:
        """The element format of these tensors in a model that is loaded in the format ``loaded``."""
        return self.dtype or (self.float16_dtype if loaded == "float16" else None) or loaded

    @property
    def num_elements(self) -> int:
        """Of all layers together."""
        total = max(1, len(self.layers))
        for size in self.shape:
            total *= size
        return total


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorInfo:
    """``shape`` is in the file's own order (GGUF: fastest dimension first). ``part``: which of the model's files, from
    0; ``offset`` counts from the start of that file."""

    name: str
    dtype: str
    shape: tuple[int, ...]
    num_bytes: int
    offset: int | None = None
    layer_index: int | None = None
    part: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelSpec:
    """``sources`` maps a field ("layers[0].num_kv_heads") to where its value came from: "config.json: head_dim",
    "derived: ...", "class default of transformers 5.x Gemma3TextConfig". ``fingerprint`` is a hash of the headers
    read. ``tensors`` is empty when the source lists none (a bare config.json).

    ``architecture`` is the file's own word ("gemma3_text"), ``family`` kvscope's for the same thing in any format
    ("gemma3"). ``dtype`` is the format the file says its weights are in, None where it differs per tensor (GGUF) or is
    not said. ``source_kind`` is "gguf", "config", "safetensors" or "stated" (layers stated by hand): engines treat
    them differently.
    ``weights``: tensors known from a config alone; empty where ``tensors`` lists the real ones, or where a family's
    weights are not known (``num_parameters`` None then). ``quantisation``: the config's quantization_config.
    ``graph_keys``: keys of a GGUF that change how llama.cpp computes a model but not what it keeps (how experts are
    weighed).
    ``stored_settings``: settings that the model's store keeps with it (Ollama's parameters).
    ``warnings``: what is doubtful about the files, in plain sentences."""

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
    weights: tuple[WeightGroup, ...] = ()
    is_tied: bool | None = None
    quantisation: Mapping[str, object] | None = None
    stored_settings: Mapping[str, object] = field(default_factory=dict)
    graph_keys: Mapping[str, object] = field(default_factory=dict)
    warnings: tuple[str, ...] = ()
    fingerprint: str = ""
    sources: Mapping[str, str] = field(default_factory=dict)
