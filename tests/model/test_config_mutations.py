"""Whatever a config.json holds, reading it ends in a model or in a ModelError with a message, within a second."""

import copy
import functools
import json
import math
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from kvscope.errors import MalformedFile, ModelError
from kvscope.model.families import known_types
from kvscope.model.hf_config import model_from_config
from kvscope.model.load import load_model
from kvscope.model.quantisation import quantised_weights
from kvscope.model.spec import ModelSpec

GOLDEN = Path(__file__).parent.parent / "golden"
FORMS = ("config_saved_by_save_pretrained", "config_kwargs_given")
LONGEST_S = 1.0

# What a file may hold where a number, a text, a list or an object belongs.
VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**70), 2**70),
    st.sampled_from([0, -1, 1, 2, 3, 2**31 - 1, 2**31, 10**9, 10**30, -(2**63)]),
    st.floats(allow_nan=True, allow_infinity=True),
    st.sampled_from(["", "64", "auto", "full_attention", "\ud83d", "x" * 1000]),
    st.lists(st.one_of(st.none(), st.integers(-3, 300), st.text(max_size=4), st.booleans()), max_size=6),
    st.lists(st.lists(st.one_of(st.integers(-3, 300), st.text(max_size=4)), max_size=3), max_size=3),
    st.dictionaries(st.sampled_from(["0", "1", "model_type", "x", "hidden_size"]), st.integers(-3, 300), max_size=3),
)


@functools.cache
def real_configs() -> tuple[tuple[str, dict[str, Any]], ...]:
    """One or two configs of every type that is read: as saved, and as a person wrote it."""
    found, known = [], set(known_types())
    for path in sorted((GOLDEN / "transformers").glob("*.json")):
        case = json.loads(path.read_text())
        if case["model_type"] in known:
            found += [
                (f"{path.stem}:{form}", {"model_type": case["model_type"], **case[form]})
                for form in FORMS
                if case[form]
            ]
    for path in sorted((GOLDEN / "models").glob("*/config.json")):
        config = json.loads(path.read_text())
        if config.get("model_type") in known:
            found.append((path.parent.name, config))
    return tuple(found)


