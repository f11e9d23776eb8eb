"""The machine's memory."""

import subprocess
from pathlib import Path

import pytest

from kvscope.errors import ProbeUnavailable
from kvscope.probe.machine_memory import MachineMemory, machine_memory


def test_the_fields_as_the_kernel_writes_them(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text(
        "MemTotal:       24683652 kB\nMemFree:        23834276 kB\nMemAvailable:   24261228 kB\nCached:  547405 kB\n"
        "SwapTotal:       1000 kB\nSwapFree:        900 kB\nHugePages_Total:       0\n"
    )
    assert machine_memory(tmp_path) == MachineMemory(
        total_bytes=24683652 * 1024,
        free_bytes=23834276 * 1024,
        available_bytes=24261228 * 1024,
        cached_bytes=547405 * 1024,
        swap_total_bytes=1_024_000,
        swap_free_bytes=921_600,
    )


def test_this_machine_agrees_with_free() -> None:
    total = int(subprocess.run(["free", "-b"], capture_output=True, text=True, check=True).stdout.split()[7])
    assert machine_memory().total_bytes == total


def test_without_proc_it_says_so(tmp_path: Path) -> None:
    with pytest.raises(ProbeUnavailable, match="cannot be read"):
        machine_memory(tmp_path)
