"""Engines' own words for a failure, each as it was published, and what they mean."""

import time

import pytest

from kvscope.engine.failure_words import FailureKind, classify_message

# Each with where it was published.
SAID: list[tuple[FailureKind | None, str, str]] = [
    (
        "out_of_memory",
        "torch",
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB. GPU 0 has a total capacity",
    ),
    (
        "out_of_memory",
        "huggingface/text-generation-inference#653",
        "Request failed during generation: Server error: CUDA out of memory. Tried to allocate 16.00 MiB "
        "(GPU 0; 22.20 GiB",
    ),
    (
        "out_of_memory",
        "torch, mps/MPSAllocator.mm",
        "RuntimeError: MPS backend out of memory (MPS allocated: 9.00 GiB, other allocations: 464.00 KiB)",
    ),
    (
        "out_of_memory",
        "torch, c10/core/impl/alloc_cpu.cpp",
        "[enforce fail at alloc_cpu.cpp:118] err == 0. DefaultCPUAllocator: can't allocate memory: you tried "
        "to allocate"
        " 137438953472 bytes. Error code 12 (Cannot allocate memory)",
    ),
    (
        "out_of_memory",
        "llama.cpp, ggml-cuda.cu",
        "ggml_backend_cuda_buffer_type_alloc_buffer: allocating 1170.00 MiB on device 0: cudaMalloc failed: "
        "out of memory",
    ),
    (
        "out_of_memory",
        "llama.cpp, ggml-alloc.c",
        "alloc_tensor_range: failed to allocate ROCm0 buffer of size 35361661056",
    ),
    (
        "out_of_memory",
        "ggml-org/llama.cpp#8101",
        "ggml_backend_cpu_buffer_type_alloc_buffer: failed to allocate buffer of size 137438953504",
    ),
    ("out_of_memory", "llama.cpp with HIP", "hipMalloc failed: out of memory"),
    ("out_of_memory", "llama.cpp, ggml-vulkan.cpp", "ggml_vulkan: Device memory allocation of size 4831838208 failed."),
    ("out_of_memory", "llama.cpp, ggml-vulkan.cpp", "ggml_vulkan: vk::Device::allocateMemory: ErrorOutOfDeviceMemory"),
    (
        "out_of_memory",
        "MLX",
        "[METAL] Command buffer execution failed: Insufficient Memory "
        "(00000008:kIOGPUCommandBufferCallbackErrorOutOfMemory)",
    ),
    (
        "out_of_memory",
        "libstdc++",
        "terminate called after throwing an instance of 'std::bad_alloc'\n  what():  std::bad_alloc",
    ),
    ("out_of_memory", "CPython", "Traceback (most recent call last):\nMemoryError"),
    ("out_of_memory", "CUDA", "CUDA error: out of memory"),
    (
        "out_of_memory",
        "llama.cpp, gguf.cpp, under ulimit -v of 250 MiB",
        "gguf_read_emplace_helper: encountered bad_alloc error while reading value for key 'tokenizer.ggml.tokens'",
    ),
    (
        "out_of_memory",
        "google-deepmind/jaxline#11",
        "RESOURCE_EXHAUSTED: Out of memory while trying to allocate 285212672 bytes.",
    ),
    (
        "out_of_memory",
        "kingoflolz/mesh-transformer-jax#209",
        "RESOURCE_EXHAUSTED: Failed to allocate request for 256.00MiB (268435456B) on device ordinal 0",
    ),
    (
        "out_of_memory",
        "lmstudio-ai/lmstudio-bug-tracker#2240",
        "RuntimeError: [metal::malloc] Attempting to allocate 48736917632 bytes which is greater than the maximum "
        "allowed buffer size of 30150672384 bytes.",
    ),
    ("out_of_memory", "Go", "fatal error: runtime: out of memory"),
    ("out_of_memory", "Go", "fatal error: runtime: cannot allocate memory"),
    ("out_of_memory", "Rust, alloc::handle_alloc_error", "memory allocation of 4294967296 bytes failed"),
    (
        "out_of_memory",
        "Ollama, server/sched.go",
        "model requires more system memory (9.4 GiB) than is available (5.2 GiB)",
    ),
    (
        "out_of_memory",
        "vLLM, v1/core/kv_cache_utils.py",
        "ValueError: No available memory for the cache blocks. Try increasing `gpu_memory_utilization` when "
        "initializing",
    ),
    (
        "out_of_memory",
        "a runner of Ollama; the reason before its consequence",
        "llama-server process has terminated: exit status 1: cudaMalloc failed: out of memory\n"
        "alloc_tensor_range: failed to allocate CUDA0 buffer of size 5064192000\nerror loading model: unable "
        "to allocate CUDA0 buffer",
    ),
    (
        "context_overflow",
        "llama.cpp, server-context.cpp",
        "request (9412 tokens) exceeds the available context size (8192 tokens), try increasing it",
    ),
    ("context_overflow", "llama.cpp", "decode: failed to find a memory slot for batch of size 512"),
    (
        "context_overflow",
        "vllm-project/vllm#20409",
        "This model's maximum context length is 16384 tokens. However, you requested 122946 tokens (112946 "
        "in the messages, 10000 in the completion).",
    ),
    ("context_overflow", "vllm-project/vllm#4667", "max_tokens must be at least 1, got -186."),
    (
        "context_overflow",
        "sgl-project/sglang#8096",
        "ValueError: The input (85050 tokens) is longer than the model's context length (32768 tokens).",
    ),
    (
        "context_overflow",
        "lmstudio-ai/lmstudio-bug-tracker#546",
        "Trying to keep the first 111490 tokens when context the overflows. However, the model is loaded "
        "with context length of only 32768 tokens",
    ),
    (
        "context_overflow",
        "google-gemini/gemini-cli#12098",
        "The input token count (314175) exceeds the maximum number of tokens allowed (131072).",
    ),
    (
        "context_overflow",
        "Mistral",
        "Prompt contains 40000 tokens and 0 draft tokens, too large for model with 32768 maximum context length",
    ),
    (
        "context_overflow",
        "Cohere",
        "too many tokens: total number of tokens in the prompt cannot exceed 4081 - received 4292. Try using a shorter "
        "prompt",
    ),
    (
        "context_overflow",
        "cohere-ai/sandbox-topically#4",
        "too many tokens: total number of tokens (prompt and prediction) cannot exceed 2048 - received 6354.",
    ),
    ("context_overflow", "Amazon Bedrock", "ValidationException: Input is too long for requested model."),
    (
        "invalid_settings",
        "llama.cpp, llama-context.cpp",
        "llama_init_from_model: V cache quantization requires flash_attn",
    ),
    (
        "invalid_settings",
        "ggml-org/llama.cpp#28524",
        "common_init_result: quantized V cache requires flash_attn to be enabled",
    ),
    ("invalid_settings", "llama.cpp, common/arg.cpp", "error: invalid argument: --no-such-flag"),
    ("invalid_settings", "argparse", "vllm: error: unrecognized arguments: --no-such-flag"),
    (
        "invalid_settings",
        "llama.cpp, server-http.cpp",
        "start: couldn't bind HTTP server socket, hostname: 127.0.0.1, port: 8080",
    ),
    ("model_error", "llama.cpp", "llama_model_load: error loading model: unknown model architecture: 'nosuch'"),
    ("model_error", "ollama/ollama#718", "model 'mistral' not found, try pulling it first"),
    ("model_error", "vLLM, serving_models.py", "The model `gpt-9` does not exist."),
    ("engine_fault", "ollama/ollama#10555", "CUDA error: an illegal memory access was encountered"),
    (
        "engine_fault",
        "huggingface/text-generation-inference#2593",
        "Server error: Unexpected <class 'RuntimeError'>: CUDA error: an illegal memory access was encountered",
    ),
    ("engine_fault", "ggml", "ggml.c:1234: GGML_ASSERT(n_tokens > 0) failed"),
    (
        "rate_limited",
        "OpenAI",
        "Rate limit reached for gpt-4 in organization org-x on tokens per min (TPM): Limit 10000",
    ),
    ("rate_limited", "TGI, router/src/infer", "Model is overloaded"),
    # A word alone, and a failure that was got over, decide nothing.
    (None, "-", "Pinned memory is used; memory pool of 4 GiB; 12 GiB of GPU memory left"),
    (None, "-", "set up memory; context length is 4096 tokens; the rate is 20 tokens/s; settings: valid"),
    (
        None,
        "llama.cpp, llama-context.cpp",
        "llama_context: failed to allocate compute buffers, retrying without pipeline parallelism",
    ),
    # A warning, a note, a quotation, and what was got over.
    (
        None,
        "llama.cpp, with a limit on locked memory",
        "0.00.412.101 W warning: failed to mlock 96567296-byte buffer (after previously locking 0 bytes): Cannot "
        "allocate memory",
    ),
    (None, "llama.cpp without a prefix", "warning: failed to mlock 96567296-byte buffer: Cannot allocate memory"),
    (
        None,
        "llama.cpp, server-task.cpp: it keeps fewer",
        "0.31.100.000 E srv         alloc: failed to allocate memory for prompt cache state: std::bad_alloc",
    ),
    (
        None,
        "llama.cpp, ggml-cuda.cu: it takes ordinary memory",
        "ggml_cuda_host_malloc: failed to allocate 512.00 MiB of pinned memory: out of memory",
    ),
    (None, "-", "0.01.000.000 I llama_context: failed to allocate, as planned"),
    (None, "-", "W llama_context: failed to allocate a scratch buffer"),
    (None, "-", "WARNING 04-29 13:23:34 [core.py:396] CUDA out of memory"),
    (None, "-", "/lib/torch/cuda.py:12: UserWarning: CUDA out of memory"),
    (None, "-", "note: to avoid 'CUDA out of memory' use -ngl 0"),
    (None, "-", "Start it with -ngl 0 to avoid 'CUDA out of memory'"),
    (None, "-", "internal error. request was: 'Why does torch say CUDA out of memory when loading?'"),
    (None, "Linux, of another process", "Out of memory: Killed process 4242 (firefox) total-vm:30000000kB"),
    (None, "-", ""),
]


