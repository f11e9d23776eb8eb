"""Machines that differ where it matters are told apart; an update of the system does not cut a study in two."""

from kvscope.experiment.machine import machine_facts, machine_id

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
}


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
    ):
        assert machine_id({**FACTS, name: other}) != machine_id(FACTS), name


def test_what_does_not_change_results_keeps_the_id() -> None:
    for name, other in (("kernel", "6.2"), ("python", "3.12.0"), ("memory_total_bytes", 24 * 1024**3 - 4 * 1024**2)):
        assert machine_id({**FACTS, name: other}) == machine_id(FACTS), name
