"""The contract, held by the fake engine: always runs."""

from collections.abc import Callable, Mapping
from typing import ClassVar

import pytest
from engine_contract import CONTEXT_TOKENS, EngineContract

from kvscope.engine.base import Engine
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.scenario import SettingValue

BYTES_PER_TOKEN = 1000


class TestFakeEngine(EngineContract):
    cache_bytes = CONTEXT_TOKENS * BYTES_PER_TOKEN
    two_at_once: ClassVar[Mapping[str, object] | None] = {"n_parallel": 2, "n_ctx": 2 * CONTEXT_TOKENS}

    @pytest.fixture
    def make(self) -> Callable[..., Engine]:
        def build(**settings: SettingValue) -> Engine:
            law = {"n_ctx": CONTEXT_TOKENS, "bytes_per_token": BYTES_PER_TOKEN, **settings}
            return FakeEngine(settings=law, clock=VirtualClock())

        return build
