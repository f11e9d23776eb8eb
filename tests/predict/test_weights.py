"""Where llama.cpp places weights on a CPU (rule 15 of the measurements), with the numbers of real files."""

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_writer import GgufWriter, Tensor
from golden_gguf import ggml_id, writer

from kvscope.dtypes import row_bytes
from kvscope.model.gguf import load_gguf
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
    assert is_repacked(tensor("blk.0.ffn_up_exps.weight", "q4_0", (256, 512, 8)))  # experts, in three dimensions
    assert is_repacked(tensor("blk.0.ffn_down_exps.weight", "mxfp4", (32, 64, 4)))
    assert not is_repacked(tensor("blk.0.ffn_up_exps.weight", "q4_0", (256, 290, 8)))
    assert not is_repacked(tensor("blk.0.attn_k_b.weight", "q4_0", (128, 512, 2)))
    assert not is_repacked(tensor("position_embd.weight", "q4_0", (64, 4096)))
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


# Matrices changed to a repacked type in copies of the recorded models, and the buffers the engine then logged (MiB,
# started on those files: xllamacpp 2026.10.11549).
RETYPED = [
    ("tiny-qwen3moe", "q4_0", "_exps.weight", "0.21", "0.04"),
    ("tiny-gpt-oss", "q4_0", "_exps.weight", "0.33", "0.05"),
    ("tiny-gpt-oss", "mxfp4", "_exps.weight", "0.32", "0.05"),
    ("tiny-gpt2", "q4_0", "position_embd.weight", "0.35", None),
    ("tiny-deepseek2-mla-256", "q4_0", ("attn_k_b.weight", "attn_v_b.weight"), "0.70", None),
    ("tiny-rwkv6", "q4_0", ("time_mix_key.weight", "channel_mix_key.weight"), "0.42", "0.02"),
]


@pytest.mark.parametrize(("name", "dtype", "suffix", "mapped", "repacked"), RETYPED)
def test_buffers_of_models_with_quantised_experts_and_tables(
    name: str, dtype: str, suffix: str | tuple[str, ...], mapped: str, repacked: str | None, tmp_path: Path
) -> None:
    source = writer(name)
    tensors = []
    for tensor in source.tensors:
        if tensor.name.endswith(suffix):
            size = row_bytes(dtype, tensor.shape[0])
            for count in tensor.shape[1:]:
                size *= count
            tensors.append(Tensor(tensor.name, tensor.shape, ggml_id(dtype), size))
        else:
            tensors.append(tensor)
    model = load_gguf(GgufWriter(source.metadata, tensors).write(tmp_path / "retyped.gguf"))
    found = {b.name: f"{b.num_bytes / 2**20:.2f}" for b in cpu_weight_buffers(model, is_mapped=True, repack=True)}
    assert found == {"CPU_Mapped": mapped} | ({"CPU_REPACK": repacked} if repacked else {})
