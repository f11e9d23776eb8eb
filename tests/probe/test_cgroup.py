"""What the control group leaves: folders as the kernel lays them out, and this very machine."""

from pathlib import Path

import pytest

from kvscope.errors import ProbeUnavailable
from kvscope.probe import cgroup
from kvscope.units import KIB, MIB

AVAILABLE = 8000 * MIB
MEMINFO = (
    f"MemTotal: 16000000 kB\nMemFree: 100 kB\nMemAvailable: {AVAILABLE // KIB} kB\nCached: 5 kB\n"
    "SwapTotal: 0 kB\nSwapFree: 0 kB\n"
)
V2_MOUNT = "29 23 0:26 / /sys/fs/cgroup rw,nosuid shared:9 - cgroup2 cgroup2 rw,nsdelegate\n"
V1_MOUNTS = (
    "35 31 0:32 / /sys/fs/cgroup/memory rw,relatime - cgroup cgroup rw,memory\n"
    "41 31 0:38 / /sys/fs/cgroup/unified rw,relatime - cgroup2 cgroup2 rw\n"
)
V1_NO_LIMIT = "9223372036854771712\n"


def machine(tmp_path: Path, memberships: str, mountinfo: str, files: dict[str, str], *, meminfo: str = MEMINFO) -> Path:
    """A /proc, with files of control groups (paths from the root of the machine) beside it."""
    folder = tmp_path / "proc" / "self"
    folder.mkdir(parents=True)
    (tmp_path / "proc" / "meminfo").write_text(meminfo)
    (folder / "cgroup").write_text(memberships)
    (folder / "mountinfo").write_text(mountinfo.replace("/sys", f"{tmp_path}/sys"))
    for name, text in files.items():
        path = tmp_path / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return tmp_path / "proc"


def v2(tmp_path: Path, files: dict[str, str], *, meminfo: str = MEMINFO) -> Path:
    """In the group /user.slice/job; names of ``files`` count from the root group."""
    placed = {f"sys/fs/cgroup/{name}": text for name, text in files.items()}
    return machine(tmp_path, "0::/user.slice/job\n", V2_MOUNT, placed, meminfo=meminfo)


JOB = "user.slice/job/memory"


def test_version_2_with_a_limit(tmp_path: Path) -> None:
    proc = v2(tmp_path, {f"{JOB}.max": f"{1000 * MIB}\n", f"{JOB}.current": f"{300 * MIB}\n"})
    assert cgroup.unavailable(proc) is None
    assert cgroup.available_bytes(proc) == 700 * MIB


def test_page_cache_is_given_up_when_memory_is_asked_for(tmp_path: Path) -> None:
    """A model file that was downloaded in a container fills its limit with page cache, which is no reason to refuse."""
    files = {
        f"{JOB}.max": f"{1000 * MIB}\n",
        f"{JOB}.current": f"{990 * MIB}\n",
        f"{JOB}.stat": f"anon {90 * MIB}\nfile {900 * MIB}\ninactive_file {600 * MIB}\nactive_file {200 * MIB}\n",
    }
    assert cgroup.available_bytes(v2(tmp_path, files)) == (10 + 600 + 200) * MIB


def test_the_tightest_of_the_groups_around_it_counts(tmp_path: Path) -> None:
    files = {
        f"{JOB}.max": f"{3000 * MIB}\n",
        f"{JOB}.current": f"{100 * MIB}\n",
        "user.slice/memory.max": f"{1000 * MIB}\n",
        "user.slice/memory.current": f"{950 * MIB}\n",
    }
    assert cgroup.available_bytes(v2(tmp_path, files)) == 50 * MIB


def test_the_machine_may_have_less_than_the_limit_leaves(tmp_path: Path) -> None:
    proc = v2(tmp_path, {f"{JOB}.max": f"{64_000 * MIB}\n", f"{JOB}.current": "0\n"})
    assert cgroup.available_bytes(proc) == AVAILABLE


def test_no_limit_leaves_what_the_machine_has(tmp_path: Path) -> None:
    assert cgroup.available_bytes(v2(tmp_path, {f"{JOB}.max": "max\n", f"{JOB}.current": "1000\n"})) == AVAILABLE


