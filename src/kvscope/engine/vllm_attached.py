"""A vLLM server that runs already: used as it is, by its address.

Beyond what any server with OpenAI's interface gives (``openai_server.py``): prompts are counted by its own /tokenize,
its counters come from /metrics, and what its pool came out as is read there too. Its prefix cache is left alone, for
others may use it; a request that must not reuse is given a salt of its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from kvscope.engine.base import EngineReport
from kvscope.engine.http_client import run
from kvscope.engine.openai_server import OpenAIServer, attached_version, check_attached, create_attached
from kvscope.engine.prometheus import parse_metrics
from kvscope.engine.vllm_log import pool_facts
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice


class VllmAttached(OpenAIServer):
    """See the module."""

    name = "vllm"
    kind = "vllm"

    def report(self) -> EngineReport:
        """As ``OpenAIServer.report``, with the pool as the server states it."""
        found = super().report()
        reply = run(self.server.ask("GET", "/metrics"))
        pool = pool_facts(parse_metrics(reply.body.decode(errors="replace"))) if reply.status == 200 else {}
        return replace(found, effective={**found.effective, **pool})


def check(choice: "EngineChoice") -> None:
    """As ``check_attached``."""
    check_attached(VllmAttached, choice)


def version(choice: "EngineChoice") -> tuple[str, str]:
    """As ``attached_version``."""
    return attached_version(VllmAttached, choice)


def create(choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> OpenAIServer:
    """As ``create_attached``. ``model`` is for predictions alone: what runs is what the server has."""
    return create_attached(VllmAttached, choice, settings)


def try_start(choice: "EngineChoice") -> str:
    """There is nothing to start."""
    return ""
