"""Requests as llama.cpp's server reads them. Every text here is what the server (b11549) made of the same body with the
same template, or that it refused it; measured once, by hand."""

import json
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import ChatTemplateError
from kvscope.prompt.chat_template.files import LLAMA_CPP, TRANSFORMERS
from kvscope.prompt.chat_template.llama_cpp import Capabilities
from kvscope.prompt.chat_template.template import ChatTemplate, Rendering
from kvscope.prompt.conversation_file import LoadedRequest, parse_log
from kvscope.prompt.counting.request import count_request
from kvscope.prompt.prompt_text import as_read_by, continuation
from kvscope.prompt.reuse.compare import compare_requests
from kvscope.prompt.tokenizers.bytes import BytesTokenizer

# Without what it says of thinking where the last message is continued, of which the server makes more there. Its
# reasoning_content is not spelled out: kvscope takes a template that names it for one that can think, where the
# server looks for marks of thinking around it, which are not there.
ECHO = (
    "{% for m in messages %}[{{ m.role }}|{{ m.content }}|{{ m['reasoning' ~ '_content'] }}|{% if m.tool_calls %}"
    "{% for c in m.tool_calls %}{{ c.function.name }}:{{ c.function.arguments | tojson }}{% endfor %}{% endif %}]"
    "{% endfor %}{% if tools %}T{{ tools | tojson }}{% endif %}{% if add_generation_prompt %}<GEN>{% endif %}"
    "{% if enable_thinking is defined %} et={{ enable_thinking }}{% endif %}"
    "{% if reasoning_effort is defined %} re={{ reasoning_effort }}{% endif %}"
    "{% if zzz is defined %} z={{ zzz | tojson }}{% endif %}{% if documents is defined %} docs={{ documents | tojson }}"
    "{% endif %}{% if cfm is defined %} cfm={{ cfm }}{% endif %}"
)
SERVER = ChatTemplate(
    text=ECHO, source="echo", style=LLAMA_CPP, capabilities=Capabilities(typed_content=False, object_arguments=True)
)
USER, SAID = {"role": "user", "content": "hi"}, {"role": "assistant", "content": "yo"}
ASKED = "[user|hi||]"
DIGITS = (
    "123456789.5,-0.0,0.0,1.0,1e22,1e16,100000.0,1000000.0,123456.0,1234567.0,0.1,0.1234567,1e-5,1e-7,0.00001234567,"
    "1e300,2.5e-320,9223372036854775807,9223372036854775808,18446744073709551615,18446744073709551616,"
    "12345678901234567890,-9223372036854775808,-9223372036854775809,12345678901234567890123,-1,0"
)
WRITTEN = (
    "1.23457e+08, -0, 0, 1, 1e+22, 1e+16, 100000, 1e+06, 123456, 1.23457e+06, 0.1, 0.123457, 1e-05, 1e-07, "
    "1.23457e-05, 1e+300, 2.49997e-320, 9223372036854775807, -9223372036854775808, -1, 1.84467e+19, "
    "-6101065172474983726, -9223372036854775808, -9.22337e+18, 1.23457e+22, -1, 0"
)


def asked(*messages: Any, **more: Any) -> dict[str, Any]:
    return {"messages": list(messages) or [USER], **more}


def calling(arguments: Any, **message: Any) -> dict[str, Any]:
    call = {"id": "c", "type": "function", "function": {"name": "f", "arguments": arguments}}
    return asked(USER, {"role": "assistant", "content": "x", "tool_calls": [call], **message}, USER)


def tool(**function: Any) -> dict[str, Any]:
    return asked(tools=[{"type": "function", "function": {"name": "f", **function}}])


def loaded(body: Any) -> LoadedRequest:
    text = body if isinstance(body, str) else json.dumps(body)
    (request,) = parse_log(text.encode(), name="r.json").requests
    return request


def rendering(body: Any) -> Rendering:
    request = as_read_by(loaded(body), SERVER)
    return Rendering(
        conversation=request.conversation,
        add_generation_prompt=request.add_generation_prompt,
        continue_final_message=continuation(request),
        extra=request.extra,
    )


