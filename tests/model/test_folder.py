"""Model folders: what each file says, and what is said when two of them disagree."""

import json
import shutil
import time
from pathlib import Path
from typing import Any

import pytest
from golden_gguf import GOLDEN
from safetensors_writer import TINY_CONFIG, TINY_PARAMETERS, tiny_tensors, write_safetensors

from kvscope.errors import MalformedFile, ModelNotFound
from kvscope.model.load import load_model
from kvscope.model.spec import ModelSpec

SAVED = GOLDEN.parent / "safetensors"
TINY_GGUF = GOLDEN / "tiny-wq-llama-Q4_0.gguf"


def folder_with(path: Path, config: dict[str, Any] | None = None, tensors: Any = None, **changes: Any) -> Path:
    if config is None:
        config = {**TINY_CONFIG, **changes}
    (path / "config.json").write_text(json.dumps(config))
    if tensors is not None:
        write_safetensors(path / "model.safetensors", tensors)
    return path


def write_sharded(path: Path, total_size: int | None = None) -> dict[str, str]:
    tensors = tiny_tensors()
    names = list(tensors)
    weight_map = {}
    for number, part in enumerate((names[:9], names[9:]), start=1):
        shard = f"model-0000{number}-of-00002.safetensors"
        write_safetensors(path / shard, {name: tensors[name] for name in part})
        weight_map |= dict.fromkeys(part, shard)
    metadata = {"total_size": 2 * TINY_PARAMETERS if total_size is None else total_size}
    write_index(path, weight_map, metadata)
    return weight_map


def write_index(path: Path, weight_map: dict[str, str], metadata: dict[str, Any]) -> None:
    (path / "model.safetensors.index.json").write_text(json.dumps({"metadata": metadata, "weight_map": weight_map}))


def test_a_model_as_transformers_saves_it_in_several_files() -> None:
    """19,616 parameters of two bytes each, as the library counted them (tests/golden/safetensors/README.md)."""
    model = load_model(SAVED / "tiny-llama-sharded")
    assert model.warnings == ()
    assert (model.num_parameters, model.dtype, model.source_kind) == (19_616, "bfloat16", "config")
    assert sum(tensor.num_bytes for tensor in model.tensors) == 39_232
    assert len(model.layers) == 2
    assert model.sources["tensors"] == (
        "2 files (model-00001-of-00002.safetensors to model-00002-of-00002.safetensors)"
    )
    assert model.sources["num_parameters"].startswith("derived: sum over the modules")


def test_tied_embeddings_as_transformers_saves_them() -> None:
    model = load_model(SAVED / "tiny-llama-tied")
    assert (model.warnings, model.num_parameters, model.is_tied) == ((), 17_568, True)
    assert sum(tensor.num_bytes for tensor in model.tensors) == 17_568 * 4


def test_the_stored_format_beats_the_declared_one(tmp_path: Path) -> None:
    model = load_model(folder_with(tmp_path, tensors=tiny_tensors("F32")))
    assert model.dtype == "float32"
    assert sum(tensor.num_bytes for tensor in model.tensors) == 4 * TINY_PARAMETERS
    assert [w for w in model.warnings if "says bfloat16" in w and "stored as float32" in w]


def test_the_format_most_elements_have_decides(tmp_path: Path) -> None:
    tensors = tiny_tensors("BF16")
    tensors["model.norm.weight"] = ("F32", (8,))
    model = load_model(folder_with(tmp_path, tensors=tensors))
    assert (model.dtype, model.warnings) == ("bfloat16", ())


def test_a_stored_copy_of_tied_embeddings_counts_once_as_parameters(tmp_path: Path) -> None:
    """128 elements of the output matrix are the embeddings again."""
    model = load_model(folder_with(tmp_path, tensors=tiny_tensors(), tie_word_embeddings=True))
    assert (model.num_parameters, model.warnings) == (TINY_PARAMETERS - 128, ())
    assert len(model.tensors) == 21


