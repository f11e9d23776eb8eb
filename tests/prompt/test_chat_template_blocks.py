"""Contents in blocks and messages that are continued: transformers' texts, and what is refused or told apart."""

import http.server
import json
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from test_chat_template import standing_clock
from test_chat_template_cost import check_cover

from kvscope.errors import (
    ChatTemplateError,
    ConnectionLost,
    ConnectionRefused,
    EngineReplyError,
    KvscopeError,
    ServerError,
    UnknownName,
)
from kvscope.prompt.chat_template.cost import TemplateCost, template_cost
from kvscope.prompt.chat_template.template import ChatTemplate, Rendering, load_template
from kvscope.prompt.conversation import Conversation, Image, Message
from kvscope.prompt.conversation_file import LoadedRequest
from kvscope.prompt.counting.request import count_request
from kvscope.prompt.tokenizers.bytes import BytesTokenizer

DATA = Path(__file__).parent / "data"
CASES = json.loads((DATA / "chat_templates_blocks" / "cases.json").read_text(encoding="utf-8"))
# Made by tools/make_chat_template_expectations.py with the real transformers.
EXPECTED = json.loads((DATA / "chat_templates_blocks" / "expected.json").read_text(encoding="utf-8"))["expected"]
PICTURE = Image(source="data:", width=5, height=7)
ASKED = Message(role="user", content="Hi")


def template_named(name: str, style: str = "transformers") -> ChatTemplate:
    paths = [DATA / folder / f"{name}.jinja" for folder in ("chat_templates_blocks", "chat_templates")]
    text = next(path for path in paths if path.exists()).read_text(encoding="utf-8")
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    return ChatTemplate(text=text, source=name, special_tokens=tokens, style=style)


def message_of(wire: dict[str, Any]) -> Message:
    if isinstance(wire["content"], str):
        return Message(role=wire["role"], content=wire["content"])
    return in_blocks(*(block.get("text", PICTURE) for block in wire["content"]), role=wire["role"])


def in_blocks(*blocks: str | Image, role: str = "user") -> Message:
    return Message(role=role, content="\n".join(each for each in blocks if isinstance(each, str)), blocks=blocks)


def talk(*messages: Message) -> Conversation:
    return Conversation(messages=messages)


def contents(cost: TemplateCost) -> list[tuple[int | None, str]]:
    return [(p.message, cost.text[p.start : p.end]) for p in cost.pieces if p.kind == "content"]


@pytest.mark.parametrize("name", sorted({case["template"] for case in CASES}))
def test_every_text_is_that_of_transformers(name: str) -> None:
    cases = [case for case in CASES if case["template"] == name]
    renderings = [
        Rendering(
            conversation=talk(*(message_of(message) for message in case["messages"])),
            add_generation_prompt=case["add_generation_prompt"],
            continue_final_message=case["continued"],
        )
        for case in cases
    ]
    for case, text in zip(cases, template_named(name).render_each(renderings, clock=standing_clock), strict=True):
        expected = EXPECTED[case["name"]]
        if isinstance(text, ChatTemplateError):
            assert (text.kind, "error" in expected) == ("refused", True), case["name"]
        else:
            assert text == expected["text"], case["name"]


def test_the_expectations_cover_every_case_and_some_are_refusals() -> None:
    assert set(EXPECTED) == {case["name"] for case in CASES}
    assert sum("error" in expected for expected in EXPECTED.values()) == 4


@pytest.mark.parametrize("style", ["transformers", "llama.cpp"])
@pytest.mark.parametrize("name", ["typed", "echo", "chatml"])
def test_each_block_is_told_apart_from_what_the_template_adds(name: str, style: str) -> None:
    if (name, style) == ("chatml", "transformers"):
        pytest.skip("it refuses a list")
    conversation = talk(ASKED, Message(role="assistant", content="so"), in_blocks("one", "", "세"))
    cost = template_cost(template_named(name, style), conversation)
    check_cover(cost)
    assert contents(cost) == [(0, "Hi"), (1, "so"), (2, "one"), (2, "세")]


@pytest.mark.parametrize("style", ["transformers", "llama.cpp"])
def test_nothing_of_a_content_in_blocks_is_left_out(style: str) -> None:
    """However the blocks are joined: what stands between them is the template's."""
    request = LoadedRequest(conversation=talk(in_blocks("one", "two")), source="test")
    counted = count_request(request, template=template_named("typed", style), tokenizer=BytesTokenizer())
    row = next(row for row in counted.rows if row.part == "user")
    assert (row.amount.characters, row.dropped_characters) == (6, 0)


def test_a_picture_between_blocks_is_the_templates() -> None:
    cost = template_cost(template_named("typed"), talk(in_blocks("one", PICTURE, "two")))
    check_cover(cost)
    assert contents(cost) == [(0, "one"), (0, "two")]
    assert ("template", 0, "<picture>") in [(p.kind, p.message, cost.text[p.start : p.end]) for p in cost.pieces]


@pytest.mark.parametrize(
    ("style", "ends"),
    [
        ("transformers", [("template", "<turn>assistant\n")]),
        ("llama.cpp", [("generation_prompt", "<turn>assistant\n")]),
    ],
)
def test_a_continued_message_ends_the_pieces(style: str, ends: list[tuple[str, str]]) -> None:
    conversation = talk(ASKED, in_blocks("Sure", role="assistant"))
    cost = template_cost(template_named("typed", style), conversation, continue_final_message=True)
    check_cover(cost)
    assert [(p.kind, cost.text[p.start : p.end]) for p in cost.pieces[-2:]] == [*ends, ("content", "Sure")]