OPEN = f"{ASKED}<GEN>yo"
PLAIN = f"{ASKED}<GEN> et=False"
LOST = "[user|hi||][assistant|x||][user|hi||]<GEN> et=False"
TEXTS: list[tuple[Any, str]] = [
    (asked(add_generation_prompt=False), f"{ASKED} et=False"),
    (asked(add_generation_prompt=None), PLAIN),
    # Variables of the template.
    (asked(chat_template_kwargs={"add_generation_prompt": False}), PLAIN),
    (asked(add_generation_prompt=False, chat_template_kwargs={"add_generation_prompt": True}), PLAIN),
    (asked(chat_template_kwargs={"self": 1, "template": 2, "limits": 3, "clock": 4, "zzz": 5}), f"{PLAIN} z=5"),
    (asked(chat_template_kwargs={"extra": 1, "conversation": 2, "continue_final_message": True}), PLAIN),
    (asked(chat_template_kwargs={"enable_thinking": True}), f"{ASKED}<GEN> et=True"),
    (asked(chat_template_kwargs={"documents": [2]}, documents=[1]), f"{PLAIN} docs=[2]"),
    (asked(documents=[{"text": "x"}]), PLAIN),
    # What it passes over.
    (asked(functions=[{"name": "f", "parameters": {}}]), PLAIN),
    (asked(USER, {**SAID, "content": "x", "function_call": {"name": "f", "arguments": "{}"}}, USER), LOST),
    (asked(USER, {**SAID, "content": "x", "reasoning": "R"}, USER), LOST),
    (asked(USER, {**SAID, "content": "x", "thinking": "R"}, USER), LOST),
    (asked(USER, {**SAID, "content": "x", "reasoning_content": "R"}, USER), LOST.replace("x||", "x|R|")),
    (asked(system="S", chat_template="{{ messages }}", prompt="S", input="S"), PLAIN),
    # How much to think.
    (asked(reasoning_effort="low"), f"{PLAIN} re=low"),
    (asked(reasoning_effort="none"), PLAIN),
    (asked(reasoning_effort=""), PLAIN),
    (asked(reasoning_effort=5), PLAIN),
    (asked(reasoning_effort="none", chat_template_kwargs={"enable_thinking": True}), f"{ASKED}<GEN> et=True"),
    (asked(reasoning_effort="none", chat_template_kwargs={"reasoning_effort": "high"}), PLAIN),
    (asked(reasoning_effort="low", chat_template_kwargs={"reasoning_effort": "high"}), f"{PLAIN} re=low"),
    # Numbers.
    (
        json.dumps(tool(parameters={"n": "?"})).replace('"?"', f"[{DIGITS}]"),
        f'{ASKED}T[{{"type": "function", "function": {{"name": "f", "description": "", '
        f'"parameters": {{"n": [{WRITTEN}]}}}}}}]<GEN> et=False',
    ),
    (calling(f'{{"n":[{DIGITS}]}}'), f'{ASKED}[assistant|x||f:{{"n": [{WRITTEN}]}}]{PLAIN}'),
    (json.dumps(asked(chat_template_kwargs={"zzz": "?"})).replace('"?"', f"[{DIGITS}]"), f"{PLAIN} z=[{WRITTEN}]"),
    (calling(None), f"{ASKED}[assistant|x||f:null]{PLAIN}"),
    (calling(5), f"{ASKED}[assistant|x||f:5]{PLAIN}"),
    (calling(1234567.5), f"{ASKED}[assistant|x||f:1.23457e+06]{PLAIN}"),
    (calling([1]), f"{ASKED}[assistant|x||f:[1]]{PLAIN}"),
    (calling('"x"'), f'{ASKED}[assistant|x||f:"x"]{PLAIN}'),
    (
        tool(parameters=None),
        f'{ASKED}T[{{"type": "function", "function": {{"name": "f", "description": "", "parameters": null}}}}]'
        "<GEN> et=False",
    ),
]
# A last message of the assistant is left open, whatever the request says.
CONTINUED: list[tuple[Any, str]] = [
    (asked(USER, SAID, add_generation_prompt=False), OPEN),
    (asked(USER, SAID, continue_final_message=False), OPEN),
    (asked(USER, SAID, continue_final_message=False, add_generation_prompt=False), OPEN),
    (asked(USER, SAID, continue_final_message=True, add_generation_prompt=False), OPEN),
    (asked(continue_final_message=True, add_generation_prompt=False), "<GEN>hi"),
    (asked(USER, {**SAID, "content": ""}, add_generation_prompt=False), ASKED),
    (asked(USER, SAID, chat_template_kwargs={"add_generation_prompt": False}), OPEN),
]
REFUSED: list[dict[str, Any]] = [
    asked({"role": "user", "content": [{"type": "input_text", "text": "x"}]}),
    asked({"role": "user", "content": ["x"]}),
    asked({"role": "user", "tool_calls": []}),
    asked(USER, {"role": "assistant", "reasoning_content": "R"}, USER),
    asked(USER, {"role": "assistant", "function_call": {"name": "f", "arguments": "{}"}}, USER),
    asked({"role": "user", "content": "\ud800"}),
    asked(chat_template_kwargs={"enable_thinking": "x"}),
    tool(description=None),
    tool(description=5),
    tool(parameters=[]),
    calling('{"a":"\\ud800"}'),
    calling({"a": "\ud800"}),
    calling('{"n":1e400}'),
    calling(""),
    asked(USER, {**SAID, "tool_calls": [{"type": "function", "function": {"name": "f"}}]}, USER),
]


