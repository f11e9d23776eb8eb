"""What engines' own words for a failure mean: one table for the bodies of HTTP errors and for logs.

The forms are those that the projects print or send, so a word alone ("memory") decides nothing: "an illegal memory
access" is a fault of a kernel, not a lack of memory. Where a text holds several, the first kind of the table decides:
an engine that could not allocate says afterwards that it could not load the model, and not the other way round.
"""

import re
from typing import Literal

FailureKind = Literal[
    "out_of_memory", "context_overflow", "invalid_settings", "model_error", "engine_fault", "rate_limited"
]

# Linux's words for whom it killed: they count for that process alone.
_KERNEL = r"\b(?:Out of memory: Killed process (?P<killed>\d+)\b|oom-kill:[^\n]{0,400}\bpid=(?P<chosen>\d+)\b)"

# Each form with whose words they are. Everything is looked for without regard to capitals, within one line.
_FORMS: tuple[tuple[FailureKind, tuple[str, ...]], ...] = (
    (
        "out_of_memory",
        (
            r"\b(?:CUDA|HIP|MPS backend|XPU|NPU) out of memory\b",  # torch, and what is built on it
            r"\b(?:CUDA|HIP|ROCm) (?:runtime )?error:? ?(?:\d+ ?)?:? ?out of memory",  # the runtimes' own text
            r"\b(?:CUDA_ERROR|hipError|cudaError\w*?|VK_ERROR|CL)_?(?:OUT_?OF_?(?:DEVICE_|HOST_)?MEMORY|MemoryAllocation)",
            r"\bError(?:OutOf(?:Device|Host)Memory)\b",  # Vulkan's C++ names, in llama.cpp
            r"\b(?:cuda|hip|musa)(?:Malloc|MallocAsync|MallocHost|MallocManaged)\b[^\n]{0,80}(?:failed|out of memory)",
            r"\bCUBLAS_STATUS_ALLOC_FAILED\b",  # cuBLAS's documentation: usually a cudaMalloc that failed
            r"\bOutOfMemoryError\b",  # torch.cuda.OutOfMemoryError, torch.OutOfMemoryError
            r"\bkIOGPUCommandBufferCallbackErrorOutOfMemory\b|\bInsufficient memory\b",  # Metal
            r"\bfailed to allocate\b|\bunable to allocate \w+ buffer\b",  # llama.cpp, Ollama
            r"\bDevice memory allocation of size \d+ failed",  # llama.cpp on Vulkan
            r"\bbad_alloc\b|^MemoryError\b|\bnumpy\S*ArrayMemoryError\b",  # C++, Python
            r"\bmemory allocation of \d+ bytes failed\b",  # Rust
            r"\bfatal error: runtime: (?:out of memory|cannot allocate memory)",  # Go
            r"\bRESOURCE_EXHAUSTED: [^\n]{0,80}\b(?:out of memory|(?:allocat|reserv)\w+)",  # XLA: JAX, vLLM on a TPU
            r"\[metal::malloc\] (?:Attempting to allocate \d+ bytes|Resource limit)",  # MLX
            r"\[malloc\S*\] Unable to allocate \d+ bytes",  # MLX
            r"\bDefaultCPUAllocator: (?:can't allocate|not enough) memory\b",  # torch on a CPU
            r"\bCannot allocate memory\b(?! in static TLS)",  # the system's text for ENOMEM
            _KERNEL,
            r"model requires more system memory \(",  # Ollama, before it loads
            r"\bNo available memory for the cache blocks\b|larger than the available KV cache memory",  # vLLM at start
            r"Free memory on device [^\n]{0,80} is less than desired GPU memory utilization",  # vLLM at start
            r"\bNot enough memory\b[^\n]{0,40}increas\w+ --mem-fraction-static",  # SGLang at start
        ),
    ),
    (
        "context_overflow",
        (
            r"\bexceed_context_size_error\b|exceeds the available context size",  # llama.cpp
            r"\bContext size has been exceeded\b",  # llama.cpp: the cells that its slots share are full
            r"failed to find (?:a memory slot|free space in the KV cache)",  # the same, in its log
            r"\bcontext_length_exceeded\b",  # OpenAI and who follows it
            r"maximum context length (?:is|of) [\d,]+",  # OpenAI, vLLM, SGLang, DeepSeek
            r"longer than the maximum model length of [\d,]+",  # vLLM, prompts with pictures
            r"max_tokens must be at least 1, got -\d+",  # vLLM before 0.5, where the prompt alone was too long
            r"longer than the model'?s context length \(",  # SGLang
            r"Input length \([\d,]+ tokens\) exceeds the maximum allowed length",  # SGLang
            r"input length exceeds the (?:maximum )?context length",  # Ollama with truncate false
            r"`inputs` (?:must have less than [\d,]+ tokens|tokens \+ `max_new_tokens` must be <=)",  # TGI
            r"Trying to keep the first [\d,]+ tokens when context the overflows",  # LM Studio to 0.3
            r"tokens to keep from the initial prompt is greater than the context length",  # LM Studio 0.4
            r"Reached context length of [\d,]+ tokens",  # LM Studio, while it generates
            r"Requested tokens \([\d,]+\) exceed context window of",  # llama-cpp-python
            r"prompt is too long: [\d,]+ tokens > [\d,]+ maximum",  # Anthropic
            r"input token count \([\d,]+\) exceeds the maximum number of tokens allowed",  # Gemini
            r"too large for model with [\d,]+ maximum context length",  # Mistral
            r"too many tokens: total number of tokens [^\n]{0,40}cannot exceed [\d,]+",  # Cohere
            r"\bInput is too long for requested model\b",  # Amazon Bedrock
        ),
    ),
    (
        "invalid_settings",
        (
            r"(?:quantized V cache|V cache quantization|V cache)[^\n]{0,40} requires? flash.?attn",  # llama.cpp
            r"\brequires flash attention\b",
            r"cache type \w+ with block size \d+ does not divide n_embd_head",  # llama.cpp
            r"n_seq_max must be <=|input is too large to process\. increase the physical batch size",  # llama.cpp
            r"^error: (?:invalid argument|unknown argument|error while handling argument)",  # llama-server
            r"\berror: (?:unrecognized arguments|argument -\S+): ?",  # Python's argparse: vLLM, SGLang
            r"couldn't bind (?:HTTP )?server socket|address already in use",  # the port
            r"User-specified max_model_len \([\d.]+\) is greater than the derived max_model_len",  # vLLM
            r"\bmax_tokens`? is too large: \d+\. This model supports at most",  # OpenAI
            r"Unrecognized request arguments? supplied|\bUnknown parameter: |\bUnsupported (?:parameter|value): ",
            r"\bExtra inputs are not permitted\b",  # pydantic, strict servers
        ),
    ),
    (
        "model_error",
        (
            r"\bmodel_not_found\b|\bThe model [`'\"][^`'\"\n]{1,300}[`'\"] does not exist",  # OpenAI, vLLM
            r"\bmodel ['\"][^'\"\n]{1,300}['\"] not found",  # Ollama
            r"\bThe model [`'\"][^`'\"\n]{1,300}[`'\"] (?:was )?not found",
            r"unknown model architecture|invalid magic characters",  # llama.cpp
            r"tensor '[^'\n]{0,300}' data is not within the file bounds",  # llama.cpp: a file that was cut off
            r"does not recognize this architecture|Model architectures \[[^\]\n]{0,300}\] (?:are not supported|failed)",
            r"is not a valid model identifier|is not a local folder and is not a valid model",  # transformers
            r"error loading model|failed to load model",  # llama.cpp, whatever the reason
            r"\bInvalid model name\b|\bNo models loaded\b|\bFailed to load model\b",  # LiteLLM, LM Studio
        ),
    ),
    (
        "engine_fault",
        (
            r"\ban illegal memory access was encountered|\billegal memory access\b",
            r"\b(?:CUDA|HIP|ROCm) (?:runtime )?error\b|\bdevice-side assert triggered\b",
            r"\bCUBLAS_STATUS_\w+|\bCUDNN_STATUS_\w+",
            r"\bGGML_ASSERT\(|\bGGML_ABORT\(|\bSegmentation fault\b",
            r"\bCompute error\.",  # llama.cpp: its graph could not be computed
            r"\bEngineDeadError\b|\bEngineCore encountered an issue\b|\bEngine core proc\w* died",  # vLLM
        ),
    ),
    (
        "rate_limited",
        (
            r"\brate_limit_exceeded\b|\bRate limit (?:reached|exceeded)\b|\bToo Many Requests\b",
            r"\binsufficient_quota\b|exceeded your current quota",  # OpenAI: nothing left to spend
            r"\bModel is overloaded\b",  # TGI
            r"server busy, please try again",  # Ollama: its queue is full
        ),
    ),
)
_PATTERNS = tuple((kind, re.compile("|".join(forms), re.IGNORECASE | re.MULTILINE)) for kind, forms in _FORMS)
# Said of a failure that was got over: llama.cpp reserves again without pipelining, takes ordinary memory where none can
# be pinned, and keeps fewer prompts; torch's allocator empties its cache.
_GOT_OVER = re.compile(
    r"\bretry|\btrying again\b|\bfalling back\b|\bpinned memory\b|\bprompt cache state\b|\bfailed to m(?:un)?lock\b",
    re.IGNORECASE,
)
# A line that its writer does not call an error: llama.cpp's level (warning, information, debugging), Python's, Go's.
_NO_ERROR = re.compile(
    r"(?:\d+\.\d\d\.\d{3}\.\d{3} [A-Z] |[A-Z] )?(?:\w+: )?(?:warn(?:ing)?|note|hint|tip|info)\b:"
    r"|\d+\.\d\d\.\d{3}\.\d{3} [IWDT] |[IWDT] +\w+(?: +\w+)?:"
    r"|(?:\([^()\n]{1,60}\) )?(?:WARNING|INFO|DEBUG)\b|(?:\S+ )?\w*Warning: |(?:\S+ )?level=(?:warn|debug)\b",
    re.IGNORECASE,
)
# Words in front of the form which make it somebody's advice, or a quotation of what was asked.
_ADVICE = re.compile(r"\b(?:to (?:avoid|prevent)|in case of|if (?:you|there|it)|when you) [^.\n]{0,80}$", re.IGNORECASE)
_QUOTED = re.compile(
    r"\b(?:request|prompt|input|messages?|question)(?: (?:was|were|is|said))?: ?[\"'`][^\"'`\n]{0,400}$",
    re.IGNORECASE,
)
# Ends its writer, whatever other threads write after it.
_FATAL = re.compile(r"terminate called|what\(\):|fatal error:|memory allocation of \d+ bytes|panic", re.IGNORECASE)
# Written by a server that works: what failed before it was got over.
_WENT_ON = re.compile(
    r"\bdone request: \S+ \S+ \S+ 200\b|\bHTTP/1\.[01]\" 200\b|\bserver is listening on\b|\ball slots are idle\b"
    r"|\bprompt eval time =|\bslot launch_slot_:|\bApplication startup complete\b"
)
_LONGEST_LINE = 500


