"""transformers' engine: its life, what it says, and each way it can fail, with the real library in one child."""

import json
import os
import shutil
import signal
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.base import ChatRequest, EngineReport, Message
from kvscope.engine.registry import EngineChoice
from kvscope.engine.transformers import TransformersEngine, _Answer
from kvscope.engine.transformers_errors import worker_error
from kvscope.engine.transformers_settings import checked_settings
from kvscope.errors import (
    ContextOverflow,
    EngineDied,
    EngineModelError,
    EngineTimeout,
    InvalidSettings,
    MissingDependency,
    ModelNotFound,
    OutOfMemory,
    ServerError,
)
from kvscope.model.load import load_model

sys.path.append(str(Path(__file__).parent))
from transformers_models import Child, folder_of, golden_config, llama_config, write_tokenizer

HELLO = (Message(role="user", content="Hello."),)
Load = Callable[..., TransformersEngine]
REPORTS: dict[TransformersEngine, EngineReport] = {}


@pytest.fixture
def load(transformers_child: Child) -> Load:
    """A function that loads a folder into the child that all tests share."""

    def loaded(folder: str, **settings: Any) -> TransformersEngine:
        engine = TransformersEngine(model=load_model(folder), settings={"num_threads": 1, **settings})
        transformers_child.give_to(engine)
        REPORTS[engine] = engine.load()
        return engine

    return loaded


