"""What the second of two requests reuses, and what broke it: prefixes written by hand, one token for each byte."""

from datetime import datetime
from typing import Any

import pytest
from reuse_cases import CASES, KIND, NEXT, PICTURES, PLAIN, Case, call, request, say, turn

from kvscope.errors import ChatTemplateError, UnknownName, UsageError
from kvscope.prompt.chat_template.template import ChatTemplate
from kvscope.prompt.conversation import Message
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.reuse.advice import ADVICE
from kvscope.prompt.reuse.changes import with_messages
from kvscope.prompt.reuse.compare import compare_requests
from kvscope.prompt.tokenizers.bytes import BytesTokenizer

BYTES = BytesTokenizer()


def compare(first: LoadedRequest, second: LoadedRequest, template: ChatTemplate = PLAIN, **more: Any) -> dict[str, Any]:
    return compare_requests(first, second, template=template, tokenizer=BYTES, engine="llama.cpp", **more).to_dict()


@pytest.mark.parametrize("case", CASES, ids=lambda case: f"{case.slug} {case.name}".strip())
def test_each_cause_is_named_at_its_place(case: Case) -> None:
    found = compare(case.first, case.second)
    assert found["broken_by"] == case.slug, found
    assert found["common_prefix_tokens"] == len(case.common.encode())
    assert found["reusable_tokens"] == len(case.common.encode())
    assert found["reusable_tokens"] + found["recomputed_tokens"] == found["second"]["prompt_tokens"]
    at = found["broken_at"]
    assert (at["part"], at["message"], at["character"]) == (case.part, case.message, case.character)
    assert at["token"] == found["common_prefix_tokens"]
    assert [later["broken_by"] for later in found["later"]] == list(case.later)
    assert found["excerpt"]["before"] == case.common[-48:]
    assert found["advice"] == ADVICE[case.slug]
    assert found["what"].endswith(".")


def test_what_is_put_behind_breaks_nothing() -> None:
    found = compare(turn(KIND), turn(KIND, more=NEXT))
    # The prompt "[system]Be kind.;[user]Hi;[assistant]" has 37 bytes, the answer "Hello." 6; new are 27:
    # ";[user]And you?;[assistant]".
    assert (found["outcome"], found["broken_by"], found["broken_at"]) == ("appended", None, None)
    assert found["first"] == {"source": "test", "prompt_tokens": 37, "held_tokens": 43, "answer": "history"}
    assert (found["common_prefix_tokens"], found["reusable_tokens"], found["recomputed_tokens"]) == (43, 43, 27)


def test_the_same_request_computes_its_last_token() -> None:
    found = compare(turn(KIND), turn(KIND))
    assert (found["outcome"], found["broken_by"]) == ("repeated", None)
    assert (found["common_prefix_tokens"], found["reusable_tokens"], found["recomputed_tokens"]) == (37, 36, 1)


def test_an_answer_that_was_cut_by_its_limit_lacks_its_last_token() -> None:
    found = compare(say(("user", "Hi"), max_output_tokens=6), say(("user", "Hi"), *NEXT))
    # "[user]Hi;[assistant]" 20, and five of the six bytes of "Hello.".
    assert found["first"]["held_tokens"] == found["common_prefix_tokens"] == 25


def test_an_answer_that_is_stated_is_held_against_the_history() -> None:
    first, second = say(("user", "Hi")), say(("user", "Hi"), *NEXT)
    same = compare(first, second, answer="Hello.")
    assert (same["outcome"], same["first"]["answer"]) == ("appended", "stated")
    trimmed = compare(first, second, answer="Hello. \n")
    assert trimmed["broken_by"] == "answer-changed"
    assert "whitespace" in trimmed["what"]
    assert trimmed["broken_at"] == {"part": "history", "message": 1, "tool": None, "character": 6, "token": 26}
    assert trimmed["later"] == []


def test_thinking_that_the_app_did_not_send_back() -> None:
    first, second = say(("user", "Hi")), say(("user", "Hi"), *NEXT)
    found = compare(first, second, answer="<think>\nhm\n</think>\n\nHello.")
    assert found["broken_by"] == "reasoning-dropped"
    assert "app" in found["what"]
    assert found["common_prefix_tokens"] == len("[user]Hi;[assistant]")


