"""The control group probe: folders as the kernel lays them out, and this very machine."""

from pathlib import Path

import pytest

from kvscope.errors import ProbeLost
from kvscope.probe.available import available_probes
from kvscope.probe.cgroup import CgroupProbe


def machine(tmp_path: Path, memberships: str, mountinfo: str, files: dict[str, str]) -> CgroupProbe:
    folder = tmp_path / "proc" / "self"
    folder.mkdir(parents=True)
    (folder / "cgroup").write_text(memberships)
    (folder / "mountinfo").write_text(mountinfo.replace("/sys", f"{tmp_path}/sys"))
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return CgroupProbe(proc=tmp_path / "proc")


def test_version_2(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/user.slice/job"
    probe = machine(
        tmp_path,
        "0::/user.slice/job\n",
        "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n",
        {
            f"{group}/memory.current": "1000\n",
            f"{group}/memory.peak": "3000\n",
            f"{group}/memory.max": "max\n",
            f"{group}/memory.events": "low 0\noom 2\noom_kill 1\n",
        },
    )
    assert probe.unavailable() is None
    assert probe.read() == {"current_bytes": 1000, "peak_bytes": 3000, "oom_kills": 1}


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/job"
    probe = machine(
        tmp_path,
        "4:memory:/job\n3:cpu,cpuacct:/\n0::/\n",
        "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
        "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n",
        {
            f"{group}/memory.usage_in_bytes": "1000\n",
            f"{group}/memory.max_usage_in_bytes": "3000\n",
            f"{group}/memory.limit_in_bytes": "9223372036854771712\n",
            f"{group}/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 4\n",
        },
    )
    assert probe.read() == {"current_bytes": 1000, "peak_bytes": 3000, "oom_kills": 4}


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    """Membership names the path on the host; the mount's root is that very group."""
    probe = machine(
        tmp_path,
        "4:memory:/docker/abc\n",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        {"sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "100\n"},
    )
    assert probe.read() == {"current_bytes": 5, "limit_bytes": 100}


def test_why_not(tmp_path: Path) -> None:
    assert "cannot be read" in str(CgroupProbe(proc=tmp_path).unavailable())
    root = machine(tmp_path, "0::/\n", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", {})
    assert "no memory accounting" in str(root.unavailable())
    with pytest.raises(ProbeLost):
        root.read()


def test_nothing_mounted(tmp_path: Path) -> None:
    probe = machine(tmp_path, "0::/\n", "", {})
    assert "is mounted" in str(probe.unavailable())


def test_every_probe_says_whether_it_works_here() -> None:
    found = dict(available_probes())
    assert found["process memory"] is None
    assert found["process mappings"] is None
    assert found["machine memory"] is None
    assert found["NVIDIA GPU memory (NVML)"] == "Not supported yet by this release."
    probe = CgroupProbe()
    assert (probe.unavailable() is None) == (found["control group"] is None)
    if probe.unavailable() is None:
        assert probe.read()["current_bytes"] > 0


def test_each_reason_is_given_where_proc_is_missing(tmp_path: Path) -> None:
    found = dict(available_probes(tmp_path))
    assert all(found.values())
