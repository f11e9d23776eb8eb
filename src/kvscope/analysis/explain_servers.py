"""Messages of vLLM, SGLang, Ollama, PyTorch, OpenAI-compatible servers and the operating system."""

import re

from kvscope.analysis.byte_products import token_rates
from kvscope.analysis.explain import Context, Match, form, whole
from kvscope.units import format_bytes

GIB = 1024**3
VLLM_BLOCK_TOKENS = 16  # vLLM's default block size on a GPU
_LESS_LENGTH = "Lower --max-model-len, raise --gpu-memory-utilization, or keep the cache in fp8 (--kv-cache-dtype fp8)."


@form(
    "pool_too_small",
    r"max seq len \(([\d,]+)\) is larger than the maximum number of tokens that can be stored in KV cache \(([\d,]+)\)",
)
def old_pool(hit: re.Match[str], context: Context) -> Match:
    asked, capacity = whole(hit[1]), whole(hit[2])
    blocks, rest = divmod(capacity, VLLM_BLOCK_TOKENS)
    numbers: dict[str, int | float] = {"max_model_len": asked, "capacity_tokens": capacity}
    because = f"the pool holds {capacity} tokens"
    if not rest:
        numbers.update(blocks=blocks, block_tokens=VLLM_BLOCK_TOKENS)
        because = f"{blocks} blocks × {VLLM_BLOCK_TOKENS} tokens = {capacity} tokens"
    return Match(
        kind="pool_too_small",
        because=f"{because}, fewer than the {asked} of one longest request{_pool_bytes(capacity, context)}",
        numbers=numbers,
        advice=_LESS_LENGTH,
    )


@form("pool_size", r"#?\s*GPU blocks:?\s*([\d,]+)|([\d,]+)\s+GPU blocks")
def gpu_blocks(hit: re.Match[str], context: Context) -> Match:
    blocks = whole(hit[1] or hit[2])
    capacity = blocks * VLLM_BLOCK_TOKENS
    return Match(
        kind="pool_size",
        because=f"{blocks} blocks × {VLLM_BLOCK_TOKENS} tokens = {capacity} tokens{_pool_bytes(capacity, context)}",
        numbers={"blocks": blocks, "block_tokens": VLLM_BLOCK_TOKENS, "capacity_tokens": capacity},
        advice="All running requests together hold at most so many tokens; more wait or are computed again. (16 tokens "
        "a block is vLLM's default on a GPU; --block-size sets another.)",
    )


def _pool_bytes(tokens: int, context: Context) -> str:
    if context.model is None:
        return ""
    rate = token_rates(context.model, "float16").get("all layers")
    if not rate:
        return ""
    return f" × {rate} B/token (16-bit cache) = {format_bytes(tokens * rate)}"


@form(
    "pool_too_small",
    r"max seq len \(([\d,]+)\)[,;]? ?\(?([\d.]+) ?GiB KV cache is needed, which is larger than the available KV cache "
    r"memory \(([\d.]+) ?GiB\)",
)
def new_pool(hit: re.Match[str], context: Context) -> Match:
    asked, needed, available = whole(hit[1]), float(hit[2]), float(hit[3])
    per_token = needed * GIB / asked
    numbers: dict[str, int | float] = {
        "max_model_len": asked,
        "needed_gib": needed,
        "available_gib": available,
        "bytes_per_token": round(per_token),
    }
    because = f"{asked} tokens × about {round(per_token)} B/token = {needed} GiB, but {available} GiB are left"
    estimate = re.search(r"estimated maximum model length is ([\d,]+)", context.text)
    if estimate:
        numbers["largest_context_tokens"] = whole(estimate[1])
        because += f"; {whole(estimate[1])} tokens would fit"
    if context.model is not None:
        rate = token_rates(context.model, "float16").get("all layers")
        if rate:
            because += f" (every layer of {context.model.name} in 16 bit: {rate} B/token)"
    return Match(kind="pool_too_small", because=because, numbers=numbers, advice=_LESS_LENGTH)


