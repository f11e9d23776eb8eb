"""A context that is full, for real: a prompt over it, an answer that reaches its end, slots that share it and together
ask for more; and the output's own limit, which is none of these."""

import asyncio
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

import pytest
from sitting import sit, sound

from kvscope.engine.base import ChatRequest, Engine, Generation
from kvscope.engine.http_client import run
from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.model.spec import ModelSpec
from kvscope.record.rows import TrialResult
from kvscope.scenario import SettingValue

pytestmark = pytest.mark.engine


class Sharing(LlamaCppEngine):
    """Sends what is measured together with another prompt of the same length: two slots, and one context for both."""

    asked = 0

    def generate(self, request: ChatRequest) -> Generation:
        self.asked += 1
        if self.asked == 1:
            return super().generate(request)
        other = [replace(message, content=f"And now: {message.content}") for message in request.messages]
        return run(self.both(request, replace(request, messages=tuple(other))))

    async def both(self, one: ChatRequest, other: ChatRequest) -> Generation:
        answers = await asyncio.gather(*map(self.generate_async, (one, other)), return_exceptions=True)
        for answer in answers:
            if isinstance(answer, BaseException):
                raise answer
        assert isinstance(answers[0], Generation)
        return answers[0]


def sharing(model: ModelSpec, settings: Mapping[str, SettingValue]) -> Engine:
    return Sharing(model=model, settings={**settings, "n_parallel": 2, "kv_unified": True})


def test_a_prompt_over_the_context_is_refused_with_both_numbers(smollm2: ModelSpec, tmp_path: Path) -> None:
    (refused,) = sit(tmp_path, smollm2, [sound], prompt_tokens=300, try_anyway=True)
    trial = refused.trial
    assert (trial.outcome, trial.error_slug) == ("context_overflow", "context-overflow")
    assert trial.evidence["known_by"] == "message"
    assert trial.evidence["http_status"] == 400
    # llama.cpp's own body: {"error": {"code": 400, "type": "exceed_context_size_error", "n_prompt_tokens": ...}}
    assert '"n_prompt_tokens":300' in trial.evidence["body"].replace(" ", "")
    assert '"n_ctx":256' in trial.evidence["body"].replace(" ", "")
    assert "300" in str(trial.error_message)
    assert "256" in str(trial.error_message)
    assert refused.requests[-1].prompt_tokens_server is None


def test_an_answer_that_reaches_the_end_of_the_context(smollm2: ModelSpec, tmp_path: Path) -> None:
    """250 of 256 places are taken by the prompt; of 32 tokens asked for, six come, and llama.cpp calls that
    "length"."""
    (result,) = sit(tmp_path, smollm2, [sound], prompt_tokens=250, output_tokens=32, try_anyway=True)
    assert result.trial.outcome == "stopped_early"
    answered = result.requests[-1]
    assert (answered.output_tokens, answered.finish_reason) == (6, "length")


@pytest.fixture(scope="module")
def shared(smollm2: ModelSpec, tmp_path_factory: pytest.TempPathFactory) -> list[TrialResult]:
    """Each prompt fits the 256 places, both together do not: 160 and a few more."""
    return sit(tmp_path_factory.mktemp("shared"), smollm2, [sharing, sound], prompt_tokens=160, output_tokens=8)


def test_slots_that_share_a_context_and_ask_for_more_together(shared: list[TrialResult]) -> None:
    trial = shared[0].trial
    assert (trial.outcome, trial.error_slug) == ("context_overflow", "context-overflow")
    assert "context size has been exceeded" in str(trial.error_message).lower()
    assert trial.evidence["known_by"] == "message"
    assert "exceeded" in trial.evidence["body"].lower()
    assert shared[0].requests[-1].error_slug == "context-overflow"


def test_t14_the_outputs_own_limit_is_not_the_contexts(shared: list[TrialResult]) -> None:
    """posit-dev/chatlas#327: a reply cut at max_tokens, with context to spare, is as long as asked. It is the trial
    after the failed one, too."""
    result = shared[1]
    assert (result.trial.outcome, result.trial.error_slug) == ("ok", None)
    answered = result.requests[-1]
    assert (answered.output_tokens, answered.output_tokens_limit, answered.finish_reason) == (8, 8, "length")
    assert answered.prompt_tokens_server == 160
    assert result.effective["context_limit_tokens"] == 256
