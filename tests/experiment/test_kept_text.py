"""What is left out of a record: a person's own texts, and secrets always. A server is asked that quotes whatever it is
sent, the key too; then every byte that kvscope has written or said is searched."""

import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from click.testing import CliRunner
from scripted_server import answering, chunk, event, finish, plain, token

from kvscope.cli.main import cli
from kvscope.experiment.echoed_text import OwnText
from kvscope.record.store import open_records

KEY = "zKq93hTTPkey42QQ"
# Told apart: each stands in the text, in a document, in a question, in a right answer or in a given one alone.
IN_TEXT = "quartz lantern above the Larkspur vault"
CODE_WORD = "QX71UMBRELLA"
IN_DOCUMENT = "storage number of the Heliotrope house"
RIGHT = "GK4481ZEBRA"
IN_QUESTION = "Who hums beneath the marzipan bridge"
GIVEN = "plumtree-velvet-4417 is what I believe"
HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n\r\n"


def _reply(path: str, body: Any) -> bytes:
    """Quotes what it is sent: in an error where the prompt asks about the bridge, else as the answer."""
    if path.endswith("/models"):
        return plain("200 OK", json.dumps({"object": "list", "data": [{"id": "echo", "object": "model"}]}).encode())
    if not path.endswith(("/chat/completions", "/completions")):
        return plain("404 Not Found", b"{}")
    said = json.dumps(body.get("messages") or body.get("prompt"))
    if "marzipan" in said:
        refusal = {"error": {"message": f"cannot read {said}", "headers": {"Authorization": f"Bearer {KEY}"}}}
        return plain("400 Bad Request", json.dumps(refusal).encode(), "Content-Type: application/json")
    parts = [token(f"{GIVEN}, for {RIGHT} "), token("you wrote " + said[:200]), finish("stop", prompt_tokens=40,
             completion_tokens=2)]  # fmt: skip
    return HEAD + b"".join(chunk(part) for part in parts) + b"0\r\n\r\n"


