"""A vLLM server that runs already: used as it is, by its address.

Beyond what any server with OpenAI's interface gives (``openai_server.py``): prompts are counted by its own /tokenize,
its counters come from /metrics, and what its pool came out as is read there too. Its prefix cache is left alone, for
others may use it; a request that must not reuse is given a salt of its own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from kvscope.engine.base import ChatRequest, EngineReport, Generation, Load, LoadResult
from kvscope.engine.http_client import run
from kvscope.engine.openai_server import OpenAIServer, attached_version, check_attached, create_attached
from kvscope.engine.prometheus import parse_metrics
from kvscope.engine.vllm import request_fields, with_count, with_counts
from kvscope.engine.vllm_log import pool_facts
from kvscope.errors import ContextOverflow
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice


class VllmAttached(OpenAIServer):
    """See the module."""

    name = "vllm"
    kind = "vllm"

    async def generate_async(self, request: ChatRequest) -> Generation:
        """As ``OpenAIServer.generate_async``; a prompt over the limit is refused with its number of tokens."""
        try:
            return await super().generate_async(request)
        except ContextOverflow as error:
            raise await with_count(error, self.server, self.facts.model, request) from error

    def generate_many(self, load: Load) -> LoadResult:
        """As ``Engine.generate_many``; prompts over the limit are refused with their numbers of tokens."""
        return with_counts(super().generate_many(load), load, self.server, self.facts.model)

    def own_fields(self, request: ChatRequest) -> Mapping[str, Any]:
        """As a started vLLM's."""
        return request_fields(request)

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
