"""A key is found in whatever spelling a server sends it back, and wherever a text was cut."""

import asyncio
import base64
import html
import json
import traceback
from urllib.parse import quote

import pytest
from scripted_server import END, HEAD, Script, chunk, event, finish, plain, scripted, token

from kvscope.engine.api_key import ApiKey, read_api_key
from kvscope.engine.base import ChatRequest, Generation, Message
from kvscope.engine.openai_http import stream_chat
from kvscope.errors import KvscopeError, UsageError
from kvscope.hiding import hide_secrets

# No key of anybody's.
KEY = "sk-test+abcDEF/0123456789=="
REQUEST = ChatRequest(messages=(Message(role="user", content="hi"),), max_output_tokens=8, timeout_s=10.0)


def as_json(text: str) -> str:
    return "".join(character if character.isalnum() else f"\\u{ord(character):04X}" for character in text)


@pytest.mark.parametrize(
    "spelled",
    [
        KEY,
        json.dumps(KEY)[1:-1],
        KEY.replace("/", "\\/"),
        as_json(KEY),
        as_json(KEY).lower().replace("abcdef", "abcDEF"),
        json.dumps(as_json(KEY))[1:-1],
        quote(KEY, safe=""),
        quote(KEY, safe="").replace("%2B", "%2b"),
        quote(quote(KEY, safe=""), safe=""),
        html.escape(KEY).replace("+", "&#43;").replace("=", "&#x3D;"),
    ],
)
def test_every_spelling_is_found(spelled: str) -> None:
    assert ApiKey(KEY).hide([{f"a {spelled}": f"bad key '{spelled}'."}]) == [{"a [the key]": "bad key '[the key]'."}]


# As a server of a review wrote it. No key of anybody's either.
MIXED_KEY = "Zq7Wx93hTTPkey42QQ?b>e~"


@pytest.mark.parametrize("in_front", ["", "a", "Authorization: Bearer ", "reader:"])
def test_a_key_in_base64_is_found_wherever_it_begins(in_front: str) -> None:
    for encode in (base64.b64encode, base64.urlsafe_b64encode):
        written = encode(f"{in_front}{MIXED_KEY} and more".encode()).decode()
        assert ApiKey(MIXED_KEY).hide(f"sent {written}, refused") == "sent [the key], refused"


@pytest.mark.parametrize(
    "written",
    [
        MIXED_KEY.upper(),
        MIXED_KEY.lower(),
        " ".join(MIXED_KEY),
        MIXED_KEY.encode().hex(),
        MIXED_KEY.encode().hex().upper(),
        MIXED_KEY.encode().hex(":"),
        MIXED_KEY[:14],
        MIXED_KEY[:8],
        "".join(f"\\x{ord(letter):02x}" for letter in MIXED_KEY),
        "".join(f"%{ord(letter):02X}" for letter in MIXED_KEY),
    ],
)
def test_a_key_in_other_forms_is_found(written: str, monkeypatch: pytest.MonkeyPatch) -> None:
    assert ApiKey(MIXED_KEY).hide(f"sent ({written}), refused") == "sent ([the key]), refused"
    monkeypatch.setenv("SOME_SERVICE_KEY", MIXED_KEY)
    assert hide_secrets({"said": [f"sent ({written}), refused"]}) == {"said": ["sent ([hidden]), refused"]}


@pytest.mark.parametrize("piece", ["\\", "%25", "&#0", "\\u00", "Zq7Wx93", "5a:71:", "WnE3", " ", "Z "])
def test_long_texts_are_searched_in_one_pass(piece: str) -> None:
    text = piece * (300_000 // len(piece))
    assert MIXED_KEY not in ApiKey(MIXED_KEY).hide(f"{text} {MIXED_KEY} {text}")


def test_other_texts_are_left_alone() -> None:
    assert ApiKey(KEY).hide("sk-test+abcDEF and 0123456789") == "sk-test+abcDEF and 0123456789"
    assert ApiKey("abc").hide("abc abcd %61bc") == "[the key] abcd [the key]"


@pytest.mark.parametrize("length", range(1, 6))
def test_a_key_in_several_pieces_is_hidden_in_each(length: int) -> None:
    text = f"It is {KEY}, they say, {KEY}."
    pieces = [text[start : start + length] for start in range(0, len(text), length)]
    hidden = ApiKey(KEY).hide_in_pieces(pieces)
    assert len(hidden) == len(pieces)
    whole = "".join(hidden)
    assert whole.replace("[the key]", "") == "It is , they say, ."
    assert all(hidden)


@pytest.mark.parametrize("spelled", [KEY, as_json(KEY), quote(KEY, safe="")])
@pytest.mark.parametrize("ending", ["", " … (cut)", " … (the first 64 KiB of 65,570 bytes)"])
def test_what_a_cut_left_of_a_key_is_hidden(spelled: str, ending: str) -> None:
    for length in range(len(spelled)):
        error = KvscopeError(f"Refused: {spelled[:length]}{ending}", evidence={"body": f"{spelled[:length]}{ending}"})
        with pytest.raises(KvscopeError), ApiKey(KEY).hidden_in_errors():
            raise error
        for told in (error.message, error.evidence["body"], str(error)):
            assert spelled[:12] not in told if spelled != KEY else KEY[:4] not in told


def answered(body: Script) -> Generation:
    async def go() -> Generation:
        async with scripted(body) as url:
            return await stream_chat(url, REQUEST, headers=ApiKey(KEY).headers())

    return asyncio.run(go())


def saying(data: bytes) -> Script:
    async def script(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(data)
        await writer.drain()

    return script


def test_an_answer_that_quotes_the_key_does_not_hold_it() -> None:
    calls = token("", tool_calls=[{"index": 0, "id": KEY, "function": {"name": "f", "arguments": KEY}}])
    timings = event({"choices": [], "timings": {KEY: 1.5}})
    body = token(f" {KEY}") + token(KEY[:9]) + token(KEY[9:]) + calls + timings + finish(f"length {KEY}")
    answer = answered(saying(HEAD + chunk(body) + END))
    assert KEY[:9] not in repr(answer)
    assert KEY[9:] not in repr(answer)
    assert answer.finish_reason == "other"  # neither a word nor a name that is known
    assert answer.engine_timings == {}
    assert [piece.text for piece in answer.events] == [" [the key]", "[the key]", "[the key]", "f[the key]"]


@pytest.mark.parametrize("padding", [2035, 65525])
def test_a_refusal_that_is_cut_within_the_key_does_not_hold_its_beginning(padding: int) -> None:
    # As two servers of a review did: a message of which 2,048 characters are shown, a body of which 64 KiB are kept.
    said = f"{'p' * padding} Bearer {KEY} tail"
    for body in (said.encode(), json.dumps({"error": {"message": said}}).encode()):
        with pytest.raises(KvscopeError) as caught:
            answered(saying(plain("403 Forbidden", body)))
        error = caught.value
        told = "".join(traceback.format_exception(error)) + repr((error.message, error.hint, error.evidence))
        assert KEY[:4] not in told


@pytest.mark.parametrize("pasted", ["sk-secret123", "hf_abcDEF123", "gsk_0123", "Bearer x"])
def test_a_key_that_was_given_for_the_name_of_its_variable_is_not_shown(pasted: str) -> None:
    with pytest.raises(UsageError, match="name") as caught:
        read_api_key(pasted)
    assert pasted not in f"{caught.value.message} {caught.value.hint}"


def test_a_usual_name_is_shown(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("MY_KEY", raising=False)
    with pytest.raises(UsageError, match="MY_KEY is not set"):
        read_api_key("MY_KEY")