@form("pool_too_small", r"No available memory for the cache blocks")
def no_pool(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="pool_too_small",
        because="weights and the largest step already fill the share of memory that vLLM may use; nothing is left",
        numbers={},
        advice="Raise --gpu-memory-utilization, use a smaller or quantised model, or split it over more devices.",
    )


@form("pool_size", r"KV cache size: ([\d,]+) tokens")
def pool_line(hit: re.Match[str], context: Context) -> Match:
    tokens = whole(hit[1])
    numbers: dict[str, int | float] = {"size_line_tokens": tokens}
    because = f"the line says {tokens} tokens"
    other = re.search(r"Maximum concurrency for ([\d,]+) tokens per request: ([\d.]+)x", context.text)
    if other:
        length, times = whole(other[1]), float(other[2])
        capacity = int(length * times)
        numbers.update(max_model_len=length, max_concurrency=times, capacity_tokens=capacity)
        because = f"{times} requests × {length} tokens = {capacity} tokens"
        if capacity > tokens * 1.05:
            because += (
                f", {capacity / tokens:.1f} times the {tokens} of the size line: that line divides the blocks evenly "
                "among groups of layers, which is not how a model with windows or recurrent layers uses them"
            )
    return Match(
        kind="pool_size",
        because=because,
        numbers=numbers,
        advice="Trust concurrency × length. It is not a limit on requests: shorter ones fit more often.",
    )


@form(
    "context_overflow",
    r"maximum context length is ([\d,]+) tokens.*?(?:you requested|your (?:messages|prompt|request)[^\d]*?)"
    r" ?([\d,]+) (?:input )?tokens(?: \(([\d,]+) in the (?:messages|prompt), ([\d,]+) in the completion\))?",
)
def openai_overflow(hit: re.Match[str], context: Context) -> Match:
    limit, asked = whole(hit[1]), whole(hit[2])
    numbers: dict[str, int | float] = {"context_tokens": limit, "requested_tokens": asked}
    because = f"{asked} tokens were asked for, {limit} fit"
    if hit[3]:
        numbers.update(prompt_tokens=whole(hit[3]), output_tokens=whole(hit[4]))
        because = f"{whole(hit[3])} prompt + {whole(hit[4])} reserved output = {asked} tokens, {limit} fit"
    return Match(
        kind="context_overflow",
        because=because,
        numbers=numbers,
        advice="Send less, or reserve less output (max_tokens): both count.",
    )


@form(
    "context_overflow",
    r"[Ii]nput(?: length)? \(([\d,]+) tokens\).*?(?:maximum allowed|context) length \(([\d,]+) tokens\)",
)
def sglang_overflow(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="context_overflow",
        because=f"{whole(hit[1])} tokens were sent, {whole(hit[2])} fit into the pool of the device",
        numbers={"prompt_tokens": whole(hit[1]), "context_tokens": whole(hit[2])},
        advice="Send less, or raise --mem-fraction-static. A host-memory tier keeps old prefixes; it does not make "
        "room for one longer request.",
    )


@form("pool_full", r"preempted by|KV cache pool is full|Retract requests|not enough KV cache space")
def pool_full(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="pool_full",
        because="the pool ran out of pages while requests were running: some were sent back and are computed again",
        numbers={},
        advice="Slower, not broken. Fewer requests at once (--max-num-seqs, --max-running-requests), or a larger pool.",
    )


@form("truncated_input", r"truncating input prompt.*?limit=(\d+).*?prompt=(\d+)(?:.*?keep=(\d+))?(?:.*?new=(\d+))?")
def ollama_truncated(hit: re.Match[str], context: Context) -> Match:
    limit, prompt = int(hit[1]), int(hit[2])
    numbers: dict[str, int | float] = {"context_tokens": limit, "prompt_tokens": prompt}
    if hit[4]:
        numbers["kept_tokens"] = int(hit[4])
    return Match(
        kind="truncated_input",
        because=f"{prompt} tokens were sent, num_ctx is {limit}: the start was cut off without an error",
        numbers=numbers,
        advice="Set num_ctx (options.num_ctx, or OLLAMA_CONTEXT_LENGTH) above the prompt and the answer together.",
    )