# Thinking is written for the last message only, as Qwen3's template does.
FORGETTING = ChatTemplate(
    text=(
        "{% for m in messages %}[{{ m.role }}]"
        "{{ '{' + m.reasoning_content + '}' if m.reasoning_content and loop.last else '' }}{{ m.content }};"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    source="forgetting",
)


def test_thinking_that_the_template_does_not_write_again() -> None:
    answer = Message(role="assistant", content="Hello.", reasoning="hm")
    second = request(Message(role="user", content="Hi"), answer, Message(role="user", content="So?"))
    found = compare(say(("user", "Hi")), second, FORGETTING)
    # Held: "[user]Hi;[assistant]{hm}Hello."; the second has "[user]Hi;[assistant]Hello.;[user]So?;[assistant]".
    assert found["broken_by"] == "reasoning-dropped"
    assert "template" in found["what"]
    assert found["first"]["held_tokens"] == 20 + 4 + 6
    assert found["common_prefix_tokens"] == 20
    assert (found["broken_at"]["part"], found["broken_at"]["message"]) == ("history", 1)


CALLING = ChatTemplate(
    text=(
        "{% for m in messages %}[{{ m.role }}]{{ '<>' if loop.last and m.role == 'assistant' }}{{ m.content }}"
        "{% for c in m.tool_calls or [] %}!{{ c.function.arguments }}{% endfor %};"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}"
    ),
    source="calling",
)


def test_an_answer_that_cannot_be_seen_is_not_guessed() -> None:
    """Its text as the last message is not its text in the history; which of them the model wrote is not known."""
    first = say(("user", "Hi"))
    second = request(Message(role="user", content="Hi"), call("{}"), Message(role="tool", content="12"))
    found = compare(first, second, CALLING)
    assert (found["first"]["answer"], found["first"]["held_tokens"], found["outcome"]) == ("unknown", 20, "appended")
    assert any("not known" in note for note in found["notes"])


def test_an_answer_that_calls_a_tool_is_held_as_the_template_writes_it() -> None:
    first = say(("user", "Hi"))
    second = request(Message(role="user", content="Hi"), call("{}"), Message(role="tool", content="12"))
    found = compare(first, second)
    # "[user]Hi;[assistant]" 20 and "!alpha{}" 8.
    assert (found["first"]["answer"], found["first"]["held_tokens"], found["outcome"]) == ("history", 28, "appended")


def template(body: str) -> ChatTemplate:
    return ChatTemplate(text=body, source="t")


TEMPLATE_CAUSES = [
    (
        "template-rewrites-history",  # the tools' place, or an instruction, is in the last question only
        "{% for m in messages %}[{{ m.role }}{{ '!' if loop.last }}]{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[assistant]{% endif %}",
        "[user",
    ),
    (
        "generation-prompt",
        "{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[assistant]<think></think>{% endif %}",
        "[user]Hi;[assistant]",
    ),
    (
        "template-rewrites-answer",
        "{% for m in messages %}[{{ m.role }}]{{ m.content | upper if m.role == 'assistant' else m.content }};"
        "{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}",
        "[user]Hi;[assistant]H",
    ),
]


@pytest.mark.parametrize(("slug", "body", "common"), TEMPLATE_CAUSES)
def test_what_the_template_does(slug: str, body: str, common: str) -> None:
    found = compare(say(("user", "Hi")), say(("user", "Hi"), *NEXT), template(body))
    assert found["broken_by"] == slug
    assert found["common_prefix_tokens"] == len(common)
    assert found["later"] == []  # a template cannot be mended


TIMED = "{{ strftime_now('%s') }}{%% for m in messages %%}[{{ m.role }}]{{ m.content }};{%% endfor %%}"


@pytest.mark.parametrize(
    ("form", "slug", "tokens", "note"),
    [
        ("%H:%M", "template-clock", 4, None),  # 14:05 and 14:06
        ("%Y-%m-%d", None, None, "day"),
        ("%Y-%m-%d %H", None, None, "hour"),
        ("", None, None, None),
    ],
)
def test_a_template_that_writes_the_time(form: str, slug: str | None, tokens: int | None, note: str | None) -> None:
    now = datetime(2026, 11, 29, 14, 5, 6)  # noqa: DTZ001
    body = TIMED % form + "{% if add_generation_prompt %}[assistant]{% endif %}"
    found = compare(say(("user", "Hi")), say(("user", "Hi"), *NEXT), template(body), clock=lambda: now)
    assert found["broken_by"] == slug
    if tokens is not None:
        assert found["common_prefix_tokens"] == tokens
    written = [line for line in found["notes"] if line.startswith("The template writes")]
    assert [f"when the {note} changes" in line for line in written] == ([True] if note else [])


