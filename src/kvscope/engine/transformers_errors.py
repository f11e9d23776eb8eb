"""What transformers' worker says went wrong, as an error of kvscope's tree."""

import re
from collections.abc import Mapping
from typing import Any

from kvscope.engine.failure import limited
from kvscope.engine.failure_words import classify_message
from kvscope.errors import (
    EngineModelError,
    EngineNotFound,
    EngineStartFailed,
    InvalidSettings,
    KvscopeError,
    MissingDependency,
    OutOfMemory,
    ServerError,
)

# What pip install 'kvscope[transformers]' brings.
_OF_THE_EXTRA = ("torch", "transformers", "tokenizers")

# What glibc's loader (elf/dl-load.c) says where a library could not be mapped. That memory was the reason it may leave
# out; a file system that forbids programs is named ("Operation not permitted").
_NOT_MAPPED = re.compile(r"failed to map segment from shared object(?!: Operation)|cannot map zero-fill pages")


def worker_error(
    message: Mapping[str, Any], *, doing: str, device: str, memory_limits: tuple[str, ...] = ()
) -> KvscopeError:
    """The error to raise for a message of event "error". ``doing``: what was asked; ``device``: where the model is;
    ``memory_limits``: those in force on the worker (``EngineProcess.memory_limits``)."""
    said = str(message["message"])
    evidence = {"known_by": "message", "body": said}
    match message["kind"]:
        case "missing_dependency":
            package = str(message.get("package") or "torch")
            extra = "transformers" if package in _OF_THE_EXTRA else None  # optimum-quanto, hqq ... it does not bring
            return MissingDependency("This use of transformers", extra, package)
        case "broken_dependency" if classify_message(said)[0] == "out_of_memory":
            return OutOfMemory(
                f"transformers ran out of memory while torch was imported: {said}",
                hint="Free memory, or raise the limit that is set on it (ulimit -v, the container's).",
                evidence=evidence,
            )
        case "broken_dependency" if memory_limits and _NOT_MAPPED.search(said):
            return limited(f"torch cannot be imported: {said}", memory_limits, evidence)
        case "broken_dependency":
            return EngineNotFound(
                f"torch or transformers is installed but cannot be imported: {said}.",
                hint="Reinstall them: pip install --force-reinstall torch transformers",
            )
        case "invalid_settings":
            return InvalidSettings(said, hint="Correct it and start again.", evidence=evidence)
        case "model_error":
            return EngineModelError(
                said,
                hint="Look at the model's folder, and at which transformers knows its model_type.",
                evidence=evidence,
            )
        case "out_of_memory":
            where = f"the GPU ({device})" if "cuda" in said.lower() else "the machine"
            return OutOfMemory(
                f"transformers ran out of memory of {where} while {doing}: {_first_line(said)}",
                hint="Use a shorter prompt, prefill_chunk_tokens, a smaller dtype or a smaller model, or free memory.",
                evidence=evidence,
            )
        case "not_loaded":
            return EngineStartFailed("The engine has no model loaded.", hint="Call load() first.")
    return ServerError(
        f"transformers failed while {doing}: {_first_line(said)}",
        hint="The end of its log is kept with the trial.",
        evidence=evidence,
    )


def _first_line(text: str) -> str:
    return next((line.strip() for line in text.splitlines() if line.strip()), text)
