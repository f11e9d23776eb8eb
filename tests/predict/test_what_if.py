"""Single changes: bytes against predict() itself and against numbers derived by hand, refusals with the reason."""

from pathlib import Path
from typing import Any

import pytest

import kvscope
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec
from kvscope.predict.question import Question
from kvscope.predict.what_if import Change, what_if
from kvscope.report.prediction_text import render_what_if

LLAMA_8B = Path(__file__).parents[1] / "golden" / "models" / "llama-3.1-8b" / "config.json"


def by_change(changes: tuple[Change, ...]) -> dict[tuple[Any, ...], Change]:
    return {tuple(change.candidate.change.items()): change for change in changes}


def test_savings_by_hand(smollm2: ModelSpec) -> None:
    """q8_0 keeps 34 B for 32 elements of 2 B: 30 layers × 8,192 cells × 2 × 192 elements. Each quantised side adds a
    rotation of 64 × 64 floats to the compute buffer."""
    elements = 30 * 8192 * 2 * 192
    found = by_change(what_if(Question(model=smollm2, engine="llama.cpp", settings={"n_ctx": 8192})))
    both = found[("cache_type_k", "q8_0"), ("cache_type_v", "q8_0")]
    assert both.saved_bytes == elements * 2 - elements // 32 * 34 - 2 * 64 * 64 * 4
    four = found[("cache_type_k", "q4_0"), ("cache_type_v", "q4_0")]
    assert four.saved_bytes == elements * 2 - elements // 32 * 18 - 2 * 64 * 64 * 4
    # 512 → 64 rows of 4 × (5 × 576 + 9) + 2 × 8,192 B, and of 12 × 1,536 B beside logits of 4 × 49,152 B at least.
    assert found[(("n_ubatch", 64),)].saved_bytes == 448 * (4 * (5 * 576 + 9) + 2 * 8192 + 12 * 1536)


def test_every_answer_is_predicts_own(gemma3: ModelSpec) -> None:
    settings = {"n_ctx": 8192, "ctk": "q8_0", "swa_full": True}
    now = kvscope.predict(gemma3, engine="llama.cpp", settings=settings).total_bytes
    changes = what_if(Question(model=gemma3, engine="llama.cpp", settings=settings))
    assert len(changes) >= 8
    for change in changes:
        assert change.candidate.cost
        assert change.candidate.source
        canonical = {"n_ctx": 8192, "cache_type_k": "q8_0", "swa_full": True, **change.candidate.change}
        asked = kvscope.predict(gemma3, engine="llama.cpp", settings=canonical)
        found = change.to_dict()
        assert (found["total_bytes"], found["saved_bytes"]) == (asked.total_bytes, now - asked.total_bytes)
    assert [c.saved_bytes for c in changes] == sorted((c.saved_bytes for c in changes), reverse=True)
    # 15 window layers with 1,024 cells of 272 + 512 B instead of 8,192; the mask has 2 B for each of 512 rows and cell.
    assert by_change(changes)[(("swa_full", False),)].saved_bytes == (8192 - 1024) * (15 * (272 + 512) + 2 * 512)


def test_what_is_asked_already_is_no_change(smollm2: ModelSpec) -> None:
    question = Question(model=smollm2, engine="llama.cpp", settings={"flash_attn": "off", "lm": "none", "ub": 256})
    changes = [change.candidate.change for change in what_if(question)]
    assert {"n_ubatch": 256} not in changes
    assert {"flash_attn": "on"} in changes
    assert {"load_mode": "mmap"} in changes
    assert not any("swa_full" in change for change in changes)  # there is no window


def test_refused_with_the_engines_reason(smollm2: ModelSpec) -> None:
    """A quantised V needs flash attention."""
    changes = what_if(Question(model=smollm2, engine="llama.cpp", settings={"n_ctx": 2048, "flash_attn": "off"}))
    refused = [change for change in changes if change.refused is not None]
    assert refused == list(changes[-len(refused) :])
    assert {change.candidate.change["cache_type_v"] for change in refused} == {"q8_0", "q4_0"}
    for change in refused:
        assert "requires flash_attn" in (change.refused or "")
        assert change.to_dict()["total_bytes"] is None
        assert change.saved_bytes is None


def test_another_engine_gets_room_for_the_same_tokens() -> None:
    """transformers keeps what the tokens need: 4,096 × 131,072 B; llama.cpp is given 4,096 cells."""
    config = {"model_type": "llama", "num_key_value_heads": 8, "torch_dtype": "bfloat16"}
    model = kvscope.load_model({**config, "max_position_embeddings": 131_072})
    changes = by_change(what_if(Question(model=model, engine="transformers", tokens=4096)))
    other = changes[(("engine", "llama.cpp"),)]
    assert other.answer is not None
    assert other.answer.cache_bytes == 32 * 2 * 8 * 128 * 2 * 4096
    # Only what both know is compared: the weights have no place in llama.cpp without a file.
    assert other.saved_bytes == 0


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_formats_without_an_engine(dtype: str) -> None:
    model = kvscope.load_model({"model_type": "llama", "torch_dtype": dtype})
    changes = by_change(what_if(Question(model=model, engine="logical", tokens=100)))
    assert (("dtype", dtype),) not in changes
    other = "bfloat16" if dtype == "float32" else "float32"
    saved = changes[(("dtype", other),)].saved_bytes
    total = kvscope.predict(model, engine="logical", tokens=100).total_bytes
    assert saved == (total // 2 if dtype == "float32" else -total)


def test_a_total_that_leaves_out_what_the_baseline_holds_is_not_shown_as_one() -> None:
    """A config has weights for vLLM; of llama.cpp's only a GGUF tells."""
    question = Question(model=load_model(LLAMA_8B), engine="vllm", tokens=4096)
    baseline = question.ask()
    changes = what_if(question, baseline)
    other = by_change(changes)[(("engine", "llama.cpp"),)]
    assert other.unknown == ("weights",)
    assert other.to_dict()["unknown"] == ["weights"]
    shown = render_what_if(baseline.to_dict() | {"what_if": [change.to_dict() for change in changes]})
    line = next(line for line in shown.splitlines() if "engine = llama.cpp" in line)
    assert "not known" in line
    assert "(not known there: weights)" in line
