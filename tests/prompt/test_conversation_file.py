"""Requests out of files as people have them: every form is read, and what cannot be read is named with its place."""

import base64
import json
import struct
from pathlib import Path
from typing import Any

import pytest

from kvscope.errors import KvscopeError, MalformedFile, ModelNotFound
from kvscope.prompt.conversation import Image, Message
from kvscope.prompt.conversation_file import LoadedRequest, parse_log, read_log, read_requests

HELLO = {"role": "user", "content": "안녕"}
CALL = {"id": "c1", "type": "function", "function": {"name": "f", "arguments": '{"a": 1}'}}
TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}


def read(value: Any, tmp_path: Path, name: str = "request.json") -> list[LoadedRequest]:
    path = tmp_path / name
    content = value if isinstance(value, bytes) else value if isinstance(value, str) else json.dumps(value)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return read_requests(path)


def one(value: Any, tmp_path: Path) -> LoadedRequest:
    (request,) = read(value, tmp_path)
    return request


def message(value: Any, tmp_path: Path) -> Message:
    (found,) = one([value], tmp_path).conversation.messages
    return found


def test_a_body_with_everything(tmp_path: Path) -> None:
    body = {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, HELLO],
        "tools": [TOOL],
        "max_tokens": 256,
        "chat_template_kwargs": {"enable_thinking": False},
        "documents": [{"title": "t", "text": "x"}],
        "add_generation_prompt": False,
    }
    request = one(body, tmp_path)
    assert [(m.role, m.content) for m in request.conversation.messages] == [("system", "Be brief."), ("user", "안녕")]
    assert request.conversation.tools == (TOOL,)
    assert request.max_output_tokens == 256
    assert request.extra == {"enable_thinking": False, "documents": [{"title": "t", "text": "x"}]}
    assert not request.add_generation_prompt
    assert request.continue_final_message is None
    assert request.source == str(tmp_path / "request.json")
    assert request.warnings == ()


def test_other_keys_are_kept_as_they_stand(tmp_path: Path) -> None:
    other = {
        "model": "m",
        "stream": True,
        "cache_prompt": False,
        "id_slot": 1,
        "n_predict": 5,
        "response_format": {"a": 1},
    }
    request = one({"messages": [HELLO], "tools": [TOOL], "add_generation_prompt": True, **other}, tmp_path)
    assert request.body == other
    assert request.not_followed == ("response_format",)
    assert one([HELLO], tmp_path).body == {}


def test_no_limit_for_the_output(tmp_path: Path) -> None:
    for key in ("max_tokens", "n_predict", "max_completion_tokens"):
        assert one({"messages": [HELLO], key: -1}, tmp_path).max_output_tokens is None


def test_a_long_role_is_shortened_in_what_is_said(tmp_path: Path) -> None:
    (said,) = one([{"role": "r" * 100_000, "content": "x"}], tmp_path).warnings
    assert len(said) < 200


@pytest.mark.parametrize("arguments", [None, 5, [1], True])
def test_arguments_of_a_call_may_be_any_value(arguments: Any, tmp_path: Path) -> None:
    call = {"type": "function", "function": {"name": "f", "arguments": arguments}}
    assert message({"role": "assistant", "tool_calls": [call]}, tmp_path).tool_calls == (call,)


def test_what_no_request_can_say_is_named_with_its_line(tmp_path: Path) -> None:
    good = json.dumps({"messages": [HELLO]})
    tools = json.dumps({"messages": [HELLO], "chat_template_kwargs": {"tools": []}})
    large = json.dumps({"messages": [HELLO], "tools": [TOOL]}).replace('"object"', "1e400")
    path = tmp_path / "log.jsonl"
    path.write_text("\n".join([good[:20], good[:30], good, tools, large, good]))
    log = read_log(path)
    assert [request.source for request in log.requests] == [f"{path}:3", f"{path}:6"]
    assert log.problems[0].message.startswith(f"{path}: this is not JSON")
    assert "line 4, chat_template_kwargs.tools" in log.problems[2].message
    assert "1e400 is too large" in log.problems[3].message
    assert "line 5" in log.problems[3].message


LINES = [{"messages": [HELLO]}, {"messages": [HELLO, HELLO]}]


@pytest.mark.parametrize(
    ("content", "sizes", "sources"),
    [
        ([HELLO], [1], [""]),
        (HELLO, [1], [""]),
        (LINES, [1, 2], ["[0]", "[1]"]),
        ("\n".join(map(json.dumps, LINES)), [1, 2], [":1", ":2"]),
        ("\r\n".join(map(json.dumps, LINES)) + "\r\n\r\n", [1, 2], [":1", ":2"]),
        ("\ufeff" + json.dumps(LINES[0]) + "\n\n" + json.dumps(LINES[1]), [1, 2], [":1", ":3"]),
        ("\n".join(map(json.dumps, [HELLO, HELLO, HELLO])), [3], [""]),
        ("\n".join(map(json.dumps, [[HELLO], [HELLO, HELLO]])), [1, 2], [":1", ":2"]),
        (json.dumps(LINES[1], indent=2), [2], [""]),
        (json.dumps(LINES[1]).encode("utf-16"), [2], [""]),
        ({"custom_id": "1", "method": "POST", "body": LINES[1]}, [2], [""]),
        ({"request": {"body": LINES[1]}, "response": {"choices": []}}, [2], [""]),
        ({"request": json.dumps(LINES[1])}, [2], [""]),
    ],
)
def test_every_form_of_a_file(content: Any, sizes: list[int], sources: list[str], tmp_path: Path) -> None:
    requests = read(content, tmp_path, "log.jsonl")
    assert [len(request.conversation.messages) for request in requests] == sizes
    assert [request.source for request in requests] == [f"{tmp_path / 'log.jsonl'}{source}" for source in sources]


