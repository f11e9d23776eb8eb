"""What one more token of context costs by prediction: one price, or another beyond the length at which windows fill."""

from collections.abc import Mapping
from dataclasses import dataclass

from kvscope.record.rows import Json

WINDOWED = "sliding_window"
# llama.cpp makes room in blocks of this many cells; Ollama runs llama.cpp.
CELLS_BLOCK = 256


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """Bytes for each token of one sequence: ``first_bytes`` up to ``knee_tokens``, ``beyond_bytes`` after. Without a
    knee both are equal. ``windowed_bytes``: what the layers with a window hold once it is full, as the engine
    reserves it."""

    first_bytes: int
    beyond_bytes: int
    knee_tokens: int | None
    windowed_bytes: int = 0

    def bytes_at(self, tokens: int) -> int:
        """What that many tokens need."""
        knee = tokens if self.knee_tokens is None else min(tokens, self.knee_tokens)
        return self.first_bytes * knee + self.beyond_bytes * (tokens - knee)

    def reserved_bytes(self, tokens: int, *, streams: int = 1) -> int:
        """What llama.cpp reserves for a context of that many tokens, shared out evenly among caches of their own
        (streams), each in whole blocks of cells."""
        each = -(-tokens // (streams * CELLS_BLOCK)) * CELLS_BLOCK
        return streams * self.bytes_at(each)

    def tokens_in(self, room_bytes: int) -> int | None:
        """How many tokens that much memory holds; None where there is no end to them."""
        if self.first_bytes <= 0:
            return None
        few = max(0, room_bytes) // self.first_bytes
        if self.knee_tokens is None or few <= self.knee_tokens:
            return few
        if self.beyond_bytes <= 0:
            return None
        return max(self.knee_tokens, (room_bytes - self.windowed_bytes) // self.beyond_bytes)


def token_price(prediction: Mapping[str, Json] | None) -> TokenPrice | None:
    """From a prediction's layers: ``growth.bytes_per_token`` is the price at the length that one trial asked for, and
    at no other where windows bend the growth. None without a prediction, or where its layers do not tell."""
    growth = (prediction or {}).get("growth") or {}
    here = growth.get("bytes_per_token")
    if here is None:
        return None
    knees = [int(knee["tokens"]) for knee in growth.get("knees") or ()]
    if not knees:
        return TokenPrice(first_bytes=int(here), beyond_bytes=int(here), knee_tokens=None)
    first = beyond = windowed = 0
    for layer in (prediction or {}).get("layers") or ():
        price = _layer_price(layer)
        if price is None:
            return None
        first += price
        if layer["kind"] == WINDOWED:
            windowed += max(int(layer["cache_bytes"]), price * max(knees))
        else:
            beyond += price
    # Windows of several sizes fill one after another; between them the price lies between these two.
    return TokenPrice(first_bytes=first, beyond_bytes=beyond, knee_tokens=max(knees), windowed_bytes=windowed)


def _layer_price(layer: Mapping[str, Json]) -> int | None:
    """Bytes of one token in one layer, from its tensors [sequences or streams, heads, tokens or cells, width]."""
    total = 0
    for tensor in layer.get("tensors") or ():
        shape = tensor["shape"]
        if len(shape) != 4 or not shape[0] * shape[2]:
            return None
        total += int(tensor["bytes"]) // (shape[0] * shape[2])
    return total