@form("truncated_input", r"prompt_eval_count\D{1,20}(\d+)")
def ollama_count(hit: re.Match[str], context: Context) -> Match | None:
    count = int(hit[1])
    limit = (count - 2) * 2
    if count < 514 or limit & (limit - 1):
        return None
    return Match(
        kind="truncated_input",
        because=f"{count} = {limit} / 2 + 2: what Ollama keeps of a prompt that is longer than num_ctx = {limit}",
        numbers={"prompt_tokens": count, "context_tokens": limit},
        advice="If longer prompts give the same count, they were cut without a word. Set num_ctx higher.",
        is_certain=False,
    )


@form("host_oom", r"model requires more system memory \(([\d.]+) GiB\) than is available \(([\d.]+) GiB\)")
def ollama_memory(hit: re.Match[str], context: Context) -> Match:
    needed, available = float(hit[1]), float(hit[2])
    return Match(
        kind="host_oom",
        because=f"{needed} GiB by Ollama's estimate - {available} GiB available = {needed - available:.1f} GiB short",
        numbers={"needed_gib": needed, "available_gib": available},
        advice="Lower num_ctx or OLLAMA_NUM_PARALLEL: the cache is reserved for num_ctx × that many.",
    )


@form("device_oom", r"CUDA out of memory\. Tried to allocate ([\d.]+) (GiB|MiB)")
def torch_oom(hit: re.Match[str], context: Context) -> Match:
    num_bytes = float(hit[1]) * (GIB if hit[2].lower() == "gib" else 1024**2)
    numbers: dict[str, int | float] = {"bytes": round(num_bytes)}
    because = f"PyTorch asked the device for {hit[1]} {hit[2]} more"
    logits = _logits(num_bytes, context)
    if logits is not None:
        tokens, row = logits
        numbers.update(tokens=tokens, bytes_per_token=row)
        because += f"; that is {tokens} tokens × {row // 4} logits × 4 B: scores for every prompt position"
    return Match(
        kind="runtime_activation_oom" if logits else "device_oom",
        because=because,
        numbers=numbers,
        advice="A smaller prefill chunk, no prompt_logprobs, or a smaller --gpu-memory-utilization leaves it room.",
    )


def _logits(num_bytes: float, context: Context) -> tuple[int, int] | None:
    """(tokens, bytes of one row of logits) where the size is logits for a round number of tokens."""
    if context.model is None:
        return None
    row = context.model.vocab_size * 4
    tokens = round(num_bytes / row / 256) * 256
    close = tokens > 0 and abs(tokens * row - num_bytes) < 0.005 * GIB
    return (tokens, row) if close else None


@form("engine_fault", r"an illegal memory access|CUDA error: (?!out of memory)")
def fault(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="engine_fault",
        because="the engine read or wrote where it must not; that is a fault of the program, not a lack of memory",
        numbers={},
        advice="Restart it; report it with the prompt's length and the settings. Shorter prompts may avoid it.",
    )


@form("host_oom", r"\bOut of memory: Killed process (\d+)|oom-kill|exit(?:ed with)? (?:code|status) 137\b|\bKilled\b$")
def killed(hit: re.Match[str], context: Context) -> Match:
    return Match(
        kind="host_oom",
        because="the operating system ended the process (SIGKILL), as it does when host memory runs out",
        numbers={},
        advice="Compare kvscope predict with the machine's free memory; `dmesg` names the process it ended.",
        is_certain="Out of memory" in hit.string or "oom-kill" in hit.string,
    )


SERVER_FORMS = (
    new_pool, old_pool, gpu_blocks, no_pool, pool_line, openai_overflow, sglang_overflow, pool_full, ollama_truncated,
    ollama_count, ollama_memory, torch_oom, fault, killed,
)  # fmt: skip
