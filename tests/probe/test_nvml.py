"""NVIDIA's memory through the real pynvml and ctypes, against a stand-in of the driver's library that is compiled here
from nvml.h's structures (nvml_standin.c). No GPU is needed; each case runs in a process of its own, because a library
is loaded once."""

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from kvscope.probe.nvml import NvidiaProbe
from kvscope.units import MIB

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="the stand-in is a Linux library")

PROGRAM = """
import json, sys
from pathlib import Path
from kvscope.probe.nvml import NvidiaProbe
from kvscope.errors import ProbeError
probe = NvidiaProbe(lambda: (10, 11), proc=Path(sys.argv[1]))
said = {"unavailable": probe.unavailable()}
if said["unavailable"] is None:
    said["names"] = probe.device_names()
    said["read"] = dict(probe.read())
    said["occupants"] = [[o.device, o.pid, o.name, o.held_bytes] for o in probe.occupants((10, 11))]
    said["doubts"] = probe.doubts()
    if len(sys.argv) > 3:
        Path(sys.argv[2]).write_text(sys.argv[3])
        try:
            said["then"] = dict(probe.read())
        except ProbeError as error:
            said["then"] = [type(error).__name__, str(error)]
    probe.close()
print(json.dumps(said))
"""


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("nvml"))


def compiled(folder: Path, *options: str) -> Path:
    pytest.importorskip("pynvml")
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler here")
    source = Path(__file__).with_name("nvml_standin.c")
    command = [compiler, "-shared", "-fPIC", "-Wall", *options, "-o", "libnvidia-ml.so.1", str(source)]
    subprocess.run(command, cwd=folder, check=True)
    return folder


def asked(library: Path, tmp_path: Path, state: str, *, own_pids: bool = True, then: str | None = None) -> Any:
    """What the probe says of the processes 10 and 11."""
    (tmp_path / "state").write_text(state)
    proc = tmp_path / "proc"
    (proc / "self" / "ns").mkdir(parents=True)
    (proc / "self" / "ns" / "pid").symlink_to("pid:[4026531836]" if own_pids else "pid:[4026532777]")
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "KVSCOPE_NVML_STATE": str(tmp_path / "state"),
    }
    more = [] if then is None else [then]
    command = [sys.executable, "-c", PROGRAM, str(proc), str(tmp_path / "state"), *more]
    return json.loads(subprocess.run(command, env=environment, capture_output=True, text=True, check=True).stdout)


H100 = f"device {81920 * MIB} {30000 * MIB} 0 NVIDIA H100\n"


def test_the_engines_share_the_whole_device_and_the_others(library: Path, tmp_path: Path) -> None:
    state = (
        H100
        + f"device {24576 * MIB} {9000 * MIB} 0 NVIDIA GeForce RTX 4090\n"
        + f"process 0 Compute 10 {20000 * MIB}\n"
        + f"process 0 Compute 77 {5000 * MIB}\n"
        + f"process 1 Compute 11 {3000 * MIB}\n"
        + f"process 1 Graphics 900 {700 * MIB}\n"
    )
    said = asked(library, tmp_path, state)
    assert said["unavailable"] is None
    assert said["names"] == ["NVIDIA H100 #0", "NVIDIA GeForce RTX 4090 #1"]
    assert said["read"] == {
        "device_used_bytes": 39000 * MIB,
        "device_total_bytes": (81920 + 24576) * MIB,
        "device_bytes": 23000 * MIB,
    }
    assert said["occupants"] == [
        ["NVIDIA H100 #0", 77, "program-77", 5000 * MIB],
        ["NVIDIA GeForce RTX 4090 #1", 900, "program-900", 700 * MIB],  # the desktop
    ]
    assert said["doubts"] == []


def test_one_that_computes_and_draws_is_counted_once(library: Path, tmp_path: Path) -> None:
    state = H100 + f"process 0 Compute 10 {500 * MIB}\nprocess 0 Graphics 10 {500 * MIB}\n"
    assert asked(library, tmp_path, state)["read"]["device_bytes"] == 500 * MIB


def test_clients_of_mps_are_seen(library: Path, tmp_path: Path) -> None:
    state = H100 + f"process 0 MPSCompute 10 {600 * MIB}\n"
    assert asked(library, tmp_path, state)["read"]["device_bytes"] == 600 * MIB


def test_an_engine_that_is_not_on_the_device_holds_nothing_there(library: Path, tmp_path: Path) -> None:
    said = asked(library, tmp_path, H100 + f"process 0 Compute 77 {MIB}\n")
    assert said["read"]["device_bytes"] == 0
    assert said["doubts"] == []


def test_in_a_container_not_being_found_is_not_nothing(library: Path, tmp_path: Path) -> None:
    said = asked(library, tmp_path, H100 + f"process 0 Compute 77 {MIB}\n", own_pids=False)
    assert "device_bytes" not in said["read"]
    assert said["read"]["device_used_bytes"] == 30000 * MIB
    assert "--pid=host" in said["doubts"][0]