def places(config: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The paths of all values of a config, nested ones too; of long lists the first entries."""
    found = []
    entries = config.items() if isinstance(config, dict) else enumerate(config[:4]) if isinstance(config, list) else ()
    for key, value in entries:
        found += [(*path, key), *places(value, (*path, key))]
    return found


def outcome(config: Any) -> ModelSpec | ModelError:
    """What comes out of reading. Any other error, or a long time, fails the test."""
    started = time.perf_counter()
    try:
        result: ModelSpec | ModelError = model_from_config(config, source="test", where="config.json", name="test")
    except ModelError as error:
        result = error
    assert time.perf_counter() - started < LONGEST_S
    if isinstance(result, ModelError):
        assert result.message
        assert result.hint
    return result


@settings(max_examples=600, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(data=st.data())
def test_a_mutated_real_config_is_a_model_or_a_model_error(data: st.DataObject) -> None:
    name, real = real_configs()[data.draw(st.integers(0, len(real_configs()) - 1))]
    note(name)
    config = copy.deepcopy(real)
    for _ in range(data.draw(st.integers(1, 3))):
        path = data.draw(st.sampled_from(places(config)))
        holder = config
        for step in path[:-1]:
            holder = holder[step]
        if data.draw(st.booleans()) and isinstance(holder, dict):
            del holder[path[-1]]
        else:
            holder[path[-1]] = data.draw(VALUES)
        if not places(config):
            break
    outcome(config)


@functools.cache
def _sources(index: int) -> frozenset[str]:
    result = outcome(real_configs()[index][1])
    return frozenset(result.sources.values() if isinstance(result, ModelSpec) else ())


NUMBERS = ("hidden_size", "num_hidden_layers", "num_attention_heads", "vocab_size", "intermediate_size", "n_embd",
           "n_layer", "n_head", "d_model", "n_layers", "n_heads", "num_layers", "num_heads")  # fmt: skip


@pytest.mark.parametrize("value", [0, -1, 2**31, 10**30, 1.5, math.nan, math.inf, "64", True, [64], {"a": 64}])
def test_a_number_that_cannot_be_is_refused_with_file_key_and_expectation(value: Any) -> None:
    checked = 0
    for index, (name, config) in enumerate(real_configs()):
        read = _sources(index)  # a class may ignore a key that its configs hold
        for key in NUMBERS:
            if not isinstance(config.get(key), int) or f"config.json: {key}" not in read:
                continue
            result = outcome(config | {key: value})
            assert isinstance(result, ModelError), (name, key)
            assert "config.json" in result.message, (name, key, result.message)
            if isinstance(result, MalformedFile):
                assert "expected" in result.message, (name, key, result.message)
            checked += 1
    assert checked > 500


def test_no_number_makes_reading_slow() -> None:
    """Every whole number of every type's configs, a million instead: refused, or counted without going through them."""
    seen = set()
    for _, config in real_configs():
        for path in places(config):
            holder = config
            for step in path[:-1]:
                holder = holder[step]
            value = holder[path[-1]]
            if isinstance(value, bool) or not isinstance(value, int) or (config["model_type"], path) in seen:
                continue
            seen.add((config["model_type"], path))
            changed = copy.deepcopy(config)
            holder = changed
            for step in path[:-1]:
                holder = holder[step]
            holder[path[-1]] = 1_000_000
            outcome(changed)
    assert len(seen) > 1000


def test_null_is_never_zero() -> None:
    """A null where a number must be is the class default, a formula of other fields, or an error: never 0."""
    for name, config in real_configs():
        for key in NUMBERS:
            if key not in config:
                continue
            result = outcome(config | {key: None})
            if isinstance(result, ModelSpec):
                assert min(result.hidden_size, result.vocab_size, len(result.layers)) > 0, (name, key)
                assert result.num_parameters is None or result.num_parameters > 0, (name, key)


@pytest.mark.parametrize("value", [[], [1], 5, "fp8", True, False])
def test_a_quantisation_that_is_no_object_is_refused(value: Any) -> None:
    """Read as none at all it would make every weight two bytes, without a word."""
    result = outcome({"model_type": "llama", "torch_dtype": "bfloat16", "quantization_config": value})
    assert isinstance(result, MalformedFile)
    assert result.where == "quantization_config"


@pytest.mark.parametrize(
    "content",
    [
        {"text_config": {"model_type": "llama", "quantization_config": {"quant_method": "fp8"}}},
        {"compression_config": {"format": "float-quantized"}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": "yes"}},
        {"quantization_config": {"quant_method": "bitsandbytes", "load_in_4bit": True, "load_in_8bit": True}},
    ],
)
def test_weights_of_a_quantisation_that_is_not_read_are_not_known(content: dict[str, Any]) -> None:
    model = outcome({"model_type": "llama", "torch_dtype": "bfloat16", **content})
    assert isinstance(model, ModelSpec)
    assert isinstance(quantised_weights(model), str)


def test_content_in_itself_and_content_nested_too_deeply_are_refused() -> None:
    loop: dict[str, Any] = {"model_type": "llama"}
    loop["x"] = [loop]
    deep: Any = 1
    for _ in range(5000):
        deep = [deep]
    for content in (loop, {"model_type": "llama", "x": deep}):
        result = outcome(content)
        assert isinstance(result, MalformedFile)
        assert "nested too deeply" in result.message


def test_a_file_nested_too_deeply_says_so(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "x": ' + "[" * 700 + "]" * 700 + "}")
    with pytest.raises(MalformedFile, match="nested too deeply"):
        load_model(str(path))


def test_a_file_of_many_entries_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text('{"model_type": "llama", "x": [' + "1," * 2_000_000 + "1]}")
    with pytest.raises(MalformedFile, match="at most 3145728 bytes"):
        load_model(str(path))


def test_a_long_name_does_not_make_a_long_message() -> None:
    result = outcome({"model_type": "x" * 10**6})
    assert isinstance(result, ModelError)
    assert len(result.message) < 3000
    assert "(config.json)" in result.message


def test_every_number_of_every_type_has_a_source() -> None:
    fields = ("num_kv_heads", "key_dim", "value_dim", "window_tokens", "chunk_tokens", "latent_dim", "rope_dim")
    for name, config in real_configs():
        model = outcome(config)
        if not isinstance(model, ModelSpec):
            continue
        wanted = {"architecture", "hidden_size", "vocab_size", "num_layers"}
        wanted |= {
            key for key in ("num_parameters", "trained_context_tokens", "dtype") if getattr(model, key) is not None
        }
        for layer in model.layers:
            wanted.add(f"layers[{layer.index}].cache")
            held = [field for field in fields if getattr(layer.cache, field, None) is not None]
            wanted |= {f"layers[{layer.index}].{field}" for field in held}
        assert wanted <= set(model.sources), (name, wanted - set(model.sources))
        assert all(model.sources.values()), name


@pytest.mark.parametrize("model_type", ["llama", "gemma3_text", "qwen3_next", "falcon_h1", "llama4_text", "gpt_oss"])
def test_key_heads_that_cannot_be_shared_evenly_are_refused(model_type: str) -> None:
    """transformers repeats each key head queries / keys times: 32 and 31 would be 32 queries on 31 keys."""
    model = outcome({"model_type": model_type})
    assert isinstance(model, ModelSpec)
    heads = model.layers[-1].num_q_heads
    result = outcome({"model_type": model_type, "num_key_value_heads": heads - 1})
    assert isinstance(result, MalformedFile)
    assert result.where == "num_key_value_heads"
    assert f"a divisor of {heads} was expected" in result.message
