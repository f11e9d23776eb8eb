"""Machines that differ where it matters are told apart; an update of the system does not cut a study in two."""

from pathlib import Path

import pytest

from kvscope.errors import ProbeUnavailable
from kvscope.experiment.machine import accelerators, machine_facts, machine_id
from kvscope.probe.nvml import NvidiaProbe

FACTS = {
    "cpu": "a",
    "cpu_flags": ["avx2"],
    "usable_cpus": 2,
    "memory_total_bytes": 24 * 1024**3,
    "swap_total_bytes": 0,
    "architecture": "x86_64",
    "system": "Linux",
    "kernel": "6.1",
    "python": "3.11.1",
    "page_bytes": 4096,
    "accelerators": ["one GPU #0"],
    "accelerators_chosen": None,
    "accelerator_driver": "570.1",
    "memory_limit_bytes": None,
    "cpu_limit": None,
}


def test_which_gpus_were_left_to_programs_is_a_fact(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
    assert "CUDA_VISIBLE_DEVICES=1" in str(machine_facts()["accelerators_chosen"])


def test_this_machine_is_described() -> None:
    facts = machine_facts()
    assert set(facts) == set(FACTS)
    assert facts["usable_cpus"]
    assert facts["memory_total_bytes"]
    assert machine_id(facts) == machine_id(machine_facts())


def test_what_changes_results_changes_the_id() -> None:
    for name, other in (
        ("cpu", "b"),
        ("cpu_flags", []),
        ("usable_cpus", 4),
        ("memory_total_bytes", 32 * 1024**3),
        ("architecture", "aarch64"),
        ("accelerators", ["another GPU #0"]),
        ("accelerators", ["one GPU #0", "one GPU #1"]),
        ("memory_limit_bytes", 4 * 1024**3),
        ("cpu_limit", 1.5),
    ):
        assert machine_id({**FACTS, name: other}) != machine_id(FACTS), name


def test_what_does_not_change_results_keeps_the_id() -> None:
    for name, other in (
        ("kernel", "6.2"),
        ("python", "3.12.0"),
        ("accelerator_driver", "580.2"),
        ("accelerators_chosen", "CUDA_VISIBLE_DEVICES=1"),
        ("memory_total_bytes", 24 * 1024**3 - 4 * 1024**2),
    ):
        assert machine_id({**FACTS, name: other}) == machine_id(FACTS), name


def test_a_machine_without_gpus_and_limits_keeps_the_id_of_before_they_were_looked_at() -> None:
    before = {n: v for n, v in FACTS.items() if not n.startswith(("accelerator", "memory_limit", "cpu_limit"))}
    assert machine_id({**before, "accelerators": [], "memory_limit_bytes": None, "cpu_limit": None}) == machine_id(
        before
    )


def test_gpus_are_named_and_a_driver_that_does_not_answer_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    amd = tmp_path / "card1" / "device"
    amd.mkdir(parents=True)
    for file, text in (("vendor", "0x1002\n"), ("device", "0x744c\n"), ("mem_info_vram_total", "1\n")):
        (amd / file).write_text(text)
    (tmp_path / "card0" / "device").mkdir(parents=True)  # of a maker that is not looked for
    (tmp_path / "card0" / "device" / "vendor").write_text("0x8086\n")
    assert accelerators(tmp_path / "none", tmp_path) == ["AMD GPU 0x744c"]
    (tmp_path / "nvidiactl").touch()
    monkeypatch.setattr(NvidiaProbe, "device_names", lambda probe: ("NVIDIA H200 #0",))
    assert accelerators(tmp_path / "nvidiactl", tmp_path) == ["AMD GPU 0x744c", "NVIDIA H200"]

    def fails(probe: NvidiaProbe) -> tuple[str, ...]:
        raise ProbeUnavailable("The driver is of another version than its library.")

    monkeypatch.setattr(NvidiaProbe, "device_names", fails)
    assert accelerators(tmp_path / "nvidiactl", tmp_path) == ["AMD GPU 0x744c"]
