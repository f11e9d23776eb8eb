"""Chat templates: found where models keep them, and rendered as transformers renders them."""

import json
from datetime import datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import ChatTemplateError, MalformedFile, MissingField, ModelNotFound, UnknownName, UsageError
from kvscope.prompt.chat_template.template import ChatTemplate, Rendering, load_template
from kvscope.prompt.conversation import Conversation, Message

DATA = Path(__file__).parent / "data" / "chat_templates"
CASES = json.loads((DATA / "cases.json").read_text(encoding="utf-8"))
# Made by tools/make_chat_template_expectations.py with the real transformers.
EXPECTED = json.loads((DATA / "expected.json").read_text(encoding="utf-8"))["expected"]
NAMES = sorted(path.stem for path in DATA.glob("*.jinja"))
ONE = Conversation(messages=(Message(role="user", content="안녕"),))
TOOL = {"type": "function", "function": {"name": "f", "description": "d", "parameters": {"type": "object"}}}


def standing_clock() -> datetime:
    return datetime(2026, 3, 9, 14, 5, 6)  # noqa: DTZ001  # as the expectations were made: local, without a zone


def conversation_of(case: dict[str, Any]) -> Conversation:
    return Conversation(
        messages=tuple(
            Message(**{**message, "tool_calls": tuple(message.get("tool_calls", ()))}) for message in case["messages"]
        ),
        tools=tuple(case["tools"]),
    )


def template_named(name: str) -> ChatTemplate:
    text = (DATA / f"{name}.jinja").read_text(encoding="utf-8")
    return ChatTemplate(text=text, source=name, special_tokens={"bos_token": "<s>", "eos_token": "</s>"})


def rendering_of(case: dict[str, Any]) -> Rendering:
    gen = case["add_generation_prompt"]
    return Rendering(conversation=conversation_of(case), add_generation_prompt=gen, extra=case["extra"])


@pytest.mark.parametrize("name", NAMES)
def test_every_text_is_that_of_transformers(name: str) -> None:
    cases = [case for case in CASES if case["template"] == name]
    answers = template_named(name).render_each([rendering_of(case) for case in cases], clock=standing_clock)
    assert len(cases) >= 10
    for case, answer in zip(cases, answers, strict=True):
        expected = EXPECTED[case["name"]]
        if isinstance(answer, ChatTemplateError):
            assert answer.kind == "refused"
            assert expected["error"] in answer.message
        else:
            assert answer == expected["text"], case["name"]


def test_the_expectations_cover_every_case_and_some_are_refusals() -> None:
    assert set(EXPECTED) == {case["name"] for case in CASES}
    assert sum("error" in expected for expected in EXPECTED.values()) == 4


def test_the_clock_is_the_one_that_was_given() -> None:
    template = ChatTemplate(text="{{ strftime_now('%Y-%m-%d %H:%M %z') }}", source="t")
    seoul = timezone(timedelta(hours=9))
    assert template.render(ONE, clock=standing_clock) == "2026-03-09 14:05 "
    assert template.render(ONE, clock=lambda: datetime(2027, 1, 2, 3, 4, tzinfo=seoul)) == "2027-01-02 03:04 +0900"


def test_half_of_a_character_survives() -> None:
    broken = Conversation(messages=(Message(role="user", content="a\ud83d"),))
    assert ChatTemplate(text="{{ messages[0].content }}", source="t").render(broken) == "a\ud83d"


def test_one_refusal_does_not_hide_the_other_texts() -> None:
    text = "{% if messages[0].content == 'no' %}{{ raise_exception('not this') }}{% endif %}ok"
    no = Conversation(messages=(Message(role="user", content="no"),))
    answers = ChatTemplate(text=text, source="t").render_each([Rendering(conversation=c) for c in (ONE, no, ONE)])
    assert answers[0] == answers[2] == "ok"
    assert isinstance(answers[1], ChatTemplateError)


def test_what_cannot_be_given_to_a_template_is_said() -> None:
    template = ChatTemplate(text="x", source="t")
    with pytest.raises(UsageError, match="without messages"):
        template.render(Conversation(messages=()))
    with pytest.raises(UsageError, match="plain data"):
        template.render(ONE, documents=[object()])
    with pytest.raises(UsageError, match="'tools'"):
        template.render(ONE, tools=[])


