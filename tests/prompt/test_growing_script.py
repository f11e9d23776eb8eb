"""Where the user's side of a conversation comes from: the bundled messages, and files."""

import json
import re
import unicodedata
from itertools import pairwise
from pathlib import Path

import pytest

from kvscope.errors import BadDesign, MalformedFile, ModelNotFound, UnknownName, UsageError
from kvscope.prompt.growing import History
from kvscope.prompt.growing_script import bundled_script, read_script


@pytest.mark.parametrize(("language", "script_of_it"), [("en", "[A-Za-z]"), ("ko", "[가-힣]")])
def test_bundled_messages_are_clean_and_distinct(language: str, script_of_it: str) -> None:
    texts = [turn.text for turn in bundled_script(language, num_turns=36).turns]
    assert len(set(texts)) == 36
    for text in texts:
        assert text == text.strip()
        assert unicodedata.is_normalized("NFC", text)
        assert re.search(script_of_it, text)
        assert re.search(r"[.?!]$", text)
        assert language == "en" or not re.search("[A-Za-z]", text)


def test_a_script_depends_on_its_seed_and_on_nothing_else() -> None:
    def made(seed: int) -> object:
        return bundled_script("ko", seed=seed, num_turns=5, passages_a_turn=2, tool_uses_a_turn=1)

    assert made(3) == made(3)
    scripts = [bundled_script("en", seed=seed, num_turns=40, passages_a_turn=1) for seed in range(36)]
    assert len({script.turns[0].text for script in scripts}) == 36
    assert len({script.turns[0].retrieved for script in scripts}) == 36
    assert scripts[0].turns[36].text == scripts[0].turns[0].text


def test_passages_and_tool_results_are_there_in_the_number_asked_for_and_all_different() -> None:
    script = bundled_script("en", num_turns=30, passages_a_turn=2, tool_uses_a_turn=1, history=History(last_turns=2))
    passages = [passage for turn in script.turns for passage in turn.retrieved]
    assert len(passages) == len(set(passages)) == 60
    results = [use.result for turn in script.turns for use in turn.tool_uses]
    assert len(results) == len(set(results)) == 30
    assert len(json.loads(results[0])["found"]) == 3
    assert [tool["function"]["name"] for tool in script.tools] == ["search_notes"]
    assert {use.name for turn in script.turns for use in turn.tool_uses} == {"search_notes"}
    assert script.history.last_turns == 2
    assert bundled_script("en", num_turns=1).tools == ()


def test_what_cannot_be_made_is_refused() -> None:
    with pytest.raises(UnknownName, match="kr"):
        bundled_script("kr")
    with pytest.raises(BadDesign):
        bundled_script("en", num_turns=0)
    with pytest.raises(BadDesign):
        bundled_script("en", passages_a_turn=-1)


def test_a_file_with_one_message_a_line(tmp_path: Path) -> None:
    path = tmp_path / "mine.txt"
    path.write_bytes("\ufeff첫 번째 질문\r\n\r\n  second question \n".encode())
    script = read_script(path)
    assert [turn.text for turn in script.turns] == ["첫 번째 질문", "second question"]
    assert script.system is None


def test_of_a_conversation_the_users_side_is_taken(tmp_path: Path) -> None:
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    messages = [
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "looked up", "origin": "retrieved"},
        {"role": "user", "content": "q1"},
        {"role": "assistant", "content": "an answer that is not taken"},
        {"role": "user", "content": "q2"},
    ]
    path = tmp_path / "chat.json"
    path.write_text(json.dumps({"messages": messages, "tools": [tool]}), encoding="utf-8")
    script = read_script(path)
    assert (script.system, script.tools) == ("be brief", (tool,))
    assert [(turn.text, turn.retrieved) for turn in script.turns] == [("q1", ("looked up",)), ("q2", ())]


def test_the_last_request_of_a_log_is_taken(tmp_path: Path) -> None:
    questions = [{"role": "user", "content": f"q{number}"} for number in range(1, 4)]
    bodies = [{"messages": questions[:number]} for number in range(1, 4)]
    assert all(len(a["messages"]) < len(b["messages"]) for a, b in pairwise(bodies))
    path = tmp_path / "log.jsonl"
    path.write_text("".join(json.dumps(body) + "\n" for body in bodies), encoding="utf-8")
    assert [turn.text for turn in read_script(path).turns] == ["q1", "q2", "q3"]


@pytest.mark.parametrize(
    ("name", "content", "error"),
    [
        ("empty.txt", b"\n \n", UsageError),
        ("latin.txt", b"caf\xe9", MalformedFile),
        ("binary.txt", b"a\0b", MalformedFile),
        ("broken.json", b"{", MalformedFile),
        ("system.json", b'{"messages": [{"role": "system", "content": "s"}]}', UsageError),
    ],
)
def test_a_file_that_holds_no_messages(tmp_path: Path, name: str, content: bytes, error: type[Exception]) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(error, match=name):
        read_script(path)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(ModelNotFound):
        read_script(tmp_path / "none.txt")