@pytest.mark.parametrize(("kind", "source", "text"), SAID)
def test_each_is_what_it_says(kind: FailureKind | None, source: str, text: str) -> None:
    found, line = classify_message(text)
    assert found == kind, source
    assert (line is None) == (kind is None)
    assert line is None or line in text


@pytest.mark.parametrize(("kind", "source", "text"), [said for said in SAID if said[0] is not None])
def test_it_is_found_within_a_log_and_its_line_alone_is_given(kind: FailureKind, source: str, text: str) -> None:
    log = f"loading model, 12 GiB of memory free\n{text}\nsrv: cleaning up before exit...\n"
    found, line = classify_message(log)
    assert found == kind
    assert line in [each.strip() for each in text.splitlines()]


KILLED = [
    "Out of memory: Killed process 4242 (llama-server) total-vm:30000000kB, anon-rss:29000000kB",
    "oom-kill:constraint=CONSTRAINT_MEMCG,nodemask=(null),task_memcg=/box,task=llama-server,pid=4242,uid=0",
]


@pytest.mark.parametrize("line", KILLED)
def test_the_kernel_speaks_of_the_process_that_it_names(line: str) -> None:
    assert classify_message(line, own_pid=4242) == ("out_of_memory", line)
    assert classify_message(line, own_pid=424) == (None, None)
    assert classify_message(line) == (None, None)


