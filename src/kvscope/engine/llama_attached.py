"""A llama.cpp server that runs already, by its address: what it says of itself is read back, and nothing is set."""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.engine.base import EngineReport
from kvscope.engine.openai_server import (
    OpenAIServer,
    attached_version,
    check_attached,
    create_attached,
)
from kvscope.engine.served_facts import LLAMA_CPP
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice


class LlamaAttached(OpenAIServer):
    """Context, slots and build come from /props and /slots, counters from /metrics (where it was told --metrics), and a
    prompt is counted by /apply-template and /tokenize."""

    name = LLAMA_CPP
    kind = LLAMA_CPP

    def load(self) -> EngineReport:
        """The model is loaded already, and what a llama.cpp server states of an answer is known: nothing is sent but
        questions. Raises EngineStartFailed before ``launch``."""
        report = self.report()
        self.capabilities = replace(
            self.capabilities,
            counts_prompt_tokens=True,
            reports_prompt_tokens=True,
            reports_cached_tokens=True,
            reports_timings=True,
        )
        return report


def check(choice: "EngineChoice") -> None:
    """As ``check_attached``; EngineReplyError too for a server that is not llama.cpp's."""
    check_attached(LlamaAttached, choice)


def version(choice: "EngineChoice") -> tuple[str, str]:
    """As ``attached_version``."""
    return attached_version(LlamaAttached, choice)


def create(choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> OpenAIServer:
    """As ``create_attached``. ``model`` is for predictions alone."""
    return create_attached(LlamaAttached, choice, settings)


def try_start(choice: "EngineChoice") -> str:
    """There is nothing to start."""
    return ""