@pytest.fixture
def tiny(tmp_path: Path) -> str:
    return folder_of(tmp_path / "tiny", llama_config())


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A folder with safetensors, written by the package of that name: two layers of Llama, all weights 0.01, except
    that the token 7 is always the likeliest."""
    import numpy
    from safetensors.numpy import save_file

    config = llama_config(hidden_size=64, intermediate_size=64, num_attention_heads=2, num_key_value_heads=1)
    folder = folder_of(tmp_path_factory.mktemp("saved") / "saved", config)
    model = load_model(folder)
    shapes = {f"model.{name}" if not name.startswith("lm_head") else name: s for name, s in _llama_shapes().items()}
    tensors = {name: numpy.full(shape, 0.01, dtype=numpy.float32) for name, shape in shapes.items()}
    tensors["lm_head.weight"][7] = 1.0
    save_file(tensors, Path(folder) / "model.safetensors", metadata={"format": "pt"})
    assert model.num_parameters == sum(tensor.size for tensor in tensors.values())
    return folder


def _llama_shapes() -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {"embed_tokens.weight": (2048, 64), "norm.weight": (64,)}
    for index in range(2):
        of_layer = {
            "self_attn.q_proj": (64, 64),
            "self_attn.k_proj": (32, 64),
            "self_attn.v_proj": (32, 64),
            "self_attn.o_proj": (64, 64),
            "mlp.gate_proj": (64, 64),
            "mlp.up_proj": (64, 64),
            "mlp.down_proj": (64, 64),
            "input_layernorm": (64,),
            "post_attention_layernorm": (64,),
        }
        shapes |= {f"layers.{index}.{name}.weight": shape for name, shape in of_layer.items()}
    return {**shapes, "lm_head.weight": (2048, 64)}


@pytest.mark.engine
class TestLoading:
    def test_weights_of_a_folder(self, load: Load, saved: str) -> None:
        engine = load(saved)
        assert REPORTS[engine].effective["random_weights"] is False
        answer = engine.generate(ChatRequest(messages=HELLO, max_output_tokens=3))
        assert [event.text for event in answer.events] == ["\x07"] * 3

    def test_random_weights_are_said_to_be_and_are_the_same_each_time(self, load: Load, tiny: str) -> None:
        answers = []
        for _ in range(2):
            engine = load(tiny)
            answers.append([e.text for e in engine.generate(ChatRequest(messages=HELLO, max_output_tokens=6)).events])
        assert answers[0] == answers[1]
        report = REPORTS[engine]
        assert report.effective["random_weights"] is True
        assert any("random (seed 0)" in note for note in report.notes)
        assert any("each byte" in note.lower() for note in report.notes)
        assert any("ChatML" in note for note in report.notes)

    def test_the_folders_own_tokenizer(self, load: Load, tiny: str) -> None:
        write_tokenizer(tiny)
        engine = load(tiny)
        # <|im_start|> u s e r \n | word word . | <|im_end|> \n | <|im_start|> a s s i s t a n t \n
        messages = (Message(role="user", content="word word."),)
        assert engine.count_prompt_tokens(messages) == 6 + 3 + 2 + 11

    def test_a_tokenizer_of_another_kind_is_the_librarys_own(self, load: Load, tiny: str) -> None:
        letters = {letter: index for index, letter in enumerate(["[UNK]", *"abcdefghijklmnopqrstuvwxyz"])}
        text = "\n".join(sorted(letters, key=letters.__getitem__))
        (Path(tiny) / "vocab.txt").write_text(text, encoding="utf-8")
        described = {"tokenizer_class": "BertTokenizer", "unk_token": "[UNK]", "pad_token": "[UNK]"}
        (Path(tiny) / "tokenizer_config.json").write_text(json.dumps(described), encoding="utf-8")
        engine = load(tiny)
        answer = engine.generate(ChatRequest(messages=(Message(role="user", content="a b"),), max_output_tokens=2))
        assert answer.prompt_tokens == engine.count_prompt_tokens((Message(role="user", content="a b"),))
        assert any("transformers' own" in note for note in REPORTS[engine].notes)

    def test_a_missing_part_of_the_weights(self, transformers_child: Child, tiny: str) -> None:
        index = {"metadata": {}, "weight_map": {"lm_head.weight": "model-00001-of-00001.safetensors"}}
        (Path(tiny) / "model.safetensors.index.json").write_text(json.dumps(index), encoding="utf-8")
        engine = TransformersEngine(model=load_model(str(Path(tiny) / "config.json")), settings={})
        transformers_child.give_to(engine)
        with pytest.raises(EngineModelError, match="model-00001-of-00001"):
            engine.load()

    def test_pickled_weights_are_not_replaced_by_random_ones(self, load: Load, tiny: str) -> None:
        (Path(tiny) / "pytorch_model.bin").write_bytes(b"PK")
        with pytest.raises(EngineModelError, match=r"pytorch_model\.bin"):
            load(tiny)
        assert REPORTS[load(tiny, random_weights=True)].effective["random_weights"] is True

    def test_weights_that_are_cut_short(self, load: Load, saved: str, tmp_path: Path) -> None:
        folder = shutil.copytree(saved, tmp_path / "cut")
        model = load_model(str(folder / "config.json"))
        whole = (folder / "model.safetensors").read_bytes()
        (folder / "model.safetensors").write_bytes(whole[: len(whole) // 2])
        engine = TransformersEngine(model=model, settings={})
        other = load(saved)
        engine._process, engine._numbers = other._process, other._numbers
        with pytest.raises(EngineModelError, match="does not load"):
            engine.load()

    def test_a_model_type_that_the_library_does_not_know(self, transformers_child: Child, tiny: str) -> None:
        model = load_model(tiny)
        folder_of(Path(tiny), {**llama_config(), "model_type": "llama99"})
        engine = TransformersEngine(model=model, settings={})
        transformers_child.give_to(engine)
        with pytest.raises(EngineModelError, match="llama99"):
            engine.load()

    def test_an_attention_that_the_library_does_not_have(self, load: Load, tiny: str) -> None:
        with pytest.raises(InvalidSettings, match="fastest"):
            load(tiny, attn_implementation="fastest")

    def test_a_gpu_that_is_not_there(self, load: Load, tiny: str) -> None:
        if Path("/dev/nvidiactl").exists():
            pytest.skip("there is one")
        with pytest.raises(InvalidSettings, match="no GPU"):
            load(tiny, device="cuda:0")

    def test_a_quantised_cache_without_its_package(self, load: Load, tiny: str) -> None:
        with pytest.raises(MissingDependency, match="optimum-quanto"):
            load(tiny, cache="quantized")

    def test_a_vocabulary_too_small_for_bytes(self, load: Load, tiny: str) -> None:
        folder_of(Path(tiny), llama_config(vocab_size=128))
        with pytest.raises(InvalidSettings, match="no tokenizer"):
            load(tiny)


@pytest.mark.engine
class TestFailures:
    def test_more_memory_than_the_machine_can_give(self, load: Load, tiny: str) -> None:
        # 4 heads × 8192 wide × 4 bytes × 2^31 places = 256 TiB for the keys of one layer: more than 47 bits of address
        # reach, so that no machine can begin to give it.
        wide = {"hidden_size": 8, "num_attention_heads": 4, "head_dim": 8192, "max_position_embeddings": 2**31 - 1}
        engine = load(folder_of(Path(tiny) / "wide", llama_config(**wide)), cache="static", max_cache_len=2**31 - 1)
        with pytest.raises(OutOfMemory, match="the machine") as caught:
            engine.generate(ChatRequest(messages=HELLO, max_output_tokens=1))
        assert caught.value.evidence["known_by"] == "message"
        assert "allocate memory" in caught.value.evidence["body"]
        # It lives on.
        assert load(tiny).generate(ChatRequest(messages=HELLO, max_output_tokens=1)).output_tokens == 1

    def test_a_prompt_over_the_trained_context(self, load: Load, tiny: str) -> None:
        engine = load(tiny)
        with pytest.raises(ContextOverflow, match="512") as caught:
            engine.generate(ChatRequest(messages=(Message(role="user", content="x" * 600),), max_output_tokens=1))
        assert "config.json" in caught.value.message

    def test_a_request_that_takes_too_long_is_ended_and_the_next_is_answered(self, load: Load, tiny: str) -> None:
        engine = load(tiny)
        with pytest.raises(EngineTimeout) as caught:
            engine.generate(ChatRequest(messages=HELLO, max_output_tokens=400, timeout_s=0.02))
        assert caught.value.evidence["pieces_received"] < 400
        answer = engine.generate(ChatRequest(messages=HELLO, max_output_tokens=2))
        assert answer.output_tokens == 2

    def test_a_child_that_is_frozen(self, load: Load, tiny: str) -> None:
        engine = load(tiny)
        pid = engine.pids()[0]
        os.kill(pid, signal.SIGSTOP)
        try:
            with pytest.raises(EngineTimeout, match="0 tokens"):
                engine.generate(ChatRequest(messages=HELLO, max_output_tokens=2, timeout_s=0.3))
        finally:
            os.kill(pid, signal.SIGCONT)
        assert engine.generate(ChatRequest(messages=HELLO, max_output_tokens=2)).output_tokens == 2

    def test_an_error_of_the_library_while_answering(self, load: Load, tmp_path: Path) -> None:
        # Its table of inputs per layer is smaller than its vocabulary, so that a token above 128 has none.
        engine = load(folder_of(tmp_path / "gemma4", golden_config("gemma4_text")))
        with pytest.raises(ServerError, match="index out of range"):
            engine.generate(ChatRequest(messages=(Message(role="user", content="é"),), max_output_tokens=1))

    def test_recurrent_layers_take_no_chunks(self, load: Load, tmp_path: Path) -> None:
        engine = load(folder_of(tmp_path / "mamba", golden_config("mamba")), prefill_chunk_tokens=8)
        with pytest.raises(InvalidSettings, match="recurrent"):
            engine.generate(ChatRequest(messages=HELLO, max_output_tokens=1))

    def test_a_child_that_is_killed(self, tiny: str) -> None:
        engine = TransformersEngine(model=load_model(tiny), settings={})
        engine.launch()
        try:
            os.kill(engine.pids()[0], signal.SIGKILL)
            with pytest.raises(EngineDied, match="SIGKILL") as caught:
                engine.load()
            assert caught.value.evidence["signal"] == "SIGKILL"
        finally:
            engine.stop()

    def test_a_child_that_is_killed_while_it_answers(self, tiny: str) -> None:
        engine = TransformersEngine(model=load_model(tiny), settings={"num_threads": 1})
        engine.launch()
        try:
            engine.load()
            pid = engine.pids()[0]
            threading.Timer(0.1, os.kill, (pid, signal.SIGKILL)).start()
            with pytest.raises(EngineDied, match="SIGKILL") as caught:
                engine.generate(ChatRequest(messages=HELLO, max_output_tokens=400))
            assert caught.value.evidence["pieces_received"] >= 0
        finally:
            engine.stop()

    def test_an_attention_whose_package_is_missing_is_a_setting(self, load: Load, tiny: str) -> None:
        with pytest.raises(InvalidSettings, match="FlashAttention2"):
            load(tiny, attn_implementation="flash_attention_2")


class TestWithoutAChild:
    def test_settings_have_one_name_each(self) -> None:
        given = {
            "cache": "quantised",
            "cache_config.nbits": "4",
            "prefill_chunk_tokens": "2k",
            "random_weights": "true",
            "backend": "HQQ",
        }
        assert checked_settings(given) == {
            "cache_implementation": "quantized",
            "nbits": 4,
            "prefill_chunk_tokens": 2048,
            "random_weights": True,
            "backend": "hqq",
        }

    @pytest.mark.parametrize(
        ("settings", "says"),
        [
            ({"max_cache_len": 8}, "max_cache_len"),
            ({"cache": "static"}, "max_cache_len"),
            ({"nbits": 4}, "nbits"),
            ({"cache": "offloaded"}, "GPU"),
            ({"cache": "paged"}, "paged"),
            ({"dtype": "int3"}, "int3"),
            ({"cache": "dynamic", "cache_implementation": "dynamic"}, "twice"),
            ({"random_weights": 1}, "random_weights"),
            ({"num_threads": 0}, "num_threads"),
            ({"num_threads": "many"}, "num_threads"),
            ({"num_threads": 100_000}, "at most|100000"),  # torch 2.13 dies of it
            ({"device": "meta"}, "meta"),
        ],
    )
    def test_settings_that_contradict_or_do_not_exist(self, settings: dict[str, Any], says: str) -> None:
        with pytest.raises(InvalidSettings, match=says):
            checked_settings(settings)

    def test_a_model_that_is_no_folder(self) -> None:
        with pytest.raises(ModelNotFound, match=r"config\.json"):
            EngineChoice(name="transformers").create(load_model(llama_config()), {})

    @pytest.mark.parametrize(
        ("message", "where"),
        [
            # As torch 2.13 words them (c10/core/impl/alloc_cpu.cpp, c10/cuda/CUDACachingAllocator.cpp).
            (
                "RuntimeError: [enforce fail at alloc_cpu.cpp:127] err == 0. DefaultCPUAllocator: can't allocate "
                "memory: you tried to allocate 40000000000000 bytes. Error code 12 (Cannot allocate memory)",
                "the machine",
            ),
            (
                "OutOfMemoryError: CUDA out of memory. Tried to allocate 20.00 GiB. GPU 0 has a total capacity of "
                "14.74 GiB of which 1.06 GiB is free.",
                "the GPU",
            ),
        ],
    )
    def test_words_for_no_memory(self, message: str, where: str) -> None:
        error = worker_error(
            {"event": "error", "kind": "out_of_memory", "message": message}, doing="answering", device="cuda:0"
        )
        assert isinstance(error, OutOfMemory)
        assert where in error.message
        assert error.evidence == {"known_by": "message", "body": message}


def test_a_first_token_older_than_the_stamp_of_sending_is_timed_from_before_the_request_was_written() -> None:
    """kvscope wrote at 10.000, was put aside and looked at the clock at 10.005; the child had a token at 10.003."""
    answer = _Answer(begun_s=10.0, sent_s=10.005)
    answer.note({"event": "token", "at_s": 10.003, "id": 1})
    answer.note({"event": "token", "at_s": 10.009, "id": 2})
    assert [at_s for at_s, _ in answer.tokens] == pytest.approx([0.003, 0.009])
