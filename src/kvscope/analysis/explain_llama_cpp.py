"""Messages of llama.cpp and llama-server (builds up to b11549), and of ggml below them."""

import re

from kvscope.analysis.byte_products import cache_products, token_rates
from kvscope.analysis.explain import Context, Match, form
from kvscope.dtypes import dtype_named
from kvscope.errors import KvscopeError
from kvscope.model.spec import ModelSpec
from kvscope.units import format_bytes

MIB = 1024**2
DEFAULT_MICROBATCH = 512
_LESS_CACHE = (
    "Ask for a smaller context (-c), fewer slots (-np), or a smaller cache format (--cache-type-k q8_0 "
    "--cache-type-v q8_0, with flash attention on). Without -c the context is the trained one, often far too large."
)


@form("kv_alloc_oom", r"failed to allocate (?:(\w+) )?(?:KV )?buffer of size (\d+)")
def failed_buffer(hit: re.Match[str], context: Context) -> Match | None:
    num_bytes = int(hit[2])
    if "gallocr" in hit.string:
        scores = _scores(num_bytes, context.model)
        if scores is not None:
            return scores
    return _failed_cache(num_bytes, context)


@form("kv_alloc_oom", r"failed to allocate buffer for (?:kv|rs) cache")
def failed_without_number(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="kv_alloc_oom",
        because="the memory for the cache of all slots was refused; its bytes stand in the line before, after 'buffer "
        "of size'",
        numbers={},
        advice=_LESS_CACHE,
    )


@form("kv_alloc_oom", r"allocating ([\d.]+) MiB on device (\S+): cudaMalloc failed: out of memory")
def failed_cuda(hit: re.Match[str], context: Context) -> Match:
    num_bytes = round(float(hit[1]) * MIB)
    match = _scores(num_bytes, context.model) or _failed_cache(num_bytes, context)
    if match.numbers.get("tokens") is not None:
        return match
    return Match(
        kind="device_alloc_oom",
        because=f"device {hit[2].rstrip(':')} had no {format_bytes(num_bytes)} left for one buffer",
        numbers={"bytes": num_bytes},
        advice=f"{_LESS_CACHE} Or keep fewer layers on the device (-ngl). Give --model to see which product it is.",
    )


def _failed_cache(num_bytes: int, context: Context) -> Match:
    products = cache_products(num_bytes, context.model)
    if not products:
        why = "no whole number of tokens of this model's cache" if context.model else "no well-known model's cache"
        return Match(
            kind="alloc_oom",
            because=f"a buffer of {format_bytes(num_bytes)} could not be had; its size is {why}",
            numbers={"bytes": num_bytes},
            advice="Give --model to hold the number against the model's own sizes. " + _LESS_CACHE,
            is_certain=False,
        )
    best, *others = products
    return Match(
        kind="kv_alloc_oom",
        because=best.text,
        numbers={"bytes_per_token": best.bytes_per_token, "tokens": best.tokens, "extra_bytes": best.extra_bytes},
        advice=f"The cache of {best.tokens} tokens ({best.made_of}) does not fit. {_LESS_CACHE}",
        also=tuple(f"{other.text} ({other.made_of})" for other in others[:4]),
        is_certain=context.model is not None,
    )


def _scores(num_bytes: int, model: ModelSpec | None) -> Match | None:
    """A compute buffer that is mostly attention scores: heads × microbatch × 4 B for every token of context."""
    heads = {layer.num_q_heads for layer in model.layers} if model is not None else {128, 64, 32, 16}
    for count in sorted(heads, reverse=True):
        rate = count * DEFAULT_MICROBATCH * 4
        tokens, rest = divmod(num_bytes, rate) if rate else (0, 1)
        if rest == 0 and tokens >= 1024 and (tokens & (tokens - 1) == 0 or tokens in (163_840, 40_960)):
            return Match(
                kind="compute_buffer_oom",
                because=f"{count} heads × {DEFAULT_MICROBATCH} tokens (ubatch) × 4 B × {tokens} tokens of context",
                numbers={"bytes_per_token": rate, "tokens": tokens},
                advice="Attention scores without flash attention: turn it on (-fa on), or lower -ub; they shrink with "
                "it in proportion. Every device that holds a layer needs them.",
                is_certain=model is not None,
            )
    return None


