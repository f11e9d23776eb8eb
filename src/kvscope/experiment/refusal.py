"""Why a trial is not run: it is predicted not to fit, or its prompt is shorter than one can be."""

from collections.abc import Mapping
from typing import Any

from kvscope.engine.base import ChatRequest
from kvscope.errors import MissingDependency, ProbeError, PromptLengthUnreachable
from kvscope.experiment.design import Condition
from kvscope.experiment.own_count import OwnCounter
from kvscope.predict.memory import Prediction
from kvscope.probe.cgroup import available_bytes
from kvscope.probe.nvml import NvidiaProbe
from kvscope.prompt.conversation import Message
from kvscope.units import format_mib

# Outcome, slug, message, hint.
Reason = tuple[str, str, str, str | None]


def _more_context(predicted: Mapping[str, Any], tokens: int) -> str:
    """What to do where a sequence of ``tokens`` is longer than the context limit. llama.cpp caps a slot at what the
    model was trained for, whatever its n_ctx."""
    trained = predicted["model"]["trained_context_tokens"]
    if trained is not None and tokens > trained:
        return f"Ask for less: the model was trained for {trained} tokens"
    return f"Raise it (--set n_ctx={tokens * predicted['effective'].get('streams', 1)})"


def refusal(condition: Condition, prediction: Prediction, *, takes_memory: bool = True) -> Reason | None:
    """Why a trial under this condition is predicted not to fit and so is not run; None when it fits as far as is
    known. ``takes_memory``: whether it will take memory of this machine that it does not hold yet."""
    predicted = prediction.to_dict()
    prompt, output = condition.prompt_tokens, condition.output_tokens
    limit = prediction.limit_tokens
    if limit is not None and prompt + output > limit:
        return (
            "refused",
            "context-overflow",
            f"{prompt} prompt and {output} output tokens are {prompt + output}; the context limit is {limit}. Not run.",
            f"{_more_context(predicted, prompt + output)}, or add --try-anyway to see what the engine does.",
        )
    total = prediction.total_bytes_on("cpu")
    available = available_bytes()
    if takes_memory and available is not None and total > available:
        return (
            "refused",
            "out-of-memory",
            f"Predicted to need {format_mib(total)}; {format_mib(available)} are available. Not run.",
            "Lower n_ctx, use a smaller cache type (cache_type_k, cache_type_v), or add --try-anyway.",
        )
    return _too_large_for_devices(prediction) if takes_memory else None


def too_short(condition: Condition, counter: OwnCounter | None) -> Reason | None:
    """Why no prompt of that few tokens can be made: the chat template alone takes as many, by the model's own files.
    ``counter`` None: they are not known."""
    empty = ChatRequest(messages=(Message(role="user", content=""),), max_output_tokens=1)
    own = None if counter is None else counter.count([empty])[0]
    if own is None or own.tokens < condition.prompt_tokens:
        return None
    return (
        "refused",
        PromptLengthUnreachable.slug,
        f"{condition.prompt_tokens} prompt tokens are too few: the chat template takes {own.tokens}. Not run.",
        f"Ask for more than {own.tokens} (--input-tokens), or add --try-anyway to see what the engine makes of it.",
    )


def _too_large_for_devices(prediction: Prediction) -> Reason | None:
    """Where more is predicted to be on accelerators than all of them together have free: it fits on none."""
    devices = {item.device for item in prediction.items} - {"cpu"}
    needed = sum(prediction.total_bytes_on(device) for device in devices)
    free = free_device_bytes() if needed else None
    if free is None or needed <= free:
        return None
    return (
        "refused",
        "out-of-memory",
        f"Predicted to need {format_mib(needed)} on accelerators; {format_mib(free)} are free there. Not run.",
        "Leave more layers on the host (n_gpu_layers), lower n_ctx, use a smaller cache type, or add --try-anyway.",
    )


def free_device_bytes() -> int | None:
    """What is free on this machine's NVIDIA GPUs together; None where there are none, or they cannot be read."""
    probe = NvidiaProbe(lambda: ())
    try:
        reading = probe.read()
    except (ProbeError, MissingDependency):
        return None
    finally:
        probe.close()
    return reading["device_total_bytes"] - reading["device_used_bytes"]
