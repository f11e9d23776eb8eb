"""A whole trial on transformers: what its process holds has a name, as kvscope's report says it."""

import json
from pathlib import Path

import pytest

from kvscope.analysis.attribute import attribute
from kvscope.experiment.measure import measure
from kvscope.record.store import open_records

pytest.importorskip("torch")
pytest.importorskip("transformers")

pytestmark = pytest.mark.engine

CONFIG = {
    "model_type": "llama",
    "architectures": ["LlamaForCausalLM"],
    "hidden_size": 256,
    "intermediate_size": 512,
    "num_hidden_layers": 8,
    "num_attention_heads": 8,
    "num_key_value_heads": 4,
    "vocab_size": 4096,
    "max_position_embeddings": 4096,
    "torch_dtype": "float32",
}


def test_less_than_a_twentieth_has_no_name_at_any_moment(tmp_path: Path) -> None:
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "config.json").write_text(json.dumps(CONFIG))
    records = tmp_path / "record.db"
    measure(
        "input_length", engine="transformers", model=str(folder), levels=[512], repeats=1, output_tokens=4,
        records=records,
    )  # fmt: skip
    with open_records(records) as found:
        trials = [trial for trial in found.trials() if trial.outcome == "ok"]
        result = found.result(trials[-1])
        prediction = found.prediction(trials[-1])
    assert prediction is not None
    for phase in ("loaded", "after_request", "unloaded"):
        terms = attribute(result, prediction, phase)
        assert terms is not None
        assert abs(terms.unexplained_anon_bytes) < 0.05 * terms.anon_growth_bytes, phase
        if phase == "unloaded":
            continue
        # The engine's own count of its weights is what the config says, byte for byte.
        assert terms.term_bytes("weights") == prediction["totals"]["weights_bytes"]
        held = prediction["totals"]["kv_cache_storage_bytes"] if phase == "after_request" else 0
        assert terms.term_bytes("kv_cache") == held
