"""A log that is read on: of its last start only, also where it is longer than what is read."""

from pathlib import Path

from kvscope.engine.llama_log import read_checkpoints, read_host_cache, read_report
from kvscope.experiment.watch_log import ServerLog

# Lines as llama.cpp b11549 writes them.
START = "0.00.005.485 I srv          init: build_info: b0-unknown\n"
LOAD = "0.00.019.214 I srv    load_model: loading model '/models/m.gguf'\n"
COPY = (
    "0.12.320.514 I srv        update:  - cache state: 1 prompts, 11.059 MiB (limits: 8192.000 MiB, 9 tokens, 9 est)\n"
    "0.12.320.516 I srv        update:    - prompt 0x7fa3a471c920:     503 tokens, checkpoints:  0,    11.059 MiB\n"
)
FILLER = "0.15.313.370 I slot launch_slot_: id  0 | task 2 | processing task, is_child = 0\n"


def context(tokens: int) -> str:
    return f"0.00.700.000 I llama_context: n_ctx         = {tokens}\n"


def n_ctx(log: ServerLog) -> object:
    seen = log.read()
    assert seen is not None
    return read_report(seen.load, version="").effective.get("n_ctx")


def test_an_earlier_start_in_the_same_file_does_not_count(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(START + LOAD + context(8192) + COPY + START + LOAD)
    log = ServerLog(path)
    seen = log.read()
    assert seen is not None
    assert n_ctx(log) is None
    assert read_host_cache(seen.kept) is None
    assert read_checkpoints(seen.kept) == ()


def test_it_is_read_on_and_a_start_meanwhile_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(START + LOAD + context(8192)[:-5])  # a line that is being written
    log = ServerLog(path)
    assert n_ctx(log) is None
    with path.open("a") as file:
        file.write(context(8192)[-5:] + COPY)
    assert n_ctx(log) == 8192
    seen = log.read()
    assert seen is not None
    kept = read_host_cache(seen.kept)
    assert kept is not None
    assert kept.printed_mib == "11.059"
    with path.open("a") as file:
        file.write(START + LOAD + context(4096))
    assert n_ctx(log) == 4096


def test_a_file_that_was_begun_anew_is_read_anew(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(START + LOAD + context(8192) + FILLER * 20)
    log = ServerLog(path)
    assert n_ctx(log) == 8192
    path.write_text(START + LOAD + context(512))
    assert n_ctx(log) == 512


def test_copies_are_gone_after_sleep_and_the_settings_are_not(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(START + LOAD + context(8192) + COPY + LOAD)
    log = ServerLog(path)
    seen = log.read()
    assert seen is not None
    assert n_ctx(log) == 8192
    assert read_host_cache(seen.kept) is None


def test_of_a_log_that_is_too_long_the_load_is_not_known(tmp_path: Path) -> None:
    path = tmp_path / "log"
    path.write_text(START + LOAD + context(8192) + FILLER * 1000)
    assert n_ctx(ServerLog(path)) == 8192
    seen = ServerLog(path, most_read_bytes=10_000).read()
    assert seen is not None
    assert seen.load == ""
    path.write_text(START + LOAD + context(8192) + FILLER * 1000 + START + LOAD + context(4096) + FILLER * 10)
    assert n_ctx(ServerLog(path, most_read_bytes=10_000)) == 4096


def test_a_log_that_is_not_there_is_none(tmp_path: Path) -> None:
    assert ServerLog(tmp_path / "gone").read() is None
    assert ServerLog(None).read() is None


def test_the_load_ends_with_the_first_request(tmp_path: Path) -> None:
    """A log of months is not searched at every look for what was said at the start."""
    path = tmp_path / "log"
    path.write_text(START + LOAD + context(8192) + FILLER * 1000 + COPY)
    seen = ServerLog(path).read()
    assert seen is not None
    assert seen.load == (START + LOAD + context(8192)).rstrip("\n")
    assert read_host_cache(seen.kept) is not None