def test_each_engine_ends_a_last_answer_in_its_own_way_unless_told_otherwise() -> None:
    conversation = talk(ASKED, Message(role="assistant", content="Sure, "))
    theirs, llamas = template_named("typed"), template_named("typed", "llama.cpp")
    closed = "<s><turn>user\nHi<end>\n<turn>assistant\nSure,<end>\n<turn>assistant\n"
    assert theirs.render(conversation) == closed
    assert llamas.render(conversation, continue_final_message=False) == closed
    assert llamas.render(conversation) == "<s><turn>user\nHi<end>\n<turn>assistant\nSure, "
    assert theirs.render(conversation, continue_final_message=True) == "<s><turn>user\nHi<end>\n<turn>assistant\nSure,"


def test_llama_cpp_writes_a_marker_for_a_picture_and_no_newline_beside_it() -> None:
    """As common/chat.cpp joins parts; a server without a projector refuses pictures, so it cannot be asked here."""
    text = template_named("echo", "llama.cpp").render(talk(in_blocks("a", "b", PICTURE, "c", "d")))
    assert '"content": "a\\nb<__media__>c\\nd"' in text


@pytest.mark.parametrize(
    ("text", "conversation", "why"),
    [
        ("{{ messages[0].content }}<think>", talk(ASKED, Message(role="assistant", content="x")), "thinking marks"),
        ("'<|tool_call>call:'", talk(ASKED, Message(role="tool", content="x"), ASKED), "answers of tools"),
        ("x", talk(ASKED, Message(role="assistant", content="", tool_calls=({"id": "1"},)), ASKED), "type function"),
    ],
)
def test_what_llama_cpp_would_do_and_is_not_known_or_not_allowed_is_refused(
    text: str, conversation: Conversation, why: str
) -> None:
    with pytest.raises(ChatTemplateError, match=why) as caught:
        ChatTemplate(text=text, source="t", style="llama.cpp").render(conversation)
    assert caught.value.kind == "refused"


def test_whose_way_is_followed_can_be_said(tmp_path: Path) -> None:
    (tmp_path / "chat_template.jinja").write_text("{{ messages[0].content }}")
    assert load_template(str(tmp_path)).style == "transformers"
    template = load_template(str(tmp_path), style="llama.cpp")
    assert template.render(talk(in_blocks("a", "b"))) == "a\nb"
    with pytest.raises(UnknownName, match="vllm"):
        load_template(str(tmp_path), style="vllm")


class Answers(http.server.BaseHTTPRequestHandler):
    status, body, asked = 200, b"", ""

    def do_GET(self) -> None:
        type(self).asked = self.path
        self.send_response(self.status)
        self.send_header("Content-Length", str(len(self.body)))
        self.end_headers()
        self.wfile.write(self.body)

    def log_message(self, *_: Any) -> None:
        pass


@pytest.fixture
def server() -> Iterator[str]:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as running:
        thread = threading.Thread(target=running.serve_forever, daemon=True)
        thread.start()
        yield f"http://127.0.0.1:{running.server_port}"
        running.shutdown()
        thread.join()


def test_a_servers_template_with_what_it_says_of_it(server: str) -> None:
    caps = {"supports_string_content": False, "supports_typed_content": True, "supports_system_role": True}
    props = {"chat_template": "{{ bos_token }}{{ messages[0].content }}", "bos_token": "<s>", "eos_token": ""}
    Answers.status, Answers.body = 200, json.dumps(props).encode()
    template = load_template(f"{server}/v1")
    assert (Answers.asked, template.bos, template.eos, template.capabilities) == ("/props", "<s>", None, None)
    assert template.render(talk(ASKED)) == "<s>Hi"
    # An older release does not say all of it; a newer one is believed.
    Answers.body = json.dumps({**props, "chat_template_caps": caps}).encode()
    assert load_template(server).capabilities is None
    Answers.body = json.dumps({**props, "chat_template_caps": {**caps, "supports_object_arguments": True}}).encode()
    template = load_template(server)
    assert template.render(talk(ASKED)) == "<s>[{'type': 'text', 'text': 'Hi'}]"


@pytest.mark.parametrize(
    ("status", "body", "error"),
    [
        (404, b"no such path", ServerError),
        (503, b'{"error": "loading"}', ServerError),
        (200, b"<html>", EngineReplyError),
        (200, b"[1]", EngineReplyError),
        (200, b'{"model_path": "x"}', EngineReplyError),
        (200, b'{"chat_template": ""}', EngineReplyError),
        (200, b"[" * 100_000, EngineReplyError),
    ],
)
def test_a_server_that_tells_no_template_is_said_to(server: str, status: int, body: bytes, error: type) -> None:
    Answers.status, Answers.body = status, body
    with pytest.raises(error) as caught:
        load_template(server)
    assert isinstance(caught.value, KvscopeError)
    assert "llama.cpp" in (caught.value.hint or "")


def test_nobody_at_the_address() -> None:
    with http.server.HTTPServer(("127.0.0.1", 0), Answers) as closed:
        url = f"http://127.0.0.1:{closed.server_port}"
    with pytest.raises(ConnectionRefused, match="Nothing answers"):
        load_template(url)
    with pytest.raises((ConnectionRefused, ConnectionLost)):
        load_template("http://127.0.0.1:99999")
