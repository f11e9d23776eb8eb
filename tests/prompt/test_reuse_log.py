"""A log of requests: who goes on from whom, what is reused, and sums that hold."""

from collections.abc import Sequence
from datetime import datetime
from typing import Any

import pytest
from reuse_cases import say

from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.reuse.compare import Comparison
from kvscope.prompt.reuse.log import compare_log
from kvscope.prompt.tokenizers.bytes import BytesTokenizer
from kvscope.scenario import SettingValue

# "[user]" 6 bytes, a content, ";" 1; "[assistant]" 11.
PLAIN = ChatTemplate(
    text=(
        "{% for m in messages %}{% if m.role == 'bad' %}{{ raise_exception('no') }}{% endif %}"
        "[{{ m.role }}]{{ m.content }};{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    source="t",
)


def comparison(**settings: SettingValue) -> Comparison:
    return Comparison(
        template=PLAIN,
        tokenizer=BytesTokenizer(),
        engine="llama.cpp",
        engine_version=None,
        model=None,
        settings=settings,
        context_limit_tokens=None,
        now=datetime(2026, 11, 29),  # noqa: DTZ001
    )


def rows(requests: Sequence[LoadedRequest], **more: Any) -> list[tuple[Any, ...]]:
    turns = compare_log(requests, comparison(), **more).to_dict()["turns"]
    names = ("previous", "prompt_tokens", "reusable_tokens", "recomputed_tokens", "broken_by")
    return [tuple(turn[name] for name in names) for turn in turns]


A1 = say(("user", "Why?"))
A2 = say(("user", "Why?"), ("assistant", "So."), ("user", "Ah!"))
B1 = say(("user", "Hi"))
B2 = say(("user", "Hi"), ("assistant", "Hm."), ("user", "Oh!"))


def test_each_turn_goes_on_from_the_one_before() -> None:
    # A1: 6 + 4 + 1 + 11 = 22. A2: 11 + 11 + 3 + 1 + 6 + 3 + 1 + 11 = 47; 22 and the 3 of "So." are held.
    assert rows([A1, A2]) == [(None, 22, 0, 22, None), (1, 47, 25, 22, None)]


def test_conversations_that_alternate_are_told_apart() -> None:
    # B1: 6 + 2 + 1 + 11 = 20; B2: 9 + 11 + 3 + 1 + 6 + 3 + 1 + 11 = 45. Of the other conversation, "[user]" is common.
    one_after_another = [
        (None, 22, 0, 22, None),
        (1, 20, 6, 14, "other-conversation"),
        (2, 47, 6, 41, "other-conversation"),
        (3, 45, 6, 39, "other-conversation"),
    ]
    assert rows([A1, B1, A2, B2]) == one_after_another
    found = compare_log([A1, B1, A2, B2], comparison(n_parallel=2, kv_unified=False), by_conversation=True).to_dict()
    assert [turn["previous"] for turn in found["turns"]] == [None, 1, 1, 2]
    assert [turn["broken_by"] for turn in found["turns"]] == [None, "other-conversation", None, None]
    # Two slots: each conversation keeps its own.
    assert [turn["reusable_tokens"] for turn in found["turns"]][2:] == [25, 23]


def test_totals_are_the_sums_of_the_turns() -> None:
    found = compare_log([A1, B1, A2, B2], comparison()).to_dict()
    for name in ("prompt_tokens", "reusable_tokens", "recomputed_tokens"):
        assert found["totals"][name] == sum(turn[name] for turn in found["turns"])
    assert found["broken_by"] == {"other-conversation": 3}


@pytest.mark.parametrize("by_conversation", [False, True])
def test_a_request_that_cannot_be_rendered_is_left_out_and_the_others_count(by_conversation: bool) -> None:
    found = compare_log(
        [A1, say(("bad", "x")), A2], comparison(), by_conversation=by_conversation, problems=["line 9: no JSON"]
    ).to_dict()
    assert [turn["previous"] for turn in found["turns"]] == [None, None, 1]
    assert "no" in found["turns"][1]["problem"]
    assert found["turns"][2]["reusable_tokens"] == 25
    assert found["totals"]["prompt_tokens"] is None  # one is not known, and never 0
    assert found["problems"] == ["line 9: no JSON"]


def test_a_log_renders_no_text_twice_and_many_in_one_process(monkeypatch: pytest.MonkeyPatch) -> None:
    rendered: list[int] = []
    plain = ChatTemplate.render_each

    def counting(self: ChatTemplate, renderings: Sequence[Any], **more: Any) -> Any:
        rendered.append(len(renderings))
        return plain(self, renderings, **more)

    monkeypatch.setattr(ChatTemplate, "render_each", counting)
    seen: list[tuple[int, int]] = []
    compare_log([A1, A2] * 5, comparison(), by_conversation=True, progress=lambda *at: seen.append(at))
    # Two texts, and the two without what asks for an answer.
    assert rendered == [4]
    assert seen == [(number, 10) for number in range(10)]
