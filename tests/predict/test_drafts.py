"""A model and one that drafts for it: rows of both, the draft's by the main model's context (the claim of
ggml-org/llama.cpp#23472 that its trained context must not be charged)."""

from collections.abc import Callable
from dataclasses import replace

import pytest
from click.testing import CliRunner

from kvscope.cli.predict import predict as command
from kvscope.errors import UsageError
from kvscope.model.spec import ModelSpec
from kvscope.predict.drafts import predict_with_draft
from kvscope.predict.memory import predict
from kvscope.predict.prediction import Prediction

SMOLLM2_CELL_BYTES = 23_040  # 30 layers × 2 × 192 × 2 B


def rows(found: Prediction, component: str) -> tuple[int, int]:
    """Bytes of the main model's and of the draft's rows."""
    items = [item for item in found.items if item.component == component]
    drafts = [item for item in items if item.because.startswith("draft model ")]
    total = sum(item.allocated.fixed_bytes for item in items)
    of_draft = sum(item.allocated.fixed_bytes for item in drafts)
    return total - of_draft, of_draft


def bigger(smollm2: ModelSpec) -> ModelSpec:
    """A model of the same vocabulary with twice the layers."""
    layers = (*smollm2.layers, *(replace(layer, index=layer.index + 30) for layer in smollm2.layers))
    return replace(smollm2, name="big", layers=layers)


def test_the_drafts_cache_is_that_of_the_chosen_context(smollm2: ModelSpec) -> None:
    """4 slots of 512 cells; the trained context would be 8,192. The draft's cache stays f16."""
    settings = {"n_ctx": 2048, "n_parallel": 4, "cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    found = predict_with_draft(bigger(smollm2), smollm2, settings=settings)
    main_bytes, draft_bytes = rows(found, "kv_cache")
    assert draft_bytes == 2048 * SMOLLM2_CELL_BYTES
    assert main_bytes == 2 * 2048 * SMOLLM2_CELL_BYTES * 17 // 32  # q8_0: 34 B for 32 elements of 64 B
    alone = predict(smollm2, engine="llama.cpp", settings={"n_ctx": 2048, "n_parallel": 4})
    assert rows(found, "weights")[1] == alone.component_bytes("weights") == 96_576_768
    assert rows(found, "compute_buffer")[1] == alone.component_bytes("compute_buffer")


def test_its_own_settings_count(smollm2: ModelSpec) -> None:
    found = predict_with_draft(
        smollm2, smollm2, settings={"n_ctx": 1024}, draft_settings={"cache_type_k": "q8_0", "cache_type_v": "q8_0"}
    )
    assert rows(found, "kv_cache") == (1024 * SMOLLM2_CELL_BYTES, 1024 * SMOLLM2_CELL_BYTES * 17 // 32)


def test_totals_are_sums_and_it_is_an_estimate(smollm2: ModelSpec) -> None:
    found = predict_with_draft(smollm2, smollm2, settings={"n_ctx": 1024})
    assert found.total_bytes == sum(item.allocated.fixed_bytes for item in found.items)
    assert found.status == "estimated"
    assert any(entry.what == "draft model" for entry in found.unknown)


def test_vocabularies_must_be_alike(smollm2: ModelSpec, golden_model: Callable[[str], ModelSpec]) -> None:
    with pytest.raises(UsageError, match="vocabularies"):
        predict_with_draft(golden_model("gemma3-270m-q4_k_m"), smollm2, settings={"n_ctx": 1024})
    with pytest.raises(UsageError, match="not known"):
        predict_with_draft(smollm2, smollm2, engine="vllm")


def test_the_command(smollm2: ModelSpec) -> None:
    assert smollm2.file_path is not None
    arguments = [smollm2.file_path, "--engine", "llama.cpp", "--set", "n_ctx=1024", "--draft", smollm2.file_path]
    done = CliRunner().invoke(command, [*arguments, "--json"], catch_exceptions=False)
    assert done.exit_code == 0
    assert "draft model" in done.output
    with pytest.raises(UsageError, match="two"):
        CliRunner().invoke(command, [*arguments, "--what-if"], catch_exceptions=False)