def test_every_text_is_the_servers() -> None:
    texts = SERVER.render_each([rendering(body) for body, _ in TEXTS])
    for (body, theirs), ours in zip(TEXTS, texts, strict=True):
        assert ours == theirs, body


def test_a_last_message_of_the_assistant_is_left_open() -> None:
    without = replace(SERVER, text=re.sub(r"{% if (enable_thinking|reasoning_effort).*?{% endif %}", "", ECHO))
    without = replace(without, text=without.text.replace("{{ m['reasoning' ~ '_content'] }}", ""))
    texts = without.render_each([rendering(body) for body, _ in CONTINUED])
    for (body, theirs), ours in zip(CONTINUED, texts, strict=True):
        assert ours == theirs, body


def test_an_empty_last_message_adds_nothing_in_a_model_that_thinks_too() -> None:
    text = (Path(__file__).parent / "data" / "chat_templates" / "qwen3.jinja").read_text(encoding="utf-8")
    body = asked(USER, {**SAID, "content": ""})
    assert replace(SERVER, text=text).render_each([rendering(body)]) == ["<|im_start|>user\nhi<|im_end|>\n"]


def test_arguments_as_an_object_for_a_template_that_takes_a_text() -> None:
    template = ChatTemplate(
        text="{{ messages[1].tool_calls[0].function.arguments }}",
        source="text",
        style=LLAMA_CPP,
        capabilities=Capabilities(),
    )
    arguments = {
        "a": 1234567.5, "b": 1e15, "c": 123456789012345.0, "d": 1234567890123456.0, "e": 1e16, "g": 0.0001, "h": 1e-05,
        "i": 100000.0, "j": 12345678901234567890123, "k": 1e22, "l": 18446744073709551615,
    }  # fmt: skip
    assert template.render_each([rendering(calling(arguments))]) == [
        '{"a":1234567.5,"b":1e+15,"c":123456789012345.0,"d":1.234567890123456e+15,"e":1e+16,"g":0.0001,"h":1e-05,'
        '"i":100000.0,"j":1.2345678901234568e+22,"k":1e+22,"l":18446744073709551615}'
    ]


@pytest.mark.parametrize("body", REFUSED)
def test_what_the_server_refuses_is_refused(body: dict[str, Any]) -> None:
    with pytest.raises(ChatTemplateError) as caught:
        SERVER.render(rendering(body).conversation)
    assert caught.value.kind == "refused"


def test_what_it_passes_over_and_what_it_refuses_without_need_is_said() -> None:
    ignored = as_read_by(loaded(asked(functions=[{"name": "f"}], system="S", reasoning_effort="low")), SERVER)
    assert ignored.warnings == ("llama.cpp's server passes over functions, system: not counted.",)
    assert (ignored.not_followed, ignored.uncounted) == ((), ())
    nulls = as_read_by(loaded(asked(USER, {**SAID, "reasoning_content": None}, USER)), SERVER)
    assert "messages[1].reasoning_content is null" in nulls.warnings[0]


def test_another_engines_reading_is_left_as_it_is() -> None:
    template = ChatTemplate(text=ECHO, source="echo", style=TRANSFORMERS)
    request = loaded(asked(functions=[{"name": "f"}], system="S", reasoning_effort="low", response_format={"a": 1}))
    assert as_read_by(request, template) is request
    assert request.not_followed == ("system", "response_format", "reasoning_effort")
    assert request.conversation.tools
    assert as_read_by(request, SERVER).not_followed == ("response_format",)


def test_counting_and_reuse_read_it_so_too() -> None:
    tokenizer = BytesTokenizer()
    names = {"template": 1, "conversation": 2, "clock": 3, "limits": 4, "self": 5}
    first = loaded(asked(functions=[{"name": "f"}], reasoning_effort="low", chat_template_kwargs=names))
    second = loaded(asked(USER, {**SAID, "reasoning": "R"}, USER, reasoning_effort="low", chat_template_kwargs=names))
    counted = count_request(first, template=SERVER, tokenizer=tokenizer)
    assert counted.text == f"{PLAIN} re=low"
    assert "functions" in counted.warnings[0]
    found = compare_requests(first, second, template=SERVER, tokenizer=tokenizer, engine="llama.cpp")
    assert found.prompt_tokens == len(f"[user|hi||][assistant|yo||]{PLAIN} re=low")
    with pytest.raises(ChatTemplateError):
        count_request(loaded(REFUSED[0]), template=SERVER, tokenizer=tokenizer)
