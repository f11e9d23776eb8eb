"""The kvscope command that would measure a change: words of a command line, asked of the same engine and model."""

import shlex
from collections.abc import Mapping, Sequence
from itertools import pairwise

from kvscope.analysis.advice_flags import CONTEXT_SETTINGS, LLAMA_CPP, setting_text
from kvscope.analysis.attempts import Attempt
from kvscope.analysis.condition_names import written
from kvscope.record.rows import DesignRow, Json

# Axis → the design that asks it, where its levels are values of one setting.
_DESIGNS: Mapping[str, str] = {
    "cache_type": "kv_dtype",
    "context": "context_limit",
    "microbatch": "microbatch",
    "window": "window",
    "flash": "flash_attention",
    "host_cache": "host_cache",
}
# How the engine was reached, as the recorded command has it.
_REACHED = ("--engine", "--model", "--engine-command", "--url", "--served-model")
# So many blocks tell most differences of a few per cent from noise; what was measured oftener is measured as often.
REPEATS = 5
# Axes whose values are spelled as the setting is on every engine that has them.
_ANYWHERE = ("context", "microbatch", "host_cache")
# A context limit that holds the prompts of every design.
_ROOMY = 4096


def repeat_command(
    design: DesignRow, attempt: Attempt, levels: Sequence[Json], *, quality: str | None = None
) -> tuple[str, ...]:
    """The same design again, of these levels alone, with at least REPEATS repeats; () of a grid."""
    if design.is_grid:
        return ()
    words = ["kvscope", "measure", design.name, *_engine(design, attempt)]
    words += ["--levels", ",".join(written(level) for level in levels)]
    words += ["--repeats", str(max(REPEATS, design.repeats))]
    for name, flag in (("prompt_tokens", "--input-tokens"), ("output_tokens", "--output-tokens")):
        if isinstance(design.held.get(name), int):
            words += [flag, str(design.held[name])]
    settings = {name: value for name, value in design.settings.items() if name != design.factor}
    return (*words, *_set(settings), *(("--quality", quality) if quality else ()))


def design_command(name: str, attempt: Attempt) -> tuple[str, ...]:
    """A design with its own levels, under the settings of an attempt; () of a server that keeps its own."""
    if _is_attached(attempt):
        return ()
    words = ("kvscope", "measure", name, *_engine(attempt.design, attempt))
    # The design's own prompts may be longer than a limit that was set for others.
    settings = {key: value for key, value in attempt.trial.settings.items() if key not in CONTEXT_SETTINGS.values()}
    return (*words, "--repeats", str(REPEATS), *_set(settings))


def change_command(
    attempt: Attempt, axis: str, change: Mapping[str, Json], before: Mapping[str, Json]
) -> tuple[str, ...]:
    """A design that compares a change with how it is now; a grid with the length of the prompt where no design is of
    that setting alone; () where neither can ask it, or a server keeps its own settings."""
    if _is_attached(attempt) or (axis not in _ANYWHERE and attempt.design.engine != LLAMA_CPP):
        return ()
    settings = dict(attempt.trial.settings)
    name = _DESIGNS.get(axis)
    words = ["kvscope", "measure", name or "grid", *_engine(attempt.design, attempt)]
    if name is not None:
        words += ["--levels", ",".join(_level(axis, each) for each in ({**before}, change))]
    elif len(change) == 1 and (old := before.get(factor := next(iter(change)))) is not None:
        words += ["--factor", f"{factor}={_word(old)},{_word(change[factor])}", "--factor", "prompt_tokens=256,1024"]
    else:
        return ()
    kept = {key: value for key, value in settings.items() if key not in change and key not in before}
    limit = next((kept[key] for key in CONTEXT_SETTINGS.values() if key in kept), None)
    if isinstance(limit, int) and limit < _ROOMY:
        if axis == "window":
            kept = {key: value for key, value in kept.items() if key not in CONTEXT_SETTINGS.values()}
        elif name is not None:
            words += ["--input-tokens", str(limit // 2)]
    quality = ("--quality", "fidelity") if axis in ("cache_type", "weights_dtype") else ()
    return (*words, "--repeats", str(REPEATS), *_set(kept), *quality)


def _level(axis: str, settings: Mapping[str, Json]) -> str:
    if axis == "cache_type" and "cache_type_k" in settings:
        keys, values = settings["cache_type_k"], settings["cache_type_v"]
        return str(keys) if keys == values else f"{keys}/{values}"
    return _word(next(iter(settings.values())))


def _word(value: Json) -> str:
    return str(value).lower() if isinstance(value, bool) else str(value)


def _set(settings: Mapping[str, Json]) -> list[str]:
    return [word for name, value in settings.items() for word in ("--set", setting_text(name, value))]


def _engine(design: DesignRow, attempt: Attempt) -> list[str]:
    """How the engine and the model were named when the rows were made."""
    found = _reached(attempt)
    if "--engine" not in found and design.engine != LLAMA_CPP:
        found += ["--engine", design.engine]
    if "--model" not in found and "--url" not in found:
        found += ["--model", design.model_source]
    return found


def _is_attached(attempt: Attempt) -> bool:
    """Whether the engine ran already, with settings that are not kvscope's. Ollama is given them with each load."""
    return "--url" in _reached(attempt) and attempt.design.engine != "ollama"


def _reached(attempt: Attempt) -> list[str]:
    try:
        asked = [part for word in shlex.split(attempt.run.command) for part in _parts(word)]
    except ValueError:  # a command that was cut, or was never one of a shell
        return []
    return [each for word, value in pairwise(asked) if word in _REACHED for each in (word, value)]


def _parts(word: str) -> tuple[str, ...]:
    """``--engine=fake`` as two words."""
    name, equals, value = word.partition("=")
    return (name, value) if equals and name in _REACHED else (word,)


def command_text(words: Sequence[str]) -> str:
    """The words as a shell takes them."""
    return shlex.join(words)