@pytest.fixture(autouse=True)
def key_in_the_environment(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("MY_SERVER_KEY", KEY)
    monkeypatch.chdir(tmp_path)


@pytest.fixture(scope="module")
def echo() -> Iterator[str]:
    with answering(_reply) as url:
        yield url


def run(folder: Path, *asked: str) -> str:
    """One call of the program, and all that it says on both of its streams: what a person pastes into an issue."""
    found = CliRunner().invoke(cli, [*asked], standalone_mode=False)
    assert found.exception is None, found.output
    return found.output


def measured(folder: Path, *asked: str) -> bytes:
    """Every byte that comes of a study: what the program said, the record's file, the page and every export."""
    said = run(folder, "measure", *asked, "--repeats", "1", "--records", "r.db")
    said += run(folder, "report", "--records", "r.db", "--out", "page.html")
    said += run(folder, "report", "--records", "r.db", "--format", "md")
    for rows in ("attempts", "requests", "tokens", "answers"):
        kind = () if rows == "attempts" else ("--rows", rows)
        said += run(folder, "export", "--records", "r.db", "--format", "jsonl", *kind)
    said += run(folder, "export", "--records", "r.db", "--format", "csv")
    files = [path.read_bytes() for path in sorted(folder.glob("r.db*"))]
    return b"\n".join([said.encode(), (folder / "page.html").read_bytes(), *files])


def material(folder: Path) -> tuple[str, ...]:
    documents = folder / "handbook"
    documents.mkdir()
    (documents / "houses.md").write_text(f"# Houses\n\nThe {IN_DOCUMENT} is {RIGHT}. Bread is baked on Monday.\n")
    lines = [
        {"id": "q1", "question": f"What is the {IN_DOCUMENT}?", "answer": RIGHT},
        {"id": "q2", "question": f"{IN_QUESTION}?", "answer": "Ottoline"},
        {"id": "q3", "question": "On which day is bread baked?", "answer": "Monday"},
    ]
    (folder / "q.jsonl").write_text("".join(json.dumps(line) + "\n" for line in lines))
    return ("--documents", str(documents), "--questions", str(folder / "q.jsonl"))


def server(url: str) -> tuple[str, ...]:
    return ("--engine", "openai", "--url", url, "--api-key-env", "MY_SERVER_KEY")


def own_text(folder: Path) -> Path:
    path = folder / "notes.txt"
    sentences = [f"Sentence {n} tells of the {IN_TEXT} and of {CODE_WORD}, number {n}." for n in range(60)]
    path.write_text("\n".join(sentences))
    return path


def test_documents_questions_and_answers_are_left_out_and_verdicts_stay(echo: str, tmp_path: Path) -> None:
    asked = ("retrieval", *server(echo), *material(tmp_path), "--levels", "whole")
    found = measured(tmp_path, *asked)
    for text in (IN_DOCUMENT, RIGHT, IN_QUESTION, GIVEN, KEY):
        assert text.encode() not in found, text
    with open_records(tmp_path / "r.db") as records:
        results = [records.result(row) for row in records.trials() if row.role == "measured"]
    answers = {row.item: row for result in results for row in result.answers}
    assert answers["q1"].reading == "right"
    assert answers["q2"].reading == "failed"
    assert answers["q3"].reading == "wrong"
    assert answers["q1"].expected == f"[{len(RIGHT)} characters left out]"
    assert results[0].trial.client["text"] == "left_out"
    assert "--keep-text" in (tmp_path / "page.html").read_text()


def test_with_keep_text_they_are_there_and_the_key_is_not(echo: str, tmp_path: Path) -> None:
    asked = ("retrieval", *server(echo), *material(tmp_path), "--levels", "whole", "--keep-text")
    found = measured(tmp_path, *asked)
    for text in (IN_DOCUMENT, RIGHT, IN_QUESTION, GIVEN):
        assert text.encode() in found, text
    assert KEY.encode() not in found


def test_a_text_of_ones_own_is_left_out_of_prompts_answers_and_errors(echo: str, tmp_path: Path) -> None:
    path = own_text(tmp_path)
    asked = ("input_length", *server(echo), "--text", str(path), "--levels", "64,128", "--output-tokens", "8")
    found = measured(tmp_path, *asked)
    for text in (IN_TEXT, CODE_WORD, GIVEN, KEY):
        assert text.encode() not in found, text


def test_what_a_server_puts_beside_an_answer_is_no_door(tmp_path: Path) -> None:
    def reply(path: str, body: Any) -> bytes:
        if path.endswith("/models"):
            return plain("200 OK", json.dumps({"object": "list", "data": [{"id": "echo", "object": "model"}]}).encode())
        if not path.endswith("completions"):
            return plain("404 Not Found", b"{}")
        said = json.dumps(body.get("messages") or body.get("prompt"))
        timings = {"choices": [], "timings": {"prompt_ms": 1, said[:60]: 1}, "system_fingerprint": said}
        return (
            HEAD
            + b"".join(
                map(
                    chunk,
                    (
                        token("a"),
                        event(timings),
                        finish(said[:90], prompt_tokens=len(said.split()), completion_tokens=1),
                    ),
                )
            )
            + b"0\r\n\r\n"
        )

    path = own_text(tmp_path)
    with answering(reply) as url:
        asked = ("input_length", *server(url), "--text", str(path), "--levels", "64", "--output-tokens", "8")
        found = measured(tmp_path, *asked)
    for text in (IN_TEXT, CODE_WORD, IN_TEXT[:14], "Sentence 1"):
        assert text.encode() not in found, text
    with open_records(tmp_path / "r.db") as records:
        requests = [row for trial in records.trials() for row in records.result(trial).requests]
    assert {row.finish_reason for row in requests} == {"other"}
    assert all(row.engine_timings == {"prompt_ms": 1.0} for row in requests)


def test_an_error_that_quotes_a_text_of_ones_own_keeps_the_servers_words(echo: str, tmp_path: Path) -> None:
    path = tmp_path / "notes.txt"
    path.write_text("\n".join(f"Day {n}: marzipan, and the {IN_TEXT} {n}." for n in range(40)))
    asked = ("input_length", *server(echo), "--text", str(path), "--levels", "64", "--output-tokens", "8")
    found = measured(tmp_path, *asked)
    assert IN_TEXT.encode() not in found
    with open_records(tmp_path / "r.db") as records:
        failed = [row for row in records.trials() if row.error_message]
    assert failed
    assert "cannot read" in str(failed[-1].error_message)
    assert "characters left out" in str(failed[-1].error_message)


SECRETS = {
    "engine_command": "llama-server --api-key S3cretNumberOne",
    "header": "curl -H 'Authorization: Bearer S3cretNumberTwo'",
    "address": "http://reader:S3cretNumberThree@host:1/v1?token=S3cretNumberFour",
    "environment": "OPENAI_API_KEY=S3cretNumberFive vllm serve m",
    "json": '{"api_key": "S3cretNumberSix", "n": 1}',
    "known_form": "refused sk-S3cretNumber7abcdefgh, try again",
}


@pytest.mark.parametrize("where", SECRETS)
def test_secrets_do_not_get_into_the_file_by_any_door(where: str, tmp_path: Path) -> None:
    from study_rows import attempt, design_row, run_row, trial_row, write_record

    text = SECRETS[where]
    design = design_row(
        settings={"extra": text, "api_key": "S3cretByName"},
        definition={"engine_command": text},
        held={"note": text},
        model_source=text,
        confounders=(text,),
    )
    trial = trial_row(
        design, 512, outcome="engine_died", error_message=text, error_hint=text, traceback=text,
        engine_log_tail=f"line\n{text}\nline", evidence={"said": text}, settings={"api_key": "S3cretByName"},
        client={"headers": {"Authorization": "Bearer S3cretByName"}},
    )  # fmt: skip
    one = attempt(trial, design=design, effective={"hf_token": "S3cretByName", "argv": text.split()})
    path = write_record(tmp_path / "r.db", [one], runs=[run_row(command=f"kvscope measure {text}")])
    assert b"S3cret" not in path.read_bytes()
    assert b"[hidden]" in path.read_bytes()


QUOTED = {
    "as it is": IN_TEXT,
    "in JSON": json.dumps({"m": f"a {IN_TEXT} b"}),
    "in Python's writing": repr({"input_value": f"…{IN_TEXT}'s"}),
    "broken into lines": IN_TEXT.replace(" ", "\n   "),
    "in capitals": IN_TEXT.upper(),
    "cut": IN_TEXT[:24] + "…",
    "a code word alone": f"no such thing: {CODE_WORD}",
    "percent of a page": IN_TEXT.replace(" ", "&nbsp;"),
    "behind a line's end": '{"m": "' + rf"a\n{CODE_WORD}\nend" + '"}',
    "behind a tab": rf"x\t{CODE_WORD}\n",
    "behind a blank that is escaped": rf"\u0020{CODE_WORD}",
    "its first letter escaped": rf"\u{ord(CODE_WORD[0]):04x}{CODE_WORD[1:]}",
    "in an address": f"q=%20{CODE_WORD}%20",
    "in an address, twice": f"q=%2520{CODE_WORD}%2520",
    "as tokens of GPT-2": IN_TEXT.replace(" ", "Ġ") + f"Ġ{CODE_WORD}Ċ",
    "as tokens of SentencePiece": IN_TEXT.replace(" ", "▁") + f"▁{CODE_WORD}",
    "coloured": "\x1b[0m".join(IN_TEXT) + " " + "\\u001b[1;31m".join(CODE_WORD),
    "with marks that nobody sees": "\u200b".join(IN_TEXT + " " + CODE_WORD),
    "as a C string": "".join(f"\\{ord(letter):03o}" for letter in IN_TEXT),
    "escaped letters": "".join(f"\\u{ord(letter):04x}" for letter in IN_TEXT),
}


@pytest.mark.parametrize("how", QUOTED)
def test_own_text_is_found_however_it_is_quoted(how: str) -> None:
    own = OwnText([f"On Sunday the {IN_TEXT} was lit, says {CODE_WORD}."])
    hidden = own.hide(f"The server said: {QUOTED[how]} (400)")
    assert hidden.startswith("The server said: ")
    assert hidden.endswith("(400)")
    assert len(hidden) < 100 or how.startswith("in Python")
    for rest in (IN_TEXT[:20], CODE_WORD, "lantern", "Larkspur", "\\u006c"):
        assert rest.casefold() not in hidden.casefold().replace("\n   ", " ")


OWN_KOREAN = "카나리아 보관실의 열쇠는 파란 상자 속에"
KOREAN_QUOTED = {
    "address": quote(OWN_KOREAN),
    "address with plus signs": quote_plus(OWN_KOREAN).lower(),
    "bytes in Python's writing": repr(OWN_KOREAN.encode()),
    "bytes in C's writing": "".join(f"\\{byte:03o}" for byte in OWN_KOREAN.encode()),
    "JSON": json.dumps(OWN_KOREAN),
    "read as Latin-1": OWN_KOREAN.encode().decode("latin-1"),
    "tokens of GPT-2": "ì¹´ëĤĺë¦¬ìķĦĠë³´ê´Ģìĭ¤ìĿĺĠìĹ´ìĩłëĬĶĠíĮĮëŀĢĠìĥģìŀĲĠìĨįìĹĲ",
}


@pytest.mark.parametrize("how", KOREAN_QUOTED)
def test_korean_is_found_in_bytes_that_are_escaped(how: str) -> None:
    hidden = OwnText([f"글: {OWN_KOREAN} 들어 있다."]).hide(f"said: {KOREAN_QUOTED[how]} (400)")
    assert re.fullmatch(r"said: b?['\"]?\[\d+ characters left out\]['\"]? \(400\)", hidden)


HOSTILE = ("\\", "%25", "%", "&#", "&a", "\x1b[0", "\\u00", "\\ud8", "ì¹", "ì¹´", "Ġ", "a1", "\\x1b[", "\\3", "%EC")


@pytest.mark.parametrize("piece", HOSTILE)
def test_long_texts_of_escapes_are_read_in_one_pass(piece: str) -> None:
    # A pattern that looks twice at each character of these would take minutes.
    own = OwnText([f"On Sunday the {IN_TEXT} was lit, says {CODE_WORD}."])
    text = piece * (200_000 // len(piece))
    assert CODE_WORD not in own.hide(f"{text} {CODE_WORD} {text}")


def test_a_path_that_looks_escaped_is_found_and_nothing_else_changes() -> None:
    own = OwnText([r"It lies in C:\new7lantern\table, 카나리아."])
    assert "new7lantern" not in own.hide(r"cannot open C:\new7lantern")
    told = r'a\n b\t %41 \x41 &amp; café Ġ▁ \ud83d {"n": 1}'
    assert own.hide(told) == told


def test_korean_is_found_and_words_of_anybody_stay() -> None:
    own = OwnText(["보관실의 열쇠는 파란 상자 속에 들어 있다.", "The model ran out of memory."])
    assert "파란" not in own.hide("오류: '보관실의 열쇠는 파란 상자 속에'")
    told = "The engine has no memory left for 131072 tokens."
    assert own.hide(told) == told