def write(folder: Path, **files: Any) -> None:
    for name, content in files.items():
        path = folder / name.replace("__", "/").replace("_DOT_", ".")
        path.parent.mkdir(exist_ok=True)
        path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")


def test_a_folder_with_its_template_in_the_tokenizers_config(tmp_path: Path) -> None:
    config = {"chat_template": "{{ bos_token }}-{{ eos_token }}", "bos_token": {"content": "<b>"}, "eos_token": None}
    write(tmp_path, tokenizer_config_DOT_json=config, special_tokens_map_DOT_json={"eos_token": "<e>"})
    for source in (tmp_path, tmp_path / "tokenizer_config.json"):
        template = load_template(str(source))
        assert (template.name, template.bos, template.eos) == ("default", "<b>", "<e>")
        assert template.render(ONE) == "<b>-<e>"


def test_a_file_of_its_own_goes_before_the_config_and_the_config_before_the_old_json(tmp_path: Path) -> None:
    write(tmp_path, chat_template_DOT_json={"chat_template": "old"})
    assert load_template(str(tmp_path)).text == "old"
    write(tmp_path, tokenizer_config_DOT_json={"chat_template": "config", "bos_token": "<b>"})
    assert load_template(str(tmp_path)).text == "config"
    assert load_template(str(tmp_path / "chat_template.json")).text == "old"
    write(tmp_path, chat_template_DOT_jinja="own\r\nfile")
    assert load_template(str(tmp_path)).text == "own\nfile"
    assert load_template(str(tmp_path / "chat_template.jinja")).bos == "<b>"


def test_of_several_templates_the_one_for_tools_is_used_with_tools(tmp_path: Path) -> None:
    entries = [{"name": "default", "template": "plain"}, {"name": "tool_use", "template": "{{ tools | length }} tools"}]
    with_tools = Conversation(messages=ONE.messages, tools=(TOOL,))
    write(tmp_path, tokenizer_config_DOT_json={"chat_template": entries})
    template = load_template(str(tmp_path))
    answers = template.render_each([Rendering(conversation=c) for c in (with_tools, ONE, with_tools)])
    assert answers == ["1 tools", "plain", "1 tools"]
    assert load_template(str(tmp_path), name="default").render(with_tools) == "plain"
    with pytest.raises(UnknownName, match="rag"):
        load_template(str(tmp_path), name="rag")
    extra = tmp_path / "jinja"
    write(extra.parent, jinja__chat_template_DOT_jinja="d")
    write(extra, additional_chat_templates__tool_use_DOT_jinja="t")
    assert load_template(str(extra)).render(with_tools) == "t"


def test_a_model_without_a_template_is_said_to_have_none_unless_chatml_is_asked_for(tmp_path: Path) -> None:
    write(tmp_path, tokenizer_config_DOT_json={"bos_token": "<b>"})
    with pytest.raises(MissingField, match="has none"):
        load_template(str(tmp_path))
    template = load_template(str(tmp_path), or_chatml=True)
    assert (template.name, template.bos) == ("chatml", "<b>")
    assert template.render(ONE) == "<|im_start|>user\n안녕<|im_end|>\n<|im_start|>assistant\n"
    assert template.render(ONE, add_generation_prompt=False) == "<|im_start|>user\n안녕<|im_end|>\n"


@pytest.mark.parametrize(
    "content", ["{", "[]", '{"chat_template": 3}', '{"chat_template": [{"name": "x"}]}', "[" * 9999]
)
def test_a_config_that_is_not_one_is_named(tmp_path: Path, content: str) -> None:
    (tmp_path / "tokenizer_config.json").write_text(content)
    with pytest.raises(MalformedFile, match=r"tokenizer_config\.json"):
        load_template(str(tmp_path))


def test_files_that_are_not_there_or_not_text_are_named(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff\xfe{")
    with pytest.raises(MalformedFile, match="not UTF-8"):
        load_template(str(tmp_path))
    with pytest.raises(ModelNotFound):
        load_template(str(tmp_path / "nothing"))