def test_another_number_of_parameters_is_said_with_the_difference(tmp_path: Path) -> None:
    tensors = tiny_tensors()
    tensors["model.layers.0.self_attn.rotary_emb.inv_freq"] = ("F32", (2,))
    del tensors["model.norm.weight"]
    model = load_model(folder_with(tmp_path, tensors=tensors))
    (warning,) = model.warnings
    assert "stores 1250 elements" in warning
    assert "implies 1256 parameters" in warning
    assert "difference of -6" in warning
    assert "Not in the config's model: model.layers.0.self_attn.rotary_emb.inv_freq." in warning
    assert "Not stored: model.norm.weight." in warning


def test_layers_beyond_the_config_are_said(tmp_path: Path) -> None:
    """One layer: 496 elements of two bytes."""
    model = load_model(folder_with(tmp_path, tensors=tiny_tensors(layers=3)))
    assert len(model.layers) == 2
    assert [w for w in model.warnings if "2 to 2, 992 B" in w and "not as layers with a cache" in w]


def test_fewer_layers_than_the_config_says_are_refused(tmp_path: Path) -> None:
    with pytest.raises(MalformedFile, match="no tensor of 1 of them") as caught:
        load_model(folder_with(tmp_path, tensors=tiny_tensors(layers=1)))
    assert caught.value.where == "layer 1"


@pytest.mark.parametrize("change", [{"hidden_size": 16}, {"vocab_size": 17}, {"intermediate_size": 13}])
def test_a_config_of_another_model_is_refused(tmp_path: Path, change: dict[str, int]) -> None:
    with pytest.raises(MalformedFile, match="by the config it is") as caught:
        load_model(folder_with(tmp_path, tensors=tiny_tensors(), **change))
    assert "different models" in str(caught.value.hint)


