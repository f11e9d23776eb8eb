"""The other kinds of tokenizer files, against the libraries that define them, and bad files."""

import json
import random
from pathlib import Path

import pytest

from kvscope.errors import (
    ConnectionRefused,
    MalformedFile,
    MissingDependency,
    ModelError,
    ModelNotFound,
    UnknownName,
    UsageError,
)
from kvscope.prompt.tokenizers.load import load_tokenizer
from kvscope.prompt.tokenizers.tiktoken_file import TiktokenTokenizer

CORPUS = Path(__file__).parent.parent / "golden" / "tokenizers" / "corpus.jsonl"
TEXTS = [json.loads(line)["text"] for line in CORPUS.read_text(encoding="ascii").splitlines()]
MORE = ["".join(random.Random(seed).choices("".join(TEXTS), k=80)) for seed in range(300)]
WHOLE = [text for text in TEXTS + MORE if not any("\ud800" <= letter <= "\udfff" for letter in text)]


def mistral_file(name: str) -> str:
    import mistral_common

    return str(Path(mistral_common.__file__).parent / "data" / name)


@pytest.fixture
def tokenizer_json(tmp_path: Path) -> Path:
    """Byte-level BPE trained on the corpus, with a BOS, a truncation and a padding of its own."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    built = Tokenizer(models.BPE())
    built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    built.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=1500, special_tokens=["<s>", "<|x|>"], initial_alphabet=alphabet, show_progress=False
    )
    built.train_from_iterator(WHOLE, trainer)
    built.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    built.enable_truncation(8)
    built.enable_padding(length=32)
    path = tmp_path / "tokenizer.json"
    built.save(str(path))
    return path


def test_tokenizer_json_gives_the_librarys_ids_of_the_whole_text(tokenizer_json: Path) -> None:
    from tokenizers import Tokenizer

    library = Tokenizer.from_file(str(tokenizer_json))
    library.no_truncation()
    library.no_padding()
    tokenizer = load_tokenizer(str(tokenizer_json))
    for text in WHOLE:
        assert tokenizer.encode(text, parse_special=True) == library.encode(text, add_special_tokens=False).ids
        assert library.decode(tokenizer.encode(text)) == text
    assert tokenizer.count("word " * 100) > 32
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (0, True)


def test_names_of_control_tokens_are_text_unless_asked_for(tokenizer_json: Path) -> None:
    tokenizer = load_tokenizer(str(tokenizer_json.parent))
    assert tokenizer.encode("<|x|>", parse_special=True) == [1]
    assert len(tokenizer.encode("<|x|>")) > 1
    assert 0 not in tokenizer.encode("<s>")


def test_a_bos_that_only_the_config_beside_names(tokenizer_json: Path) -> None:
    content = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    content["post_processor"] = None
    tokenizer_json.write_text(json.dumps(content), encoding="utf-8")
    assert load_tokenizer(str(tokenizer_json)).bos_id is None
    tokenizer_json.with_name("tokenizer_config.json").write_text(json.dumps({"bos_token": {"content": "<s>"}}))
    tokenizer = load_tokenizer(str(tokenizer_json))
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (0, False)


def test_tekken_gives_the_ids_of_mistrals_own_tokenizer() -> None:
    from mistral_common.tokens.tokenizers.tekken import Tekkenizer

    path = mistral_file("tekken_240911.json")
    own = Tekkenizer.from_file(path)
    tokenizer = load_tokenizer(path)
    assert [tokenizer.encode(text) for text in WHOLE] == [own.encode(text, bos=False, eos=False) for text in WHOLE]
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (own.bos_id, True)
    for entry in Tekkenizer.DEPRECATED_SPECIAL_TOKENS:
        assert tokenizer.encode(f"a{entry['token_str'].value}b", parse_special=True)[1:-1] == [entry["rank"]]


def test_a_tekken_that_lists_its_special_tokens(tmp_path: Path) -> None:
    import base64

    ranks = [{"rank": i, "token_bytes": base64.b64encode(bytes([i])).decode(), "token_str": None} for i in range(256)]
    ranks.append({"rank": 256, "token_bytes": base64.b64encode(b"ab").decode(), "token_str": "ab"})
    config = {"pattern": r"\S+|\s+", "default_vocab_size": 260, "default_num_special_tokens": 3, "version": "v7"}
    special = [{"rank": i, "token_str": text, "is_control": True} for i, text in enumerate(["<unk>", "<s>", "[NEW]"])]
    path = tmp_path / "tekken.json"
    path.write_text(json.dumps({"config": config, "vocab": ranks, "special_tokens": special}))
    tokenizer = load_tokenizer(str(path))
    assert tokenizer.encode("abc") == [256 + 3, ord("c") + 3]
    assert tokenizer.encode("ab[NEW]", parse_special=True) == [259, 2]
    assert tokenizer.bos_id == 1
    path.write_text(json.dumps({"config": config, "vocab": ranks[1:], "special_tokens": special}))
    with pytest.raises(MalformedFile, match="ranks 0 to 256"):
        load_tokenizer(str(path))


def test_sentencepiece_gives_the_librarys_ids() -> None:
    import sentencepiece

    path = mistral_file("mistral_instruct_tokenizer_240323.model.v3")
    processor = sentencepiece.SentencePieceProcessor(model_file=path)
    tokenizer = load_tokenizer(path)
    assert [tokenizer.encode(text) for text in WHOLE] == [processor.encode(text) for text in WHOLE]
    assert (tokenizer.bos_id, tokenizer.adds_bos) == (processor.bos_id(), True)
    with pytest.raises(UsageError, match=r"\[INST\]"):
        tokenizer.encode("[INST] hello", parse_special=True)
    assert tokenizer.encode("hello", parse_special=True) == tokenizer.encode("hello")


def test_tiktoken_ids_by_hand() -> None:
    import tiktoken

    ranks = {bytes([byte]): byte for byte in range(256)} | {b"ab": 256, b"abc": 257}
    encoding = tiktoken.Encoding("x", pat_str=r"\S+|\s+", mergeable_ranks=ranks, special_tokens={"<|end|>": 258})
    tokenizer = TiktokenTokenizer(source="tiktoken:x", kind="tiktoken", encoding=encoding)
    assert tokenizer.encode("abcab b") == [257, 256, 32, 98]
    assert tokenizer.encode("<|end|>", parse_special=True) == [258]
    assert tokenizer.encode("<|end|>") == list(b"<|end|>")
    assert tokenizer.encode_batch(["abc<|end|>"], parse_special=True) == [[257, 258]]
    assert tokenizer.count("abcab") == 2
    other = tiktoken.Encoding("x", pat_str=r"\S+|\s", mergeable_ranks=ranks, special_tokens={"<|end|>": 258})
    assert tokenizer.fingerprint != TiktokenTokenizer(source="", kind="tiktoken", encoding=other).fingerprint


def test_tiktoken_without_a_network_says_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    import tiktoken.load
    import tiktoken.registry

    def refuse(*_: object) -> bytes:
        raise OSError("no network")

    monkeypatch.setenv("TIKTOKEN_CACHE_DIR", str(tmp_path))
    monkeypatch.setattr(tiktoken.load, "read_file", refuse)
    monkeypatch.setattr(tiktoken.registry, "ENCODINGS", {})
    with pytest.raises(ModelNotFound, match="cl100k_base are not here") as caught:
        load_tokenizer("tiktoken:cl100k_base")
    assert "TIKTOKEN_CACHE_DIR" in str(caught.value.hint)
    with pytest.raises(UnknownName) as unknown:
        load_tokenizer("tiktoken:cl100k_bas")
    assert "cl100k_base" in str(unknown.value.hint)


@pytest.mark.parametrize("name", ["tokenizer.json", "tekken.json", "tokenizer.model", "model.gguf"])
@pytest.mark.parametrize("content", [b"", b"\x00\xff\xfe binary", b"{}", b'{"config": {}, "vocab": []}', b"[1, 2]"])
def test_a_file_that_is_no_tokenizer_is_a_clear_error(name: str, content: bytes, tmp_path: Path) -> None:
    path = tmp_path / name
    path.write_bytes(content)
    with pytest.raises(MalformedFile, match=name):
        load_tokenizer(str(path))


def test_what_cannot_be_found(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("hello")
    sources = (str(tmp_path), str(tmp_path / "none.json"), str(tmp_path / "notes.txt"), "", "a\0b", "pkg:no-such-model")
    for source in sources:
        with pytest.raises(ModelError):
            load_tokenizer(source)


def test_a_server_that_is_not_there() -> None:
    with pytest.raises(ConnectionRefused, match="Nothing answers"):
        load_tokenizer("http://127.0.0.1:1")


def test_a_missing_library_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, tokenizer_json: Path) -> None:
    monkeypatch.setitem(__import__("sys").modules, "tokenizers", None)
    with pytest.raises(MissingDependency, match="tokenizers"):
        load_tokenizer(str(tokenizer_json))
