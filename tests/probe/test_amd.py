"""AMD's memory from files as the kernel's documentation writes them (gpu/amdgpu/driver-misc.rst,
gpu/drm-usage-stats.rst). No AMD GPU was at hand."""

from pathlib import Path

import pytest

from kvscope.errors import ProbeUnavailable
from kvscope.probe.amd import AmdProbe
from kvscope.probe.base import DeviceOccupant
from kvscope.probe.devices import DevicesProbe, devices_here
from kvscope.units import GIB, KIB, MIB

CARD = "0000:03:00.0"


def fdinfo(client: int, vram_kib: int, *, driver: str = "amdgpu", key: str = "drm-memory-vram") -> str:
    """The example of drm-usage-stats.rst in amdgpu's form."""
    return (
        f"pos:\t0\nflags:\t02100002\nmnt_id:\t21\nino:\t485\ndrm-driver:\t{driver}\ndrm-client-id:\t{client}\n"
        f"drm-pdev:\t{CARD}\n{key}:\t{vram_kib} KiB\ndrm-memory-gtt:\t512 KiB\ndrm-engine-compute:\t1234 ns\n"
    )


@pytest.fixture
def machine(tmp_path: Path) -> Path:
    """One AMD card with an output, one card of another maker."""
    for number, (address, vendor) in enumerate([(CARD, "0x1002"), ("0000:00:02.0", "0x8086")]):
        device = tmp_path / "sys" / "devices" / address
        device.mkdir(parents=True)
        (device / "vendor").write_text(f"{vendor}\n")
        card = tmp_path / "sys" / "class" / "drm" / f"card{number}"
        card.mkdir(parents=True)
        (card / "device").symlink_to(device)
    (tmp_path / "sys" / "class" / "drm" / "card0-HDMI-A-1").mkdir()
    amd = tmp_path / "sys" / "devices" / CARD
    (amd / "mem_info_vram_total").write_text(f"{24 * GIB}\n")
    (amd / "mem_info_vram_used").write_text(f"{5 * GIB}\n")
    (tmp_path / "proc").mkdir()
    return tmp_path


def process(machine: Path, pid: int, *files: str, name: str = "llama-server") -> None:
    folder = machine / "proc" / str(pid)
    (folder / "fdinfo").mkdir(parents=True)
    (folder / "comm").write_text(name + "\n")
    (folder / "fdinfo" / "0").write_text("pos:\t0\nflags:\t02100002\n")  # a file like any other
    for number, text in enumerate(files, start=3):
        (folder / "fdinfo" / str(number)).write_text(text)


def probe(machine: Path, *pids: int) -> AmdProbe:
    return AmdProbe(lambda: pids, proc=machine / "proc", sys=machine / "sys")


def test_the_engines_share_and_the_whole_device(machine: Path) -> None:
    process(machine, 7, fdinfo(12, 3000 * KIB), fdinfo(13, 100 * KIB))
    process(machine, 8, fdinfo(14, 200 * KIB, key="drm-resident-vram"))
    assert probe(machine, 7, 8).unavailable() is None
    assert probe(machine, 7, 8).device_names() == ("AMD GPU card0",)
    assert probe(machine, 7, 8).read() == {
        "device_used_bytes": 5 * GIB,
        "device_total_bytes": 24 * GIB,
        "device_bytes": 3300 * MIB,
    }


def test_one_client_open_in_several_files_is_counted_once(machine: Path) -> None:
    process(machine, 7, fdinfo(12, 3000), fdinfo(12, 3000), fdinfo(12, 3000))
    assert probe(machine, 7).read()["device_bytes"] == 3000 * KIB


def test_another_makers_card_is_not_counted(machine: Path) -> None:
    process(machine, 7, fdinfo(12, 3000, driver="i915"))
    assert probe(machine, 7).read()["device_bytes"] == 0


def test_what_the_compute_driver_counts_and_the_files_do_not(machine: Path) -> None:
    process(machine, 7, fdinfo(12, 1000))
    kfd = machine / "sys" / "class" / "kfd" / "kfd" / "proc" / "7"
    kfd.mkdir(parents=True)
    (kfd / "vram_51234").write_text(f"{4 * MIB}\n")
    (kfd / "sdma_51234").write_text("99999999999\n")
    assert probe(machine, 7).read()["device_bytes"] == 4 * MIB  # the larger count, not both
    (kfd / "vram_51234").write_text("10\n")
    assert probe(machine, 7).read()["device_bytes"] == 1000 * KIB


def test_other_programs_are_named(machine: Path) -> None:
    process(machine, 7, fdinfo(12, 3000))
    process(machine, 20, fdinfo(15, 700 * KIB), name="gnome-shell")
    process(machine, 21, name="bash")
    assert probe(machine, 7).occupants((7,)) == (
        DeviceOccupant(device="AMD GPU card0", pid=20, name="gnome-shell", held_bytes=700 * MIB),
    )


def test_a_process_that_may_not_be_looked_at_is_not_zero(machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    process(machine, 7, fdinfo(12, 3000))
    iterdir = Path.iterdir

    def refuse(self: Path):  # type: ignore[no-untyped-def]  # as the method it stands for
        if self.name == "fdinfo":
            raise PermissionError(13, "Permission denied")
        return iterdir(self)

    monkeypatch.setattr(Path, "iterdir", refuse)
    one = probe(machine, 7)
    assert "device_bytes" not in one.read()
    assert "another user's" in one.doubts()[0]


def test_one_that_has_ended_holds_nothing(machine: Path) -> None:
    assert probe(machine, 7).read()["device_bytes"] == 0


def test_a_number_in_a_form_that_is_not_known_is_refused(machine: Path) -> None:
    process(machine, 7, fdinfo(12, 3000).replace("3000 KiB", "3000 GiB"))
    with pytest.raises(ProbeUnavailable, match="'3000 GiB'"):
        probe(machine, 7).read()


def test_without_an_amd_gpu_it_says_so(tmp_path: Path) -> None:
    assert "no AMD GPU" in str(probe(tmp_path).unavailable())


class TestAllDevices:
    def test_two_makers_are_one_reading(self, machine: Path) -> None:
        process(machine, 7, fdinfo(12, 1000))
        both = DevicesProbe([probe(machine, 7), probe(machine, 7)])
        assert both.read()["device_bytes"] == 2000 * KIB
        assert both.read()["device_total_bytes"] == 48 * GIB

    def test_what_one_does_not_know_the_sum_does_not_know(self, machine: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        process(machine, 7, fdinfo(12, 1000))
        silent = probe(machine, 7)
        monkeypatch.setattr(silent, "_held_by", lambda pid: None)
        both = DevicesProbe([probe(machine, 7), silent])
        assert set(both.read()) == {"device_used_bytes", "device_total_bytes"}
        assert len(both.doubts()) == 1

    def test_a_machine_without_devices(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("kvscope.probe.devices.NvidiaProbe.unavailable", lambda self: "no driver here")
        monkeypatch.setattr("kvscope.probe.devices.AmdProbe.unavailable", lambda self: "no card here")
        assert devices_here(lambda: (), nvidia_control=tmp_path / "none") == (None, None)
        (tmp_path / "nvidiactl").touch()
        assert devices_here(lambda: (), nvidia_control=tmp_path / "nvidiactl") == (None, "no driver here")