def test_messages_of_a_call_and_its_answer(tmp_path: Path) -> None:
    call = one(
        [
            {"role": "assistant", "content": None, "tool_calls": [CALL], "reasoning_content": "hm"},
            {"role": "tool", "content": "3", "tool_call_id": "c1", "name": "f"},
            {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": {"a": 1}}}]},
            {"role": "assistant", "content": "", "function_call": {"name": "f", "arguments": "{}"}},
        ],
        tmp_path,
    ).conversation.messages
    assert call[0] == Message(role="assistant", content="", tool_calls=(CALL,), reasoning="hm")
    assert call[1] == Message(role="tool", content="3", tool_call_id="c1", name="f")
    assert call[2].tool_calls[0]["function"]["arguments"] == {"a": 1}
    assert call[3].tool_calls == ({"type": "function", "function": {"name": "f", "arguments": "{}"}},)


def test_functions_of_the_older_form_are_tools(tmp_path: Path) -> None:
    request = one({"messages": [HELLO], "functions": [TOOL["function"]]}, tmp_path)
    assert request.conversation.tools == (TOOL,)


def test_blocks(tmp_path: Path) -> None:
    png = b"\x89PNG\r\n\x1a\n\0\0\0\rIHDR" + struct.pack(">II", 640, 480)
    address = "data:image/png;base64," + base64.b64encode(png).decode()
    blocks = [
        {"type": "text", "text": "a"},
        {"type": "image_url", "image_url": {"url": address}},
        {"type": "text", "text": "b"},
        {"type": "image_url", "image_url": {"url": "https://example.org/cat.png"}},
    ]
    found = message({"role": "user", "content": blocks}, tmp_path)
    assert found.content == "a\nb"
    sent = (Image(source="data:", width=640, height=480), Image(source="https://example.org/cat.png"))
    assert found.blocks == ("a", sent[0], "b", sent[1])


def test_a_block_that_cannot_be_counted_is_said(tmp_path: Path) -> None:
    blocks = [{"type": "input_audio", "input_audio": {"data": "AA=="}}, {"type": "text", "text": "x"}]
    request = one([{"role": "user", "content": blocks}], tmp_path)
    assert request.uncounted == ("messages[0].content[0]: input_audio",)
    assert request.conversation.messages[0].content == "x"
    assert request.warnings == ("Not counted: messages[0].content[0]: input_audio.",)


def test_roles_that_are_not_known_are_kept_and_said(tmp_path: Path) -> None:
    request = one([{"role": "foo", "content": "x"}, {"role": "developer", "content": "y"}, HELLO], tmp_path)
    assert [m.role for m in request.conversation.messages] == ["foo", "developer", "user"]
    assert len(request.warnings) == 1
    assert "'foo'" in request.warnings[0]


def test_what_is_not_followed_is_said(tmp_path: Path) -> None:
    request = one({"messages": [HELLO], "system": "Be brief."}, tmp_path)
    assert request.uncounted == ("system",)
    assert "'system'" in request.warnings[0]
    assert "'chat_template'" in one({"messages": [HELLO], "chat_template": "x"}, tmp_path).warnings[0]


def test_a_last_message_that_is_to_be_continued(tmp_path: Path) -> None:
    asked = {"messages": [HELLO], "continue_final_message": True, "add_generation_prompt": False}
    assert one(asked, tmp_path).continue_final_message is True
    for value in (False, None):  # llama.cpp b11549 takes false as not said; transformers closes every message anyway
        assert one({"messages": [HELLO], "continue_final_message": value}, tmp_path).continue_final_message is None
    with pytest.raises(MalformedFile, match="add_generation_prompt is false"):
        one({"messages": [HELLO], "continue_final_message": True}, tmp_path)
    assert one({"messages": [HELLO]}, tmp_path).continue_final_message is None


def test_retrieved_messages_say_so(tmp_path: Path) -> None:
    assert message({**HELLO, "origin": "retrieved"}, tmp_path).origin == "retrieved"


@pytest.mark.parametrize(
    ("content", "where"),
    [
        ("", "line 1"),
        ("   \n \n", "line 1"),
        ("hello", "line 1, column 1"),
        ('{"messages": [{"role": "user", "cont', "line 1, column"),
        ('{"messages":\n [1, 2,, 3]}', "line 2, column 8"),
        ({}, "no request"),
        ([], "messages"),
        ({"messages": []}, "messages"),
        ({"messages": "x"}, "messages"),
        ({"prompt": "x"}, "no request"),
        ([1], "[0]"),
        ([HELLO, {"content": "x"}], "[1].role"),
        ([{"role": 3, "content": "x"}], "[0].role"),
        ([{"role": "user"}], "[0].content"),
        ([{"role": "user", "content": 3}], "[0].content"),
        ([{"role": "user", "content": [{"text": "x"}]}], "[0].content[0]"),
        ([{"role": "user", "content": [{"type": "text"}]}], "[0].content[0].text"),
        ([{"role": "user", "content": "x", "name": 3}], "[0].name"),
        ([{"role": "assistant", "content": "x", "tool_calls": {}}], "[0].tool_calls"),
        ([{"role": "assistant", "content": "x", "tool_calls": [{"function": {}}]}], "[0].tool_calls[0]"),
        ([{**HELLO, "origin": "web"}], "[0].origin"),
        ({"messages": [HELLO], "tools": {}}, "tools"),
        ({"messages": [HELLO], "tools": [{"type": "function"}]}, "tools[0]"),
        ({"messages": [HELLO], "max_tokens": "many"}, "max_tokens"),
        ({"messages": [HELLO], "max_tokens": True}, "max_tokens"),
        ({"messages": [HELLO], "chat_template_kwargs": 3}, "chat_template_kwargs"),
        ({"messages": [HELLO], "documents": "x"}, "documents"),
        ({"messages": [HELLO], "continue_final_message": 1}, "continue_final_message"),
        ({"messages": [HELLO], "add_generation_prompt": "no"}, "add_generation_prompt"),
        ('{"messages": [{"role": "user", "content": NaN}]}', "NaN"),
        ('{"messages": [{"role": "user", "role": "system", "content": "x"}]}', "'role' stands twice"),
        ('{"messages": ' + "9" * 5000 + "}", "line 1"),
        ('{"messages": ' + "[" * 300 + "]" * 300 + "}", "nested deeper"),
        ('{"messages": ' + "[" * 100_000 + "]" * 100_000 + "}", "nested too deep"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "byte 7"),
        ('{"messages": [{"role": "user",\n "content": "안녕"}]}'.encode("cp949"), "line 2"),
        ({"request": {"messages": [3]}}, "request.messages[0]"),
    ],
)
def test_bad_files_are_named_with_the_place(content: Any, where: str, tmp_path: Path) -> None:
    with pytest.raises(MalformedFile) as raised:
        read(content, tmp_path)
    assert where in raised.value.message
    assert "request.json" in raised.value.message
    assert raised.value.hint


def test_a_line_that_is_no_request_is_named_and_the_others_are_read(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    good = json.dumps(LINES[0])
    path.write_text("\n".join([good, '{"messages": []}', good, '{"messages": [{"role": "us']))
    log = read_log(path)
    assert [request.source for request in log.requests] == [f"{path}:1", f"{path}:3"]
    assert [problem.where for problem in log.problems] == ["line 2, messages", "line 4, column 24"]
    with pytest.raises(MalformedFile, match="line 2"):
        read_requests(path)


def test_a_log_with_no_request_at_all_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="line 1"):
        read('{"a": 1}\n{"b": 2}\n', tmp_path)


def test_a_message_that_is_broken_among_lines_of_messages_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match=r"line 2, role"):
        read(f'{json.dumps(HELLO)}\n{{"content": "x"}}\n', tmp_path)


