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
    ("out_of_memory", "Linux", "Out of memory: Killed process 4242 (llama-server) total-vm:30000000kB"),
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
