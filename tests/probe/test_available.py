"""What `kvscope doctor` says of the probes."""

import importlib.util
import os
import sys
from pathlib import Path

import pytest

from kvscope.probe import cgroup
from kvscope.probe.available import ProbeState, available_probes
from kvscope.probe.machine_memory import machine_memory


def states(*folders: Path) -> dict[str, ProbeState]:
    return {state.name: state for state in available_probes(*folders)}


@pytest.mark.skipif(sys.platform != "linux", reason="reads Linux's /proc")
def test_what_this_machine_has_works() -> None:
    found = states()
    for name in ("process memory", "process mappings", "machine memory"):
        assert found[name].why_not is None
    assert (found["control group"].why_not is None) == (cgroup.unavailable() is None)
    left = cgroup.available_bytes()
    assert left is not None
    assert 0 < left <= machine_memory().total_bytes


def test_each_reason_is_given_where_nothing_is_there(tmp_path: Path) -> None:
    found = states(tmp_path, tmp_path)
    host = [state for state in found.values() if "GPU" not in state.name]
    assert all(state.why_not for state in host)
    assert len({state.name for state in found.values()}) == len(found) >= 10


def test_no_graphics_library_and_no_torch(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setitem(sys.modules, "pynvml", None)
    find = importlib.util.find_spec
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None if name == "torch" else find(name))
    found = states(Path("/proc"), tmp_path)
    assert "pip install 'kvscope[nvidia]'" in str(found["NVIDIA GPU memory (NVML)"].why_not)
    assert "no AMD GPU" in str(found["AMD GPU memory (amdgpu)"].why_not)
    assert "pip install 'kvscope[transformers]'" in str(
        found["PyTorch allocator (in the worker of transformers)"].why_not
    )


def test_an_amd_gpu_is_named_with_what_is_in_use(tmp_path: Path) -> None:
    card = tmp_path / "class" / "drm" / "card1" / "device"
    card.mkdir(parents=True)
    for name, text in (
        ("vendor", "0x1002"),
        ("mem_info_vram_total", "17163091968"),
        ("mem_info_vram_used", "536870912"),
    ):
        (card / name).write_text(text + "\n")
    found = states(Path("/proc"), tmp_path)["AMD GPU memory (amdgpu)"]
    assert found.why_not is None
    assert found.detail is not None
    assert found.detail.startswith("AMD GPU card1: 512")
    assert "in use" in found.detail


def test_a_group_of_an_older_kernel_says_what_it_lacks(tmp_path: Path) -> None:
    (tmp_path / "self").mkdir()
    (tmp_path / "self" / "cgroup").write_text("0::/job\n")
    (tmp_path / "self" / "mountinfo").write_text(f"29 23 0:26 / {tmp_path}/cgroup rw - cgroup2 cgroup2 rw\n")
    (tmp_path / "cgroup" / "job").mkdir(parents=True)
    (tmp_path / "cgroup" / "job" / "memory.current").write_text("1048576\n")
    found = states(tmp_path, tmp_path)["control group"]
    assert found.why_not is None
    assert found.detail is not None
    assert found.detail.startswith("version 2, ")
    assert "no peak" in found.detail
    assert "no count of kills" in found.detail
    assert not (tmp_path / str(os.getpid())).exists()


def test_every_probe_is_explained() -> None:
    page = (Path(__file__).parents[2] / "docs" / "reference" / "probes.md").read_text(encoding="utf-8")
    headings = {line.removeprefix("## ").strip() for line in page.splitlines() if line.startswith("## ")}
    names = {name.removesuffix(" peak (resettable)") for name in states()}
    assert names - headings == set()
