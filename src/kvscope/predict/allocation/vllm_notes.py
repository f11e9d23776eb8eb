"""What a person should be told beside vLLM's numbers: whether it would start, what fits, and what was assumed."""

from kvscope.model.spec import ModelSpec
from kvscope.predict.allocation.vllm_pool import PoolPlan
from kvscope.predict.allocation.vllm_settings import VllmSettings
from kvscope.predict.prediction import Asked
from kvscope.units import GIB


def notes_of(model: ModelSpec, asked: Asked, settings: VllmSettings, pool: PoolPlan, tokens: int) -> tuple[str, ...]:
    """In the order a person asks: does it start, do these tokens fit, what was assumed."""
    notes = []
    if asked.tokens is None:
        notes.append(f"Tokens not given: counted with {tokens}, max_model_len.")
    if pool.fits is False:
        notes.append(_refusal(pool))
    if tokens > pool.max_model_len:
        notes.append(f"{tokens} tokens do not fit: max_model_len is {pool.max_model_len}; vLLM refuses such a request.")
    elif pool.num_blocks is not None and pool.groups:
        each = pool.demand.sequence_blocks(pool.groups, tokens)
        if each * asked.num_sequences > max(pool.num_blocks - 1, 0):
            most = max(pool.num_blocks - 1, 0) // each
            notes.append(f"{asked.num_sequences} sequences of {tokens} tokens do not all fit: {most} do; others wait.")
    if settings.world_size > 1:
        notes.append(
            f"Bytes are one rank's of {settings.world_size}: stage {pool.fullest_stage} of {len(pool.stages)}."
        )
    if "device" not in settings.as_asked:
        notes.append(_device_note(settings))
    if settings.max_num_batched_tokens is None and any(page.window_tokens for page in pool.plan.pages):
        notes.append(
            f"max_num_batched_tokens not given: {pool.batched_tokens}, vLLM's default for offline use on this device; "
            "windows may hold that many tokens more. `vllm serve` has other defaults."
        )
    length = pool.max_model_len
    if model.trained_context_tokens is not None and length > model.trained_context_tokens:
        notes.append(f"max_model_len {length} is beyond the trained {model.trained_context_tokens}: vLLM refuses it "
                     "unless the config scales its positions.")  # fmt: skip
    return (*notes, *model.warnings)


def _refusal(pool: PoolPlan) -> str:
    assert pool.usable_bytes is not None
    if pool.usable_bytes <= 0:
        return "vLLM would not start: No available memory for the cache blocks."
    estimate = (
        f"the estimated maximum model length is {pool.estimated_length}" if pool.estimated_length else "none fits"
    )
    return (
        f"vLLM would not start: to serve one request with the max seq len ({pool.max_model_len}), "
        f"{round(pool.needed_bytes / GIB, 2)} GiB KV cache is needed, which is larger than the available "
        f"{round(pool.usable_bytes / GIB, 2)} GiB; {estimate}."
    )


def _device_note(settings: VllmSettings) -> str:
    if settings.backend.device == "cpu":
        return "Device not given: vLLM's CPU backend, which was measured, is taken. Say device=cuda for a GPU."
    return (
        "Device not given: these settings are none that a CPU takes, so a GPU's block sizes are taken, with scheduling "
        "that is not asynchronous and float32 states. Say device=cuda for a GPU's own defaults."
    )
