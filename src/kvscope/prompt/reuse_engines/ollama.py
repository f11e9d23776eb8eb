"""Ollama: it starts llama.cpp's server and sends it whole texts, so llama.cpp's rule decides. Read, not measured."""

import re
from collections.abc import Mapping
from dataclasses import replace

from kvscope.prompt.reuse_engines import llama_cpp
from kvscope.prompt.reuse_engines.base import Reusable, ReuseQuestion
from kvscope.prompt.reuse_engines.setting_values import at_least_one
from kvscope.scenario import SettingValue

SOURCE = "Ollama: llm/llama_server.go (a rendered text, without marks of its messages); read, not measured"
_LAST_OWN_RUNNER = (0, 20)


def reusable(question: ReuseQuestion) -> Reusable:
    """As llama.cpp, for a text whose messages the server does not know. Raises as llama.cpp's rule."""
    found = re.search(r"(\d+)\.(\d+)", question.engine_version or "")
    if found is not None and (int(found[1]), int(found[2])) < _LAST_OWN_RUNNER:
        because = f"Ollama {question.engine_version} has a runner of its own, whose rule is not known here"
        return Reusable(tokens=None, status="unknown", because=because, source=SOURCE)
    settings = _for_llama_cpp(question.settings)
    answer = llama_cpp.reusable(replace(question, engine_version=None, settings=settings, user_starts=()))
    return replace(answer, status="unknown" if answer.tokens is None else "estimated", source=SOURCE)


def _for_llama_cpp(settings: Mapping[str, SettingValue]) -> dict[str, SettingValue]:
    """num_ctx is of each request, llama.cpp's n_ctx of all of them; a batch is computed at once."""
    made: dict[str, SettingValue] = {}
    parallel = settings.get("num_parallel")
    if parallel is not None:
        made["n_parallel"] = parallel
    batch = settings.get("num_batch")
    if "num_ctx" in settings:
        made["n_ctx"] = at_least_one(settings, "num_ctx", 1) * at_least_one(settings, "num_parallel", 1)
    if batch is not None:
        at_least_one(settings, "num_batch", 1)
        made |= {"n_batch": batch, "n_ubatch": batch}
    return made