def test_several_files_with_an_index(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    model = load_model(folder_with(tmp_path))
    assert (len(model.tensors), model.warnings) == (21, ())
    one = load_model(tmp_path / "model-00002-of-00002.safetensors")
    assert one.tensors == model.tensors  # one file of a set stands for the set


def test_an_index_that_names_a_missing_file(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model-00002-of-00002.safetensors").unlink()
    with pytest.raises(ModelNotFound, match=r"names the file model-00002-of-00002\.safetensors"):
        load_model(folder_with(tmp_path))


def test_an_index_with_another_total_size(tmp_path: Path) -> None:
    write_sharded(tmp_path, total_size=2 * TINY_PARAMETERS + 100)
    (warning,) = load_model(folder_with(tmp_path)).warnings
    assert "total_size of 2612 B" in warning
    assert "take 2512 B (-100 B)" in warning


def test_an_index_and_files_that_do_not_fit(tmp_path: Path) -> None:
    weight_map = write_sharded(tmp_path)
    folder_with(tmp_path)
    write_index(tmp_path, {**weight_map, "model.absent.weight": "model-00001-of-00002.safetensors"}, {})
    with pytest.raises(MalformedFile, match="not in model-00001") as caught:
        load_model(tmp_path)
    assert caught.value.where == "weight_map.model.absent.weight"
    del weight_map["model.norm.weight"]
    write_index(tmp_path, weight_map, {})
    warnings = load_model(tmp_path).warnings
    assert [w for w in warnings if "1 tensors that it does not list" in w]
    assert [w for w in warnings if "Not stored: model.norm.weight" in w]


def test_several_files_without_an_index(tmp_path: Path) -> None:
    write_sharded(tmp_path)
    (tmp_path / "model.safetensors.index.json").unlink()
    assert len(load_model(folder_with(tmp_path)).tensors) == 21
    (tmp_path / "model-00001-of-00002.safetensors").unlink()
    with pytest.raises(ModelNotFound, match="one of 2 files, and model-00001-of-00002"):
        load_model(tmp_path)


def test_one_file_under_another_name_and_the_original_format_beside(tmp_path: Path) -> None:
    folder_with(tmp_path)
    write_safetensors(tmp_path / "weights.safetensors", tiny_tensors())
    write_safetensors(tmp_path / "consolidated.safetensors", {"tok_embeddings.weight": ("BF16", (16, 8))})
    assert len(load_model(tmp_path).tensors) == 21
    write_safetensors(tmp_path / "others.safetensors", tiny_tensors())
    with pytest.raises(ModelNotFound, match=r"several sets of weights: others\.safetensors, weights\.safetensors"):
        load_model(tmp_path)
    write_safetensors(tmp_path / "model.safetensors", tiny_tensors())
    assert load_model(tmp_path).sources["tensors"] == "model.safetensors"


def test_a_tensor_in_two_files(tmp_path: Path) -> None:
    folder_with(tmp_path)
    for number in (1, 2):
        write_safetensors(tmp_path / f"m-0000{number}-of-00002.safetensors", tiny_tensors())
    with pytest.raises(MalformedFile, match="two of the files"):
        load_model(tmp_path)


def test_adapters_projectors_and_other_weights_are_named(tmp_path: Path) -> None:
    folder_with(tmp_path)
    (tmp_path / "pytorch_model.bin").write_bytes(b"")
    assert [w for w in load_model(tmp_path).warnings if "pytorch_model.bin" in w and "not read" in w]
    write_safetensors(tmp_path / "model.safetensors", tiny_tensors())
    write_safetensors(tmp_path / "adapter_model.safetensors", {"a.lora_A.weight": ("F32", (2, 8))})
    (tmp_path / "mmproj-model-f16.gguf").write_bytes(b"GGUF")
    warnings = load_model(tmp_path).warnings
    assert [w for w in warnings if w.startswith("adapter_model.safetensors (an adapter")]
    assert [w for w in warnings if w.startswith("mmproj-model-f16.gguf (a projector")]
    assert not [w for w in warnings if "pytorch_model" in w]


def test_folders_that_hold_no_whole_model(tmp_path: Path) -> None:
    write_safetensors(tmp_path / "model.safetensors", tiny_tensors())
    with pytest.raises(ModelNotFound, match=r"weights \(model\.safetensors\) but no config") as caught:
        load_model(tmp_path)
    assert "--layers" in str(caught.value.hint)
    with pytest.raises(ModelNotFound, match=r"weights only \(21 tensors, 2512 B\)"):
        load_model(tmp_path / "model.safetensors")
    (tmp_path / "model.safetensors").unlink()
    (tmp_path / "adapter_config.json").write_text("{}")
    with pytest.raises(ModelNotFound, match="an adapter, not a model"):
        load_model(tmp_path)


def test_a_safetensors_file_with_a_config_beside_it(tmp_path: Path) -> None:
    folder = folder_with(tmp_path, tensors=tiny_tensors())
    assert load_model(folder / "model.safetensors").tensors == load_model(folder).tensors
    assert load_model(str(folder / "model.safetensors")).source == str(folder / "model.safetensors")


def test_fingerprints_differ_where_the_headers_do(tmp_path: Path) -> None:
    folder_with(tmp_path, tensors=tiny_tensors())
    first = load_model(tmp_path).fingerprint
    assert load_model(tmp_path).fingerprint == first
    write_safetensors(tmp_path / "model.safetensors", tiny_tensors("F16"))
    assert load_model(tmp_path).fingerprint != first


def quantised_folder(path: Path, case: dict[str, Any], config: dict[str, Any]) -> Path:
    formats = {"int32": "I32", "bfloat16": "BF16", "uint8": "U8", "int64": "I64", "float8_e4m3fn": "F8_E4M3"}
    tensors = {name: (formats[dtype], tuple(shape)) for name, (dtype, shape) in case["tensors"].items()}
    write_safetensors(path / "model.safetensors", tensors)
    (path / "config.json").write_text(json.dumps({**config, "quantization_config": case["quantization_config"]}))
    return path


@pytest.mark.parametrize("scheme", ["ct-W4A16", "ct-W4A16_ASYM", "ct-FP8_DYNAMIC", "ct-MXFP4"])
def test_quantised_weights_are_compared_with_what_their_config_implies(tmp_path: Path, scheme: str) -> None:
    """Tensors as compressed-tensors packs them; parameters are those of the model, not of the packed tensors: 983,040
    in 14 matrices of 2 layers, twice 320 × 256, and 5 norms of 256."""
    packed = json.loads((GOLDEN.parent / "quantised" / "tiny-llama.json").read_text())
    model = load_model(quantised_folder(tmp_path, packed["cases"][scheme], packed["config"]))
    assert (model.warnings, model.dtype, model.num_parameters) == ((), "bfloat16", 983_040 + 2 * 320 * 256 + 5 * 256)
    other = {**packed["cases"][scheme], "quantization_config": {"quant_method": "awq", "bits": 4, "group_size": 128}}
    warnings = load_model(quantised_folder(tmp_path, other, packed["config"])).warnings
    assert [w for w in warnings if "its quantization_config implies" in w]


def gguf_config(model: ModelSpec) -> dict[str, Any]:
    """A config that says the same as the GGUF, from what its reader found."""
    cache: Any = model.layers[0].cache
    return {
        "model_type": "llama",
        "hidden_size": model.hidden_size,
        "intermediate_size": 352,
        "num_hidden_layers": len(model.layers),
        "num_attention_heads": model.layers[0].num_q_heads,
        "num_key_value_heads": cache.num_kv_heads,
        "head_dim": cache.key_dim,
        "vocab_size": model.vocab_size,
        "max_position_embeddings": model.trained_context_tokens,
    }


def test_a_config_beside_one_gguf_is_compared(tmp_path: Path) -> None:
    shutil.copy(TINY_GGUF, tmp_path / "a.gguf")
    alone = load_model(tmp_path)
    (tmp_path / "config.json").write_text(json.dumps(gguf_config(alone)))
    both = load_model(tmp_path)
    assert (both.source_kind, both.tensors, both.warnings) == ("gguf", alone.tensors, alone.warnings)
    changed = {**gguf_config(alone), "num_key_value_heads": 4, "num_hidden_layers": 5, "head_dim": 64}
    (tmp_path / "config.json").write_text(json.dumps(changed))
    warnings = load_model(tmp_path).warnings
    assert [w for w in warnings if "disagree on the layers" in w and w.endswith("and 5.")]
    assert [w for w in warnings if "disagree on the cache of" in w and "layer 0" in w]
    (tmp_path / "config.json").write_text("{}")
    assert [w for w in load_model(tmp_path).warnings if "not compared" in w]


def test_a_gguf_beside_safetensors_is_a_conversion_of_them(tmp_path: Path) -> None:
    folder_with(tmp_path, tensors=tiny_tensors())
    for name in ("a.gguf", "b.gguf"):
        shutil.copy(TINY_GGUF, tmp_path / name)
    model = load_model(tmp_path)
    assert (model.source_kind, len(model.tensors)) == ("config", 21)
    assert len([w for w in model.warnings if "is not counted" in w]) == 2
    assert [w for w in model.warnings if "config.json and a.gguf disagree on the hidden size" in w]


def test_parts_of_one_gguf_are_one_model_and_two_models_are_refused(tmp_path: Path) -> None:
    for name in ("big-00001-of-00002.gguf", "big-00002-of-00002.gguf"):
        (tmp_path / name).write_bytes(b"no GGUF")
    with pytest.raises(MalformedFile, match="not a GGUF file") as caught:  # the first part is read, nothing is chosen
        load_model(tmp_path)
    assert caught.value.path.endswith("big-00001-of-00002.gguf")
    shutil.copy(TINY_GGUF, tmp_path / "small.gguf")
    with pytest.raises(ModelNotFound, match=r"several models: big-00001-of-00002\.gguf, small\.gguf"):
        load_model(tmp_path)


@pytest.mark.parametrize("numbers", ["00000-of-00000", "00003-of-00002", "00000-of-00002"])
def test_a_file_of_a_set_that_cannot_be_is_not_read_as_no_weights(tmp_path: Path, numbers: str) -> None:
    folder_with(tmp_path)
    write_safetensors(tmp_path / f"model-{numbers}.safetensors", tiny_tensors())
    with pytest.raises(MalformedFile, match="which no set of files has"):
        load_model(tmp_path)


def test_a_set_of_99999_files_is_missed_in_no_time(tmp_path: Path) -> None:
    folder_with(tmp_path)
    write_safetensors(tmp_path / "model-00001-of-99999.safetensors", tiny_tensors())
    started = time.process_time()
    with pytest.raises(ModelNotFound, match=r"nor are 99997 more"):
        load_model(tmp_path)
    assert time.process_time() - started < 1
