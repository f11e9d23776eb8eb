"""Where llama.cpp places weights on a CPU (rule 15 of the measurements), with the numbers of real files."""

from collections.abc import Callable
from dataclasses import replace

import pytest

from kvscope.model.spec import ModelSpec, TensorInfo
from kvscope.predict.memory import predict
from kvscope.predict.weights import cpu_weight_buffers, is_repacked, untried_types


def sizes(model: ModelSpec, *, is_mapped: bool, repack: bool = True) -> dict[str, tuple[int, int]]:
    buffers = cpu_weight_buffers(model, is_mapped=is_mapped, repack=repack)
    return {buffer.name: (buffer.needed_bytes, buffer.num_bytes) for buffer in buffers}


def test_gemma3_moves_its_q4_k_matrices(gemma3: ModelSpec) -> None:
    """27 Q4_K tensors = 13,271,040 B. Read into memory, they are moved: 233,316,864 + 13,271,040 = 246,587,904, the sum
    of all tensors. Mapped, the span of the whole file's tensors stays, and the copies come on top."""
    assert sizes(gemma3, is_mapped=False) == {
        "CPU": (233_316_864, 233_316_864),
        "CPU_REPACK": (13_271_040, 13_271_040),
    }
    assert sizes(gemma3, is_mapped=True) == {
        "CPU_Mapped": (233_316_864, 246_587_904),
        "CPU_REPACK": (13_271_040, 13_271_040),
    }
    assert sizes(gemma3, is_mapped=True, repack=False) == {"CPU_Mapped": (246_587_904, 246_587_904)}


def test_smollm2_has_nothing_to_repack(smollm2: ModelSpec) -> None:
    assert sizes(smollm2, is_mapped=True) == {"CPU_Mapped": (96_576_768, 96_576_768)}
    assert sizes(smollm2, is_mapped=False) == {"CPU": (96_576_768, 96_576_768)}


def test_tied_embeddings_of_a_repacked_type_are_held_twice(golden_model: Callable[[str], ModelSpec]) -> None:
    """12,160 + 82,944 = 95,104 against 84,736 of tensors: the difference, 10,368, is token_embd (64 × 288 q4_0)."""
    model = golden_model("tiny-wq-llama-Q4_0")
    assert sizes(model, is_mapped=False) == {"CPU": (12_160, 12_160), "CPU_REPACK": (72_576, 82_944)}
    assert sum(tensor.num_bytes for tensor in model.tensors) == 84_736 == 12_160 + 72_576


def test_which_matrices_are_repacked() -> None:
    def tensor(name: str, dtype: str, shape: tuple[int, ...]) -> TensorInfo:
        return TensorInfo(name=name, dtype=dtype, shape=shape, num_bytes=1)

    assert is_repacked(tensor("blk.0.ffn_up.weight", "q4_0", (256, 512)))
    assert is_repacked(tensor("output.weight", "iq4_nl", (256, 512)))
    assert not is_repacked(tensor("output.weight", "q4_0", (256, 290)))  # rows no multiple of 8
    assert not is_repacked(tensor("token_embd.weight", "q4_0", (256, 512)))  # read row by row, not multiplied
    assert not is_repacked(tensor("blk.0.ffn_up.weight", "q8_0", (256, 512)))
    assert not is_repacked(tensor("blk.0.ffn_up_exps.weight", "q4_0", (256, 512, 8)))
    assert not is_repacked(tensor("blk.0.attn_norm.weight", "q4_0", (256,)))


def test_types_nobody_tried_are_said_to_be_uncertain(smollm2: ModelSpec) -> None:
    odd = TensorInfo(name="blk.0.x.weight", dtype="q8_k", shape=(256, 8), num_bytes=8 * 292, offset=0)
    model = replace(smollm2, tensors=(*smollm2.tensors, odd))
    assert untried_types(smollm2) == ()
    assert untried_types(model) == ("q8_k",)
    found = predict(model, engine="llama.cpp", settings={"n_ctx": 512})
    assert {item.status for item in found.items if item.component == "weights"} == {"estimated"}
    assert any(entry.what == "weights" and "q8_k" in entry.why for entry in found.unknown)
    certain = predict(model, engine="llama.cpp", settings={"n_ctx": 512, "no_extra_bufts": True})
    assert {item.status for item in certain.items if item.component == "weights"} == {"exact"}


@pytest.mark.parametrize("load_mode", ["mmap", "none"])
def test_file_backed_memory_is_told_from_anonymous(gemma3: ModelSpec, load_mode: str) -> None:
    found = predict(gemma3, engine="llama.cpp", settings={"n_ctx": 512, "load_mode": load_mode})
    weights = {b.kind: b.backing for b in found.buffers if b.name == "weights"}
    assert weights == (
        {"CPU_Mapped": "file", "CPU_REPACK": "anonymous"}
        if load_mode == "mmap"
        else {"CPU": "anonymous", "CPU_REPACK": "anonymous"}
    )
    assert {i.backing for i in found.items if i.component != "weights"} == {"anonymous"}
