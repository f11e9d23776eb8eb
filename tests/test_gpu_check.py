"""scripts/gpu_check.py, run for real without a GPU: its models, its caches, its comparison. What only a GPU has (the
allocator of torch, the driver) is not tested here but for how its readings are taken apart."""

import importlib.util
import json
import os
import stat
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest

SCRIPT = Path(__file__).parent.parent / "scripts" / "gpu_check.py"
MIB = 1024**2


@pytest.fixture(scope="module")
def script() -> ModuleType:
    spec = importlib.util.spec_from_file_location("gpu_check", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module  # dataclasses look their module up
    spec.loader.exec_module(module)
    return module


@pytest.mark.engine
def test_every_tiny_cache_is_as_predicted(tmp_path: Path) -> None:
    pytest.importorskip("transformers")
    out = tmp_path / "check.json"
    command = [sys.executable, str(SCRIPT), "--device", "cpu", "--quick", "--out", str(out)]
    done = subprocess.run(
        command, capture_output=True, text=True, timeout=600, env={**os.environ, "OMP_NUM_THREADS": "1"}
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert "24 caches, 0 not as predicted, 0 left out." in done.stdout
    found = json.loads(out.read_text())
    assert found["passed"] is True
    assert found["environment"]["driver_memory_from"] == "no GPU is used"
    sizes = {(c["model"], c["tokens"]): c["tensor_bytes"] for c in found["cases"]}
    # 2 layers × (keys + values) × 2 KV heads × 16 wide × 2 B (bfloat16) × 17 tokens × 2 sequences
    assert sizes["llama-tiny", 17] == 2 * 2 * 2 * 16 * 2 * 17 * 2
    assert sizes["llama-tiny", 25] == 2 * 2 * 2 * 16 * 2 * 25 * 2
    # Latent layers hold, for each token, what keys and values are made of (32) and the turned part of the key (8).
    assert sizes["latent-tiny", 100] == 3 * (32 + 8) * 2 * 100 * 2
    # One layer of attention, and two convolutions that keep 3 places of 64 channels whatever the length is.
    assert sizes["lfm2-tiny", 308] == (1 * 2 * 2 * 16 * 308 + 2 * 3 * 64) * 2 * 2
    # Six layers with a window of 64 keep the last 63 tokens, the sixth layer all: (6 × 63 + 308) × 1 KV head × 16 wide.
    assert sizes["gemma3-tiny", 308] == (6 * 63 + 308) * 2 * 16 * 2 * 2
    assert all(case["predicted_bytes"] == case["tensor_bytes"] for case in found["cases"])


def case(script: ModuleType, **changes: Any) -> Any:
    values = {
        "model": "m",
        "tokens": 1,
        "sequences": 1,
        "phase": "prefill",
        "predicted_bytes": 10,
        "predicted_storage_bytes": 20,
        "tensor_bytes": 10,
        "storage_bytes": 20,
        "grown": dict.fromkeys(script.COLUMNS),
    }
    return script.Case(**{**values, **changes})


@pytest.mark.parametrize(("changes", "code"), [({}, 0), ({"tensor_bytes": 11}, 1), ({"storage_bytes": 21}, 1)])
def test_one_byte_too_many_is_a_failure(
    script: ModuleType,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    changes: dict[str, int],
    code: int,
) -> None:
    check = script.Check("cpu", cases=[case(script), case(script, **changes)])
    monkeypatch.setattr(script, "check_all", lambda *_, **__: check)
    monkeypatch.setattr(script, "why_not", lambda _: None)
    monkeypatch.setattr(sys, "argv", ["gpu_check.py", "--device", "cpu"])
    assert script.main() == code
    assert ("NO" in capsys.readouterr().out) == bool(code)


@pytest.mark.engine
def test_what_there_is_no_time_for_is_said_and_nothing_checked_is_no_success(script: ModuleType) -> None:
    pytest.importorskip("transformers")
    check = script.check_all("cpu", quick=False, seconds=-1)
    assert not check.passed
    assert len(check.skipped) == len(script.LENGTHS) * 8
    assert check.skipped[0] == "llama-tiny at 128 tokens: no time left"
    assert "left out: lfm2-1b at 32,768 tokens" in script.table(check)


def test_a_machine_without_a_gpu_is_told_so(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    no_gpu = SimpleNamespace(cuda=SimpleNamespace(is_available=lambda: False))
    monkeypatch.setitem(sys.modules, "torch", no_gpu)
    monkeypatch.setitem(sys.modules, "transformers", SimpleNamespace())
    monkeypatch.setattr(sys, "argv", ["gpu_check.py"])
    assert script.main() == 2
    assert "torch sees no GPU here" in capsys.readouterr().err
    monkeypatch.setitem(sys.modules, "torch", None)  # as where it is not installed
    assert script.main() == 2
    assert "torch is not installed" in capsys.readouterr().err


def torch_with(uuid: str) -> Any:
    return SimpleNamespace(cuda=SimpleNamespace(get_device_properties=lambda _: SimpleNamespace(uuid=uuid)))


def test_nvml_is_asked_for_this_process_and_this_device(script: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    mine, other = SimpleNamespace(pid=os.getpid(), usedGpuMemory=5 * MIB), SimpleNamespace(pid=1, usedGpuMemory=7 * MIB)
    nvml = SimpleNamespace(
        nvmlInit=lambda: None,
        nvmlDeviceGetCount=lambda: 2,
        nvmlDeviceGetHandleByIndex=lambda index: index,
        nvmlDeviceGetUUID=lambda index: ("GPU-aaaa", "GPU-bbbb")[index],
        nvmlDeviceGetComputeRunningProcesses=lambda index: ([], [other, mine])[index],
        nvmlDeviceGetMemoryInfo=lambda index: SimpleNamespace(used=(1, 90 * MIB)[index]),
        nvmlSystemGetDriverVersion=lambda: "600.1",
    )
    monkeypatch.setitem(sys.modules, "pynvml", nvml)
    driver = script.find_driver(torch_with("bbbb"), "cuda")
    assert driver.read() == (5 * MIB, 90 * MIB)
    assert driver.said == "NVML, driver 600.1"
    nvml.nvmlDeviceGetComputeRunningProcesses = lambda index: []  # another container's driver names no process of ours
    assert driver.read() == (None, 90 * MIB)


def test_without_nvml_the_program_of_the_driver_is_asked(
    script: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    monkeypatch.setenv("PATH", str(tmp_path))
    silent = script.find_driver(torch_with("bbbb"), "cuda")
    assert silent.read() == (None, None)
    assert "there is no nvidia-smi" in silent.said
    program = tmp_path / "nvidia-smi"  # prints as the real one does with --format=csv,noheader,nounits
    program.write_text(
        f"#!/bin/sh\ncase $1 in\n*compute-apps*) echo '1, 7'; echo '{os.getpid()}, 312';;\n"
        "*) echo 'GPU-aaaa, 1'; echo 'GPU-bbbb, 90';;\nesac\n"
    )
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    driver = script.find_driver(torch_with("bbbb"), "cuda")
    assert driver.read() == (312 * MIB, 90 * MIB)
    assert driver.said.startswith("nvidia-smi, in whole MiB")