def classify_message(text: str, *, own_pid: int | None = None) -> tuple[FailureKind | None, str | None]:
    """What a message or a log says of a failure, and the line that says it (at most 500 characters around the words);
    (None, None) where it says nothing known.

    A line counts only where it is about the writer's own last failure: not a warning or a note, not one that says that
    it is being tried again, not one after which the server went on to serve, and not the kernel's about a process other
    than ``own_pid``. A log holds what happened to earlier requests as well: give that part of it in which the failure
    must be."""
    last_at_work = max((found.end() for found in _WENT_ON.finditer(text)), default=0)
    for kind, pattern in _PATTERNS:
        for hit in pattern.finditer(text):
            line = _line_around(text, hit.start(), hit.end())
            if hit.start() < last_at_work and _FATAL.search(line) is None:
                continue
            if _is_own_failure(line, text[max(0, hit.start() - _LONGEST_LINE) : hit.start()], hit, own_pid):
                return kind, line
    return None, None


def _is_own_failure(line: str, before: str, hit: re.Match[str], own_pid: int | None) -> bool:
    named = hit.groupdict()
    killed = named.get("killed") or named.get("chosen")
    if killed is not None and int(killed) != own_pid:
        return False
    if _GOT_OVER.search(line) or _NO_ERROR.match(line):
        return False
    return not (_ADVICE.search(before) or _QUOTED.search(before))


def _line_around(text: str, start: int, end: int) -> str:
    first = max(text.rfind("\n", 0, start) + 1, start - _LONGEST_LINE // 2)
    newline = text.find("\n", end)
    last = min(len(text) if newline < 0 else newline, first + _LONGEST_LINE)
    return text[first:last].strip()