class Pairs(BytesTokenizer):
    """Bytes, but two blanks in a row are one token (256)."""

    def encode_with_starts(self, text: str, *, parse_special: bool = False) -> tuple[list[int], list[int]]:
        ids: list[int] = []
        starts: list[int] = []
        for index, byte in enumerate(text.encode("ascii")):
            if byte == 32 and ids[-1:] == [32]:
                ids[-1] = 256
            else:
                ids.append(byte)
                starts.append(index)
        return ids, starts


def test_tokens_that_merge_where_the_text_goes_on() -> None:
    body = (
        "{% for m in messages %}[{{ m.role }}] {{ m.content }};{% endfor %}"
        "{% if add_generation_prompt %}[assistant] {% endif %}"
    )
    first = say(("user", "Hi"))
    second = say(("user", "Hi"), ("assistant", " Hello."), ("user", "So?"))
    found = compare_requests(first, second, template=template(body), tokenizer=Pairs(), engine="llama.cpp").to_dict()
    # "[user] Hi;[assistant] " ends with a blank of its own; in the second prompt it is one token with the next blank.
    assert found["broken_by"] == "token-boundary"
    assert found["common_prefix_tokens"] == len("[user] Hi;[assistant]")
    assert (found["broken_at"]["part"], found["broken_at"]["token"]) == ("template", 21)


def test_another_picture_breaks_what_no_text_shows() -> None:
    found = compare(*PICTURES)
    assert (found["broken_by"], found["outcome"]) == ("image-changed", "broken")
    assert (found["broken_at"]["message"], found["common_prefix_tokens"]) == (0, 0)
    assert (found["reusable_tokens"], found["recomputed_tokens"], found["status"]) == (None, None, "unknown")
    assert any("Pictures" in note for note in found["notes"])


def test_with_the_same_picture_the_text_goes_on_and_the_number_is_not_known() -> None:
    first, second = PICTURES
    same = with_messages(second, [*first.conversation.messages, *second.conversation.messages[1:]])
    found = compare(first, same)
    assert (found["outcome"], found["broken_by"], found["reusable_tokens"]) == ("appended", None, None)


def test_the_template_is_not_blamed_for_what_the_app_changed_too() -> None:
    body = "{{ messages | length }}:{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
    alone = compare(say(("user", "Hi")), say(("user", "Hi"), *NEXT), template(body))
    assert (alone["broken_by"], alone["common_prefix_tokens"]) == ("template-rewrites-history", 0)
    both = compare(say(("user", "Hi")), say(("user", "Ho"), *NEXT), template(body))
    assert (both["broken_by"], both["common_prefix_tokens"]) == ("several-changes", 0)


def test_one_bos_more() -> None:
    body = (
        "{% if messages | length > 1 %}S{% endif %}S{% for m in messages %}[{{ m.role }}]{{ m.content }};{% endfor %}"
    )
    found = compare(say(("user", "Hi")), say(("user", "Hi"), *NEXT), template(body))
    assert (found["broken_by"], found["common_prefix_tokens"]) == ("bos", 1)


def test_a_prompt_that_does_not_fit_is_not_said_to_be_reused() -> None:
    found = compare(turn(KIND), turn(KIND, more=NEXT), context_limit_tokens=60)
    assert (found["fits"], found["reusable_tokens"], found["broken_by"]) == (False, None, "context-full")
    assert compare(turn(KIND), turn(KIND, more=NEXT), context_limit_tokens=70)["fits"] is True


def test_a_later_break_is_where_the_mended_request_would_break() -> None:
    case = next(case for case in CASES if case.name == "two at once")
    later = compare(case.first, case.second)["later"][0]
    assert later["broken_at"] == {"part": "user", "message": 1, "tool": None, "character": 2, "token": 36}
    # "[system]Now 14:05. Be kind.;[user]Hi" has 36 bytes.