@form(
    "kv_cache_line",
    r"(?:KV self size|size)\s*=\s*([\d.]+) MiB(?: \(\s*(\d+) cells,\s*(\d+) layers,\s*([\d/]+) seqs\))?.*?"
    r"K \((\w+)\):\s*([\d.]+) MiB, V \((\w+)\):\s*([\d.]+) MiB",
)
def cache_line(hit: re.Match[str], context: Context) -> Match:
    total = round(float(hit[1]) * MIB)
    numbers: dict[str, int | float] = {
        "bytes": total,
        "k_bytes": round(float(hit[6]) * MIB),
        "v_bytes": round(float(hit[8]) * MIB),
    }
    because = f"keys {hit[6]} MiB ({hit[5]}) + values {hit[8]} MiB ({hit[7]})"
    if hit[2]:
        cells, layers = int(hit[2]), int(hit[3])
        streams = int(hit[4].rpartition("/")[2])
        numbers.update(cells=cells, layers=layers, streams=streams)
        per_cell = total / (cells * streams)
        numbers["bytes_per_token"] = round(per_cell)
        because += f" = {cells} cells × {streams} streams × about {round(per_cell)} B over {layers} layers"
    because += _against_model(total, hit[5], context.model)
    return Match(
        kind="kv_cache_line", because=because, numbers=numbers, advice="Reserved at load; it does not grow later."
    )


def _against_model(total: int, cache_type: str, model: ModelSpec | None) -> str:
    if model is None:
        return ""
    try:
        rates = token_rates(model, dtype_named(cache_type).name)
    except KvscopeError:
        return ""
    for which, rate in rates.items():
        tokens = round(total / rate / 256) * 256
        if tokens and abs(tokens * rate - total) < MIB // 100:
            return f"; the model's {which} take {rate} B/token, so these are {tokens} tokens"
    return "; no whole number of tokens of this model's cache"


@form("kv_cache_line", r"KV buffer size\s*=\s*([\d.]+) MiB")
def buffer_line(hit: re.Match[str], context: Context) -> Match | None:
    total = round(float(hit[1]) * MIB)
    products = [p for p in cache_products(total, context.model) if not p.extra_bytes]
    if not products:
        return None
    return Match(
        kind="kv_cache_line",
        because=products[0].text,
        numbers={"bytes": total, "bytes_per_token": products[0].bytes_per_token, "tokens": products[0].tokens},
        advice=f"Reserved at load: {products[0].made_of}.",
        is_certain=context.model is not None,
    )


@form("invalid_settings", r"(?:quantized V cache|V cache quantization) requires flash.?attn|requires flash attention")
def quantised_v(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="invalid_settings",
        because="without flash attention llama.cpp keeps values transposed, element by element, so a block format "
        "such as q8_0 cannot hold them",
        numbers={},
        advice="Turn flash attention on (-fa on), or keep --cache-type-v f16. This is a refusal of settings, not a "
        "lack of memory, whatever the exit code says.",
    )


@form("invalid_settings", r"([KV]) cache type (\w+) with block size (\d+) does not divide n_embd_head_[kv]\s*=\s*(\d+)")
def block_size(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="invalid_settings",
        because=f"a head of {hit[4]} elements is not a whole number of {hit[2]} blocks of {hit[3]}",
        numbers={"head_dim": int(hit[4]), "block_elements": int(hit[3])},
        advice=f"Keep --cache-type-{hit[1].lower()} f16 for this model.",
    )


@form("invalid_settings", r"n_seq_max must be <= (\d+)")
def too_many_slots(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="invalid_settings",
        because=f"llama.cpp holds at most {hit[1]} sequences",
        numbers={"most_sequences": int(hit[1])},
        advice=f"Set -np to {hit[1]} or less.",
    )