def test_a_container_that_is_shown_no_process_at_all(library: Path, tmp_path: Path) -> None:
    said = asked(library, tmp_path, H100, own_pids=False)
    assert "device_bytes" not in said["read"]
    assert "lists no process" in said["doubts"][0]


def test_a_share_that_is_not_available_is_not_zero(library: Path, tmp_path: Path) -> None:
    """Windows' WDDM and WSL: the driver does not know, Windows does."""
    said = asked(library, tmp_path, H100 + "process 0 Compute 10 -1\nprocess 0 Compute 77 -1\n")
    assert "device_bytes" not in said["read"]
    assert "WSL" in said["doubts"][0]
    assert said["occupants"] == [["NVIDIA H100 #0", 77, "program-77", None]]


def test_one_device_that_does_not_tell_makes_the_sum_unknown(library: Path, tmp_path: Path) -> None:
    state = H100 + H100 + f"process 0 Compute 10 -1\nprocess 1 Compute 10 {MIB}\n"
    assert "device_bytes" not in asked(library, tmp_path, state)["read"]


def test_lists_that_are_not_supported_or_not_permitted(library: Path, tmp_path: Path) -> None:
    failing = "".join(
        f"fail nvmlDeviceGet{kind}RunningProcesses {code}\n"
        for kind, code in (("Compute", 4), ("Graphics", 3), ("MPSCompute", 3))
    )
    said = asked(library, tmp_path, H100 + failing)
    assert said["read"] == {"device_used_bytes": 30000 * MIB, "device_total_bytes": 81920 * MIB}
    assert "does not list" in said["doubts"][0]


def test_each_instance_of_a_divided_gpu_is_a_device(library: Path, tmp_path: Path) -> None:
    state = (
        f"device {81920 * MIB} {30000 * MIB} 1 NVIDIA A100\n"
        f"instance 0 {10000 * MIB} {6000 * MIB}\ninstance 0 {20000 * MIB} {100 * MIB}\n"
        f"process 100 Compute 10 {5500 * MIB}\nprocess 101 Compute 88 {90 * MIB}\n"
    )
    said = asked(library, tmp_path, state)
    assert said["names"] == ["NVIDIA A100 #0 MIG 0", "NVIDIA A100 #0 MIG 1"]
    assert said["read"] == {
        "device_used_bytes": 6100 * MIB,
        "device_total_bytes": 30000 * MIB,
        "device_bytes": 5500 * MIB,
    }
    assert "divided (MIG): 2" in said["doubts"][0]


def test_a_driver_that_knows_the_older_lists_only(tmp_path: Path) -> None:
    folder = tmp_path / "old"
    folder.mkdir()
    old = compiled(folder, "-DOLD_DRIVER")
    assert asked(old, tmp_path, H100 + f"process 0 Compute 10 {7 * MIB}\n")["read"]["device_bytes"] == 7 * MIB


def test_a_program_without_a_name_is_called_by_its_id(library: Path, tmp_path: Path) -> None:
    said = asked(library, tmp_path, H100 + f"process 0 Compute 4000001 {MIB}\n")
    assert said["occupants"] == [["NVIDIA H100 #0", 4000001, "process 4000001", MIB]]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ("fail nvmlInitWithFlags 9\n", "kernel driver is not loaded"),
        ("fail nvmlInitWithFlags 4\n", "may not talk"),
        ("fail nvmlInitWithFlags 18\n", "different versions"),
        ("fail nvmlInitWithFlags 999\n", "NVIDIA's driver says"),
        (H100 + "fail nvmlDeviceGetCount_v2 15\n", "fallen off the bus"),
        ("", "lists no GPU"),
        (H100 + "fail nvmlDeviceGetMemoryInfo 3\n", "NVIDIA's driver says"),
    ],
)
def test_why_not(library: Path, tmp_path: Path, state: str, words: str) -> None:
    assert words in asked(library, tmp_path, state)["unavailable"]


def test_a_device_that_is_lost_in_between(library: Path, tmp_path: Path) -> None:
    said = asked(library, tmp_path, H100, then=H100 + "fail nvmlDeviceGetMemoryInfo 15\n")
    assert said["then"][0] == "ProbeLost"
    assert "fallen off the bus" in said["then"][1]


def test_without_a_driver_or_the_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "libnvidia-ml.so.1").touch()  # found before any real one, and no library
    said = asked(tmp_path, tmp_path, "")
    assert "no NVIDIA driver" in said["unavailable"]
    monkeypatch.setitem(sys.modules, "pynvml", None)
    reason = NvidiaProbe(lambda: ()).unavailable()
    assert reason is not None
    assert "pip install 'kvscope[nvidia]'" in reason
