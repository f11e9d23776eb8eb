"""What is known of a model once Ollama has loaded it, as the report of a load."""

from collections.abc import Iterator, Mapping
from typing import Any

from kvscope.engine.base import ContextLimit, EngineReport
from kvscope.engine.ollama_http import version_numbers
from kvscope.engine.ollama_server import REFUSES_LONG_PROMPTS, REUSES_NOTHING_UNSHIFTED, Held, OllamaServer
from kvscope.engine.ollama_sharing import ModelUse
from kvscope.scenario import SettingValue


def load_report(
    server: OllamaServer, held: Held, *, model: Mapping[str, Any], use: ModelUse | None, why_no_process: str | None
) -> EngineReport:
    """``model``: as /api/tags lists it. ``use``: None where another program had it loaded. Raises an EngineError."""
    shown = server.show(held.name)
    effective = _effective(held, shown)
    notes = [*_of_its_use(held, use), *_of_the_release(server, held, use)]
    if shown.get("remote_host"):
        notes.append(f"The model runs at {shown['remote_host']}, not on this server: its memory is not seen.")
    if why_no_process is not None:
        notes.append(f"Memory is known only as Ollama states it: {why_no_process}")
    others = [each.name for each in server.all_held() if each.name != held.name]
    if others:
        notes.append(f"Ollama holds other models at the same time: {', '.join(others)}.")
    return EngineReport(
        version=server.version,
        build=f"{held.name} {model.get('digest') or ''}".strip(),
        buffers=(),
        effective=effective,
        slots=(),
        notes=tuple(notes),
        context_limit=_limit(held, use, effective),
    )


def _limit(held: Held, use: ModelUse | None, effective: Mapping[str, SettingValue]) -> ContextLimit | None:
    """As stated; of a release that does not, what kvscope loaded it with. More than it was trained for is cut by some
    releases and not by others."""
    if held.context_tokens is not None:
        return ContextLimit(tokens=held.context_tokens, source="/api/ps: context_length")
    asked, trained = None if use is None else use.options.get("num_ctx"), effective.get("trained_context_tokens")
    if not isinstance(asked, int) or not isinstance(trained, int) or asked > trained:
        return None
    return ContextLimit(tokens=asked, source="num_ctx, as kvscope asked for it; this release does not state it")


def _of_its_use(held: Held, use: ModelUse | None) -> Iterator[str]:
    if use is None:
        yield f"{held.name} had been loaded by another program; it is used as it is, and stays loaded."
        yield (
            "Ollama does not state with which num_batch, num_gpu, num_thread, main_gpu, use_mmap or shift: where those "
            "are not its defaults, it loads the model anew with the first request, for that program too."
        )
    elif use.is_shared():
        yield f"Another kvscope uses {held.name} at the same time; the last of them unloads it."
    if held.expires_at:
        yield (
            f"Ollama keeps {held.name} until {held.expires_at} (keep_alive, anew from each request on); what it holds "
            "until then is no leak."
        )


def _of_the_release(server: OllamaServer, held: Held, use: ModelUse | None) -> Iterator[str]:
    if held.context_tokens is None:
        yield f"Ollama {server.version} does not state the context that it holds (0.10 and newer do)."
    numbers, (first, fixed) = version_numbers(server.version), REUSES_NOTHING_UNSHIFTED
    if use is not None and numbers is not None and first <= numbers < fixed:
        yield (
            f"Ollama {server.version} reuses nothing of earlier prompts where its context is not shifted, as kvscope "
            "asks: each prompt is computed whole (0.30.8 and newer reuse)."
        )
    if numbers is None:
        yield f"It is not known whether this Ollama ({server.version}) cuts or refuses a prompt over the context."
    elif not server.has(REFUSES_LONG_PROMPTS):
        yield f"Ollama {server.version} cuts a prompt over the context without a word."


def _effective(held: Held, shown: Mapping[str, Any]) -> dict[str, SettingValue]:
    """What Ollama states of a loaded model; ``num_ctx`` is for one sequence."""
    details, info = (found if isinstance(found := shown.get(key), Mapping) else {} for key in ("details", "model_info"))
    stated: dict[str, Any] = {
        "num_ctx": held.context_tokens,
        "engine_bytes": held.total_bytes,
        "engine_device_bytes": held.device_bytes,
        "quantization_level": details.get("quantization_level"),
        "keep_alive_until": held.expires_at,
        "trained_context_tokens": info.get(f"{info.get('general.architecture')}.context_length"),
    }
    return {name: value for name, value in stated.items() if isinstance(value, int | str)}