@pytest.mark.parametrize(
    ("first", "second", "error"),
    [
        (request(), turn(KIND), UsageError),
        (turn(KIND), say(("nobody", "Hi")), ChatTemplateError),
    ],
)
def test_requests_that_cannot_be_rendered(first: LoadedRequest, second: LoadedRequest, error: type[Exception]) -> None:
    strict = template(
        "{% for m in messages %}{% if m.role == 'nobody' %}{{ raise_exception('unknown role') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    with pytest.raises(error):
        compare(first, second, strict)


def test_an_engine_without_a_rule_is_named() -> None:
    with pytest.raises(UnknownName):
        compare_requests(turn(KIND), turn(KIND), template=PLAIN, tokenizer=BYTES, engine="nothing")


@pytest.mark.parametrize("history", [1000, 2000, 4000, 8000])
def test_with_reuse_only_what_is_new_is_computed(history: int) -> None:
    """From public reports (ente-io/ente 11378, netdur/llama_cpp_dart 79): histories of 1,000 to 8,000 tokens and 100
    new ones. Without reuse 1,100 to 8,100 are computed, with it 100 each time."""
    plain = template("{% for m in messages %}{{ m.content }}{% endfor %}")
    first = say(("user", "x" * (history - 50)))
    second = say(("user", "x" * (history - 50)), ("assistant", "y" * 50), ("user", "z" * 100))
    with_reuse = compare(first, second, plain)
    assert with_reuse["second"]["prompt_tokens"] == history + 100
    assert with_reuse["recomputed_tokens"] == 100
    without = compare(first, second, plain, settings={"cache_prompt": False})
    assert without["recomputed_tokens"] == history + 100


def test_the_next_minute_changes_the_first_byte() -> None:
    """From a public report (crystal-autobot/autobot 143): 2,688 of 2,785 tokens were reused, none a minute later."""
    plain = template("{% for m in messages %}{{ m.content }}{% endfor %}")
    rest = "x" * (2785 - len("9:59 "))
    within = compare(say(("system", "9:59 " + rest)), say(("system", "9:59 " + rest)), plain)
    assert within["common_prefix_tokens"] == within["second"]["prompt_tokens"] == 2785
    later = compare(say(("system", "9:59 " + rest)), say(("system", "8:00 " + rest)), plain)
    assert (later["common_prefix_tokens"], later["reusable_tokens"], later["broken_by"]) == (0, 0, "clock")
    assert later["broken_at"] == {"part": "system", "message": 0, "tool": None, "character": 0, "token": 0}


def test_every_cause_has_a_test() -> None:
    named = {case.slug for case in CASES} | {slug for slug, _, _ in TEMPLATE_CAUSES}
    alone = {"image-changed", "bos", "token-boundary", "template-clock", "context-full", "several-changes"}
    assert named | alone == set(ADVICE)


def test_every_cause_is_documented() -> None:
    from pathlib import Path

    page = (Path(__file__).parents[2] / "docs" / "reference" / "reuse.md").read_text(encoding="utf-8")
    assert [slug for slug in ADVICE if f"| `{slug}` |" not in page] == []
    fields = {*compare(turn(KIND), turn(KIND, more=NEXT)), *compare(CASES[0].first, CASES[0].second)["broken_at"]}
    assert {name for name in fields if f"`{name}`" not in page} == set()


@pytest.mark.parametrize(
    ("before", "after"),
    [
        ("", "<context>\nrivers\n</context>\n"),
        ("<context>\nseas\n</context>\n", ""),
        ("", "검색 결과: 강은 바다로 간다.\n"),
        ("<context>\nseas\n</context>\n", "<context>\nrivers\n</context>\n"),
    ],
)
def test_retrieved_text_put_before_the_question_is_named(before: str, after: str) -> None:
    found = compare(turn(KIND, f"{before}Where?"), turn(KIND, f"{after}Where?", more=NEXT))
    assert found["broken_by"] == "retrieved-first"
    # A question that has nothing in common with the first one is another conversation, whatever it brings.
    other = compare(turn(KIND, "Where?"), turn(KIND, "<context>a</context> Who"))
    assert other["broken_by"] == "other-conversation"
