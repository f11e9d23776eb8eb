"""What transformers' worker says went wrong, as an error of kvscope's tree."""

from collections.abc import Mapping
from typing import Any

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


def worker_error(message: Mapping[str, Any], *, doing: str, device: str) -> KvscopeError:
    """The error to raise for a message of event "error". ``doing``: what was asked; ``device``: where the model is."""
    said = str(message["message"])
    evidence = {"known_by": "message", "body": said}
    match message["kind"]:
        case "missing_dependency":
            package = str(message.get("package") or "torch")
            extra = "transformers" if package in _OF_THE_EXTRA else None  # optimum-quanto, hqq ... it does not bring
            return MissingDependency("This use of transformers", extra, package)
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