@form(
    "context_overflow",
    r"request \((\d+) tokens\) exceeds the available context size \((\d+) tokens\)|"
    r"the request exceeds the available context size|input is too large to process|prompt is too long",
)
def context_overflow(hit: re.Match[str], context: Context) -> Match:
    numbers = {} if hit[1] is None else {"prompt_tokens": int(hit[1]), "context_tokens": int(hit[2])}
    over = f"{hit[1]} tokens were sent, a slot holds {hit[2]}" if hit[1] else "the prompt is longer than a slot holds"
    return Match(
        kind="context_overflow",
        because=f"{over}; slots share the context: each has -c ÷ -np, rounded up to 256",
        numbers=numbers,
        advice="Send less, raise -c, or use fewer slots (-np).",
    )


@form("slot_context", r"n_ctx_(?:per_seq|seq) \((\d+)\)\s*([<>])\s*n_ctx_train \((\d+)\)")
def slot_context(hit: re.Match[str], context: Context) -> Match:
    asked, trained = int(hit[1]), int(hit[3])
    beyond = asked > trained
    return Match(
        kind="slot_context",
        because=f"one sequence gets {asked} tokens; the model was trained with {trained}",
        numbers={"context_per_sequence_tokens": asked, "trained_context_tokens": trained},
        advice="More is reserved than a sequence may use: lower -c." if beyond else "Fine, unless you need more: -c.",
    )


@form(
    "predicted_oom_ignored",
    r"projected to use (\d+) MiB of (?:device|host|total)? ?memory vs\.? (\d+) MiB of free",
)
def projected(hit: re.Match[str], context: Context) -> Match | None:
    used, free = int(hit[1]), int(hit[2])
    margin_hit = re.search(r"(?:margin|target)[^\d]{0,40}(\d+) MiB", context.text)
    margin = int(margin_hit[1]) if margin_hit else 1024
    short = used - free + margin
    if short <= 0:
        return None
    return Match(
        kind="predicted_oom_ignored",
        because=f"{used} MiB needed - {free} MiB free + {margin} MiB to be left free = {short} MiB short",
        numbers={"needed_mib": used, "free_mib": free, "margin_mib": margin, "deficit_mib": short},
        advice="llama.cpp said beforehand that it would not fit. Lower -c, or let it choose (--fit on, no -ngl or -c).",
    )


@form("host_cache", r"cache state: (\d+) prompts, ([\d.]+) MiB \(limits: ([\d.]+) MiB")
def host_cache(hit: re.Match[str], context: Context) -> Match:
    used, limit = float(hit[2]), float(hit[3])
    bounded = limit > 0 and used <= limit
    share = f", {100 * used / limit:.0f} % of the limit" if limit > 0 else ", without a limit"
    return Match(
        kind="host_cache",
        because=f"{hit[1]} old prompts are kept in host memory: {hit[2]} MiB{share}",
        numbers={"prompts": int(hit[1]), "mib": used, "limit_mib": limit},
        advice="This is a cache, not a leak: it stops at the limit. --cache-ram N sets it in MiB, 0 turns it off."
        if bounded
        else "It is above its limit: one entry larger than the limit is kept all the same. --cache-ram 0 turns it off.",
    )


@form("prompt_reprocessed", r"forcing full prompt re-?processing")
def reprocessed(hit: re.Match[str], context: Context) -> Match:
    numbers: dict[str, int | float] = {}
    for name in ("n_past", "pos_min", "n_swa"):
        found = re.search(rf"{name}\s*[=:]\s*(\d+)", context.text)
        if found:
            numbers[name] = int(found[1])
    gone = f" (it holds positions from {numbers['pos_min']} on)" if "pos_min" in numbers else ""
    return Match(
        kind="prompt_reprocessed",
        because=f"a sliding window or recurrent state cannot be rolled back to the last common token{gone}, so the "
        "whole prompt is computed again",
        numbers=numbers,
        advice="--swa-full keeps the whole window cache, for more memory; for recurrent models, more context "
        "checkpoints (--ctx-checkpoints). Normal when the template drops earlier reasoning.",
    )


LLAMA_CPP_FORMS = (
    failed_buffer, failed_without_number, failed_cuda, cache_line, buffer_line, quantised_v, block_size,
    too_many_slots, context_overflow, slot_context, projected, host_cache, reprocessed,
)  # fmt: skip