def test_what_a_server_went_on_after_is_not_its_end() -> None:
    failed = "0.10.000.000 E ggml_aligned_malloc: failed to allocate buffer of size 4096\n"
    served = "0.11.000.000 I srv  log_server_r: done request: POST /v1/chat/completions 127.0.0.1 200\n"
    assert classify_message(failed + served) == (None, None)
    assert classify_message(served + failed)[0] == "out_of_memory"
    # Written past the log's own thread: other lines can follow it.
    thrown = "terminate called after throwing an instance of 'std::bad_alloc'\n"
    assert classify_message(thrown + served)[0] == "out_of_memory"


def test_a_long_line_is_given_around_its_words() -> None:
    kind, line = classify_message("x" * 10_000 + " CUDA out of memory. " + "y" * 10_000)
    assert kind == "out_of_memory"
    assert line is not None
    assert "CUDA out of memory" in line
    assert len(line) <= 500


@pytest.mark.parametrize("unit", ["The model `", "CUDA error ", "cudaMalloc ", "`inputs` ", " \n", "model '"])
def test_a_text_made_to_be_slow_is_not(unit: str) -> None:
    text = unit * (200_000 // len(unit))
    cpu_s = time.process_time()
    classify_message(text)
    assert time.process_time() - cpu_s < 10  # quadratic, it would be minutes