def test_over_the_limit_nothing_is_left(tmp_path: Path) -> None:
    assert cgroup.available_bytes(v2(tmp_path, {f"{JOB}.max": "1000\n", f"{JOB}.current": "2000\n"})) == 0


def test_version_1_beside_an_empty_version_2(tmp_path: Path) -> None:
    group = "sys/fs/cgroup/memory/job/memory"
    files = {
        f"{group}.usage_in_bytes": f"{400 * MIB}\n",
        f"{group}.limit_in_bytes": f"{500 * MIB}\n",
        f"{group}.stat": f"inactive_file 1\ntotal_inactive_file {30 * MIB}\ntotal_active_file {20 * MIB}\n",
        "sys/fs/cgroup/memory/memory.usage_in_bytes": f"{900 * MIB}\n",
        "sys/fs/cgroup/memory/memory.limit_in_bytes": V1_NO_LIMIT,
    }
    proc = machine(tmp_path, "4:memory:/job\n3:cpu,cpuacct:/\n0::/\n", V1_MOUNTS, files)
    assert cgroup.available_bytes(proc) == (100 + 50) * MIB


def test_a_container_that_sees_only_its_own_group(tmp_path: Path) -> None:
    """Membership names the path on the host; the mount's root is that very group."""
    proc = machine(
        tmp_path,
        "4:memory:/docker/abc\n",
        "35 31 0:32 /docker/abc /sys/fs/cgroup/memory ro - cgroup cgroup rw,memory\n",
        {"sys/fs/cgroup/memory/memory.usage_in_bytes": "5\n", "sys/fs/cgroup/memory/memory.limit_in_bytes": "100\n"},
    )
    assert cgroup.available_bytes(proc) == 95


def test_without_a_group_the_machine_alone_counts(tmp_path: Path) -> None:
    proc = machine(tmp_path, "0::/\n", "", {})
    assert "is mounted" in str(cgroup.unavailable(proc))
    assert cgroup.available_bytes(proc) == AVAILABLE


def test_what_nobody_states_is_not_known(tmp_path: Path) -> None:
    old_kernel = MEMINFO.replace("MemAvailable", "MemSomething")
    proc = v2(tmp_path, {f"{JOB}.max": "max\n", f"{JOB}.current": "1\n"}, meminfo=old_kernel)
    assert cgroup.available_bytes(proc) is None


def test_why_not(tmp_path: Path) -> None:
    assert "cannot be read" in str(cgroup.unavailable(tmp_path))
    with pytest.raises(ProbeUnavailable):
        cgroup.available_bytes(tmp_path)
    root = machine(tmp_path, "0::/\n", "29 23 0:26 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n", {})
    assert "no memory accounting" in str(cgroup.unavailable(root))


def test_limits_are_the_tightest_of_all_groups_around(tmp_path: Path) -> None:
    files = {
        f"{JOB}.max": "max\n",
        "user.slice/memory.max": f"{1000 * MIB}\n",
        "user.slice/job/cpu.max": "150000 100000\n",
        "user.slice/cpu.max": "max 100000\n",
    }
    proc = v2(tmp_path, files)
    assert cgroup.memory_limit_bytes(proc) == 1000 * MIB
    assert cgroup.cpu_limit(proc) == 1.5


def test_limits_of_version_1_and_none_at_all(tmp_path: Path) -> None:
    mounts = V1_MOUNTS + "42 31 0:39 / /sys/fs/cgroup/cpu rw,relatime - cgroup cgroup rw,cpu\n"
    files = {
        "sys/fs/cgroup/memory/job/memory.limit_in_bytes": V1_NO_LIMIT,
        "sys/fs/cgroup/cpu/job/cpu.cfs_quota_us": "50000\n",
        "sys/fs/cgroup/cpu/job/cpu.cfs_period_us": "100000\n",
        "sys/fs/cgroup/cpu/cpu.cfs_quota_us": "-1\n",
        "sys/fs/cgroup/cpu/cpu.cfs_period_us": "100000\n",
    }
    proc = machine(tmp_path, "4:memory:/job\n3:cpu:/job\n0::/\n", mounts, files)
    assert cgroup.memory_limit_bytes(proc) is None
    assert cgroup.cpu_limit(proc) == 0.5
    assert cgroup.cpu_limit(tmp_path / "nothing") is None
    assert cgroup.memory_limit_bytes(tmp_path / "nothing") is None