@pytest.mark.parametrize("name", ["absent.json", "", "a\0b"])
def test_files_that_cannot_be_opened(name: str, tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_requests(tmp_path / name)


def test_a_log_of_several_megabytes(tmp_path: Path) -> None:
    text = "강은 흐른다. " * 20_000
    line = json.dumps({"messages": [{"role": "user", "content": text}]}, ensure_ascii=False)
    requests = read("\n".join([line] * 20), tmp_path, "log.jsonl")
    assert [request.conversation.messages[0].content for request in requests] == [text] * 20


def test_halves_of_surrogate_pairs_are_kept(tmp_path: Path) -> None:
    assert one('[{"role": "user", "content": "a\\ud83d"}]', tmp_path).conversation.messages[0].content == "a\ud83d"


def test_any_bytes_are_read_or_refused_and_never_anything_else() -> None:
    seeds = [json.dumps(LINES[0]).encode(), b'{"messages": [{"role": "user", "content": ["x"]}]}', b"[[]]", b"{}\n{}"]
    refusals = []
    for seed in seeds:
        for index in range(len(seed)):
            for byte in (0, 34, 44, 91, 123, 255):
                content = seed[:index] + bytes([byte]) + seed[index + 1 :]
                try:
                    parse_log(content, name="x")
                except KvscopeError as error:
                    refusals.append(error.message)
    assert len(refusals) > 100
    assert all(message.startswith("x: ") for message in refusals)
