"""Who else holds memory, and what moved: real children with known amounts, and files as /proc writes them."""

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kvscope.probe.occupants import Move, look, moves, unexplained_fall_bytes
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.units import KIB, MIB

if TYPE_CHECKING:
    from conftest import Occupant


# No process has this id: above the most that Linux gives out (PID_MAX_LIMIT).
NOBODY = 2**22 + 1


def test_another_program_is_named_with_what_it_holds(occupant: "Occupant") -> None:
    # Seen by a kvscope that is some other process, so that this test's child is a stranger's.
    occupant.do(f"name sole-{os.getpid()}")  # nobody else's, so that only this process counts
    before = look((), kvscope_pid=NOBODY)
    occupant.do("anon 300")
    after = look((), kvscope_pid=NOBODY)
    found = {each.pid: each for each in after.others}
    assert found[occupant.pid].resident_bytes >= 300 * MIB
    assert 300 * MIB <= found[occupant.pid].held_bytes < 340 * MIB
    sizes = [each.resident_bytes for each in after.others]
    assert sizes == sorted(sizes, reverse=True)
    (move,) = [move for move in moves(before, after) if move.name == f"sole-{os.getpid()}"]
    assert 300 * MIB <= move.after_bytes - move.before_bytes < 310 * MIB
    assert move.before_bytes > 0


def test_kvscope_the_engine_and_their_children_are_no_others(occupant: "Occupant") -> None:
    occupant.do("fork anon=20")
    family = set(ProcessTreeProbe(occupant.pids).tree())
    assert len(family) == 2
    seen = look(occupant.pids(), kvscope_pid=occupant.pid)
    assert family & {each.pid for each in seen.others} == set()
    assert os.getpid() in {each.pid for each in seen.others}
    assert seen.own_anon_bytes >= 20 * MIB
    # This process is the parent of that child: kvscope with its engine.
    assert family & {each.pid for each in look(()).others} == set()


def machine(folder: Path, available_mib: int, programs: dict[int, tuple[str, int, int, int]]) -> Path:
    """A /proc. ``programs``: pid → name, RssAnon, VmSwap, RssFile in MiB."""
    proc = folder / f"proc-{available_mib}-{len(programs)}-{sum(p[1] for p in programs.values())}"
    proc.mkdir()
    (proc / "meminfo").write_text(
        f"MemTotal: 99999999 kB\nMemFree: 1 kB\nMemAvailable: {available_mib * 1024} kB\nCached: 1 kB\n"
        "SwapTotal: 0 kB\nSwapFree: 0 kB\n"
    )
    for pid, (name, anon, swap, file) in programs.items():
        (proc / str(pid)).mkdir()
        (proc / str(pid) / "stat").write_text(f"{pid} ({name}) S 1 0 0")
        (proc / str(pid) / "status").write_text(
            f"Name:\t{name}\nVmRSS:\t {(anon + file) * 1024} kB\nRssAnon:\t {anon * 1024} kB\n"
            f"RssFile:\t {file * 1024} kB\nRssShmem:\t 0 kB\nVmSwap:\t {swap * 1024} kB\n"
        )
    return proc


def test_a_browser_is_one_program_whatever_its_processes(tmp_path: Path) -> None:
    before = look((), machine(tmp_path, 9000, {10: ("firefox", 300, 0, 50), 11: ("firefox", 300, 0, 50)}), NOBODY)
    after = look((), machine(tmp_path, 9000, {12: ("firefox", 1000, 0, 50), 13: ("bash", 1, 0, 1)}), NOBODY)
    assert moves(before, after) == (Move(name="firefox", before_bytes=600 * MIB, after_bytes=1000 * MIB),)
    assert moves(after, before) == (Move(name="firefox", before_bytes=1000 * MIB, after_bytes=600 * MIB),)


@pytest.mark.parametrize(("more_mib", "moved"), [(256, False), (257, True)])
def test_the_limit_is_256_mib(tmp_path: Path, more_mib: int, moved: bool) -> None:
    before = look((), machine(tmp_path, 9000, {10: ("db", 100, 0, 0)}), NOBODY)
    after = look((), machine(tmp_path, 9001, {10: ("db", 100 + more_mib, 0, 0)}), NOBODY)
    assert bool(moves(before, after)) is moved


def test_pages_of_files_and_memory_that_went_to_swap_are_no_move(tmp_path: Path) -> None:
    """The program holds what it held; where it stands, and what it maps, is the system's doing."""
    before = look((), machine(tmp_path, 9000, {10: ("db", 2000, 0, 3000)}), NOBODY)
    after = look((), machine(tmp_path, 9500, {10: ("db", 100, 1900, 0)}), NOBODY)
    assert moves(before, after) == ()


def test_what_nobody_seen_explains(tmp_path: Path) -> None:
    """Available 9000 → 7000: the engine took 1200, another program 300, so 500 MiB are somebody's that is not seen."""
    before = look((), machine(tmp_path, 9000, {10: ("db", 100, 0, 0), 20: ("kvscope", 50, 0, 0)}), 20)
    files = {10: ("db", 400, 0, 0), 20: ("kvscope", 50, 0, 0), 30: ("llama-server", 1200, 0, 700)}
    after = look((30,), machine(tmp_path, 7000, files), 20)
    assert after.own_anon_bytes == 1250 * MIB
    assert unexplained_fall_bytes(before, after) == 500 * MIB


def test_an_old_kernel_states_no_available_memory(tmp_path: Path) -> None:
    proc = machine(tmp_path, 9000, {10: ("db", 100, 0, 0)})
    (proc / "meminfo").write_text((proc / "meminfo").read_text().replace("MemAvailable", "MemSomething"))
    seen = look((), proc, NOBODY)
    assert seen.available_bytes is None
    assert unexplained_fall_bytes(seen, seen) is None


def test_what_it_holds_is_not_its_resident_size(tmp_path: Path) -> None:
    seen = look((), machine(tmp_path, 9000, {10: ("db", 100, 900, 40)}), NOBODY)
    assert [(each.resident_bytes // KIB, each.held_bytes // KIB) for each in seen.others] == [(140 * 1024, 1000 * 1024)]
