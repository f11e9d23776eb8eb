"""Which product made a number of bytes: so many bytes per token × so many tokens (+ a little).

With a model its own bytes per token decide. Without one, the well-known shapes below are tried, and the answer says
that it is the likeliest of several.
"""

from collections.abc import Iterator
from dataclasses import dataclass

from kvscope.dtypes import dtype_named
from kvscope.errors import UsageError
from kvscope.model.spec import FullAttention, LatentAttention, ModelSpec, SlidingWindow
from kvscope.predict.kv_cache import needed_parts

# llama.cpp adds one tensor alignment to the buffer it asks for when several tensors share it (b11549 and before).
ALIGNMENT_BYTES = 32
CELL_MULTIPLE = 256
MAX_TOKENS = 16 * 1024**2
CACHE_TYPES = ("float16", "q8_0", "q4_0", "float32", "q5_0", "q5_1", "q4_1")
# Trained contexts that are no power of two, as published configs state them.
ODD_CONTEXTS = frozenset({40_960, 163_840, 202_752, 1_024_000, 1_010_000, 200_192, 196_608, 98_304, 49_152, 24_576})

# (model it is known from, layers, KV heads, key + value width of a head), from their published config.json.
KNOWN_SHAPES = (
    ("Llama 3.1 8B, Mistral 7B", 32, 8, 256),
    ("Qwen3 4B and 8B", 36, 8, 256),
    ("Llama 3.1 70B", 80, 8, 256),
    ("Llama 2 7B", 32, 32, 256),
    ("Qwen3 32B, Qwen2.5 32B", 64, 8, 256),
    ("Mistral Small 24B, Mistral Nemo", 40, 8, 256),
    ("Qwen2.5 7B", 28, 4, 256),
    ("Qwen3 1.7B, Llama 3.2 3B", 28, 8, 256),
    ("Qwen2.5 14B", 48, 8, 256),
    ("Qwen3 14B", 40, 8, 256),
    ("Gemma 3 4B, every layer in full", 34, 4, 512),
    ("Llama 3.2 1B", 16, 8, 128),
    ("Llama 2 13B", 40, 40, 256),
    ("Phi-3 mini", 32, 32, 192),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Product:
    """``bytes_per_token`` × ``tokens`` + ``extra_bytes``. ``made_of``: what the bytes per token are."""

    bytes_per_token: int
    tokens: int
    extra_bytes: int
    made_of: str

    @property
    def text(self) -> str:
        extra = f" + {self.extra_bytes} B" if self.extra_bytes else ""
        return f"{self.bytes_per_token} B/token × {self.tokens} tokens{extra}"


def cache_products(num_bytes: int, model: ModelSpec | None) -> list[Product]:
    """Every reading of ``num_bytes`` as a cache in full, the likeliest first; empty where none fits."""
    found = []
    for rate, made_of in _rates(model):
        for extra in (0, ALIGNMENT_BYTES):
            tokens, rest = divmod(num_bytes - extra, rate)
            if rest == 0 and 0 < tokens <= MAX_TOKENS and tokens % CELL_MULTIPLE == 0:
                found.append(Product(bytes_per_token=rate, tokens=tokens, extra_bytes=extra, made_of=made_of))
    return sorted(found, key=lambda product: not _is_round(product.tokens))


def token_rates(model: ModelSpec, dtype_name: str) -> dict[str, int]:
    """Bytes per token of the model's caches in this format: of all layers in full ("all layers"), and of those without
    a window ("layers without a window") where they differ."""
    dtype = dtype_named(dtype_name)
    everything = without_window = 0
    for layer in model.layers:
        if isinstance(layer.cache, FullAttention | SlidingWindow | LatentAttention):
            row = sum(part.law.bytes_per_token for part in needed_parts(layer.cache, dtype, dtype))
            everything += row
            without_window += 0 if isinstance(layer.cache, SlidingWindow) else row
    rates = {"all layers": everything}
    if without_window and without_window != everything:
        rates["layers without a window"] = without_window
    return {name: rate for name, rate in rates.items() if rate}


def _rates(model: ModelSpec | None) -> Iterator[tuple[int, str]]:
    if model is None:
        for name, layers, heads, width in KNOWN_SHAPES:
            rate = layers * heads * width * 2
            yield rate, f"{layers} layers × {heads} KV heads × {width} (keys and values) × 2 B, as in {name}"
        return
    for dtype_name in CACHE_TYPES:
        try:
            rates = token_rates(model, dtype_name)
        except UsageError:  # a block of this format does not divide a row of this model
            continue
        for which, rate in rates.items():
            yield rate, f"{which} of {model.name} in {dtype_name}: {rate} B for one token"


def _is_round(tokens: int) -> bool:
    return tokens & (tokens - 1) == 0 or tokens in ODD_CONTEXTS
