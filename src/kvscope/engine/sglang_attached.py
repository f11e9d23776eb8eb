"""An SGLang server that runs already, by its address.

Written from its documents and source (python/sglang/srt/entrypoints, 2025 and 2026), and tested against a stand-in
made from them; it has not been run against a real SGLang."""

from collections.abc import Mapping
from typing import TYPE_CHECKING

from kvscope.engine.openai_server import (
    OpenAIServer,
    attached_version,
    check_attached,
    create_attached,
)
from kvscope.engine.served_facts import SGLANG
from kvscope.model.spec import ModelSpec
from kvscope.scenario import SettingValue

if TYPE_CHECKING:
    from kvscope.engine.registry import EngineChoice


class SglangAttached(OpenAIServer):
    """The limit of one sequence is its max_model_len, its version is read from /server_info, counters from /metrics
    (where it was told --enable-metrics). A prompt is counted by a request of one token: its /tokenize takes no
    conversation."""

    name = "sglang"
    kind = SGLANG


def check(choice: "EngineChoice") -> None:
    """As ``check_attached``; EngineReplyError too for a server that is not SGLang."""
    check_attached(SglangAttached, choice)


def version(choice: "EngineChoice") -> tuple[str, str]:
    """As ``attached_version``."""
    return attached_version(SglangAttached, choice)


def create(choice: "EngineChoice", model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> OpenAIServer:
    """As ``create_attached``. ``model`` is for predictions alone."""
    return create_attached(SglangAttached, choice, settings)


def try_start(choice: "EngineChoice") -> str:
    """There is nothing to start."""
    return ""
