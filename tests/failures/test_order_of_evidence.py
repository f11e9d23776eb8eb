"""What decides a failure's class where several things speak of it: the engine's message, then the kernel's count, then
the prediction against free memory, and last the exit. Numbered cases are public reports."""

import pytest

from kvscope.analysis.explain import explain
from kvscope.engine.failure import Death, death_error, ignored_estimate, unexplained_start
from kvscope.errors import (
    EngineDied,
    EngineError,
    EngineStalled,
    EngineTimeout,
    InvalidSettings,
    MemorySuspected,
    OutOfMemory,
)
from kvscope.experiment.ending import Outlook, ending_of

GIB = 1024**3
MIB = 1024**2
SHORT = Outlook(predicted_bytes=20 * GIB, available_bytes=16 * GIB)
FITS = Outlook(predicted_bytes=2 * GIB, available_bytes=16 * GIB)
SIGKILL, SIGSEGV, SIGABRT = -9, -11, -6


def death(
    status: int | None,
    log: str = "",
    *,
    group: tuple[int, int] | None = None,
    machine: tuple[int, int] | None = None,
    is_alone: bool = False,
    is_group_sure: bool = False,
    memory_limits: tuple[str, ...] = (),
) -> EngineError:
    return death_error(
        Death(
            name="engine", doing="answering", status=status, log=log, group_kills=group, machine_kills=machine,
            is_alone=is_alone, is_group_sure=is_group_sure, memory_limits=memory_limits, pid=4242,
        )
    )  # fmt: skip


@pytest.mark.parametrize(
    ("error", "outlook", "kind", "outcome", "known_by"),
    [
        # A message decides, whatever the signal and the prediction.
        (death(SIGABRT, "ggml: failed to allocate buffer of size 17179869216"), FITS, "out-of-memory",
         "out_of_memory", "message"),
        (death(1, "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB"), FITS, "out-of-memory",
         "out_of_memory", "message"),
        # M11, ggml-org/llama.cpp#28524: exit -11, and the cause is a setting.
        (death(SIGSEGV, "llama_init_from_model: V cache quantization requires flash_attn"), SHORT, "invalid-settings",
         "invalid_settings", "message"),
        # M12, ollama/ollama#10555: it has the word memory in it.
        (death(2, "CUDA error: an illegal memory access was encountered"), SHORT, "engine-died", "engine_died",
         "message"),
        (death(SIGABRT, "CUDA error: an illegal memory access was encountered"), SHORT, "engine-died", "engine_died",
         "message"),
        # The kernel's count, certain only in a group that is the engine's alone.
        (death(SIGKILL, group=(0, 1), machine=(4, 5), is_alone=True), FITS, "out-of-memory", "out_of_memory",
         "counters"),
        (death(137, group=(2, 3), is_alone=True), FITS, "out-of-memory", "out_of_memory", "counters"),
        # Another process of its group, or of the machine, may have been the one.
        (death(SIGKILL, group=(0, 1), machine=(4, 5)), FITS, "memory-suspected", "out_of_memory", "counters"),
        (death(SIGKILL, group=(0, 1), machine=(4, 5)), SHORT, "memory-suspected", "out_of_memory", "counters"),
        (death(137, group=(2, 3)), FITS, "memory-suspected", "out_of_memory", "counters"),
        (death(SIGKILL, machine=(4, 5)), FITS, "memory-suspected", "out_of_memory", "counters"),
        # Put into another group after it was last looked at, its kill is counted there: only the machine's is seen.
        (death(SIGKILL, group=(0, 0), machine=(39, 40), is_alone=True), FITS, "memory-suspected", "out_of_memory",
         "counters"),
        (death(SIGKILL, group=(0, 0), machine=(4, 5), is_group_sure=True), FITS, "engine-died", "engine_died", "exit"),
        (death(-15, group=(0, 1), machine=(4, 5)), FITS, "engine-died", "engine_died", "exit"),
        # Nothing was killed for want of memory anywhere: somebody sent the signal, whatever was predicted.
        (death(SIGKILL, group=(0, 0), machine=(47, 47)), SHORT, "engine-died", "engine_died", "exit"),
        (death(137, machine=(47, 47)), SHORT, "engine-died", "engine_died", "exit"),
        (death(SIGSEGV, group=(0, 0), machine=(47, 47)), SHORT, "memory-suspected", "out_of_memory", "prediction"),
        # A process that the engine started was killed, and the engine gave up: certain only in a group of its own.
        (death(1, group=(0, 1), is_alone=True), FITS, "out-of-memory", "out_of_memory", "counters"),
        (death(1, group=(0, 1)), FITS, "engine-died", "engine_died", "exit"),
        # M10, envoyproxy/ai-gateway#2400: a signal alone proves nothing; with the prediction it is suspected.
        (death(SIGSEGV), SHORT, "memory-suspected", "out_of_memory", "prediction"),
        (death(SIGKILL, group=(0, 0)), SHORT, "memory-suspected", "out_of_memory", "prediction"),
        (death(139), SHORT, "memory-suspected", "out_of_memory", "prediction"),
        (death(SIGSEGV), FITS, "engine-died", "engine_died", "exit"),
        (death(SIGSEGV), Outlook(), "engine-died", "engine_died", "exit"),
        (death(SIGSEGV), Outlook(predicted_bytes=20 * GIB), "engine-died", "engine_died", "exit"),
        # Nothing that a lack of memory does.
        (death(0), SHORT, "engine-died", "engine_died", "exit"),
        (death(-15), SHORT, "engine-died", "engine_died", "exit"),
        # M15, vllm-project/vllm#2163: it hangs, without a word. That is no lack of memory.
        (EngineTimeout("Nothing within 600 s."), SHORT, "timed-out", "timed_out", None),
        (EngineStalled("Nothing for 120 s."), SHORT, "stalled", "stalled", None),
    ],
)  # fmt: skip
def test_the_first_that_speaks_decides(
    error: EngineError, outlook: Outlook, kind: str, outcome: str, known_by: str | None
) -> None:
    ending = ending_of(error, None, outlook)
    assert (ending.slug, ending.outcome, ending.evidence.get("known_by")) == (kind, outcome, known_by)
    # The prediction is kept whatever decided.
    for name in ("predicted_bytes", "available_bytes"):
        assert ending.evidence.get(name) == getattr(outlook, name)


def test_the_facts_of_an_end_are_kept() -> None:
    error = death(SIGKILL, "loading\nfailed to allocate buffer of size 4096\nbye", group=(0, 0), machine=(7, 8))
    assert error.evidence == {
        "known_by": "message",
        "signal": "SIGKILL",
        "log_line": "failed to allocate buffer of size 4096",
        "counters": {"group.oom_kill": [0, 0], "machine.oom_kill": [7, 8]},
    }
    assert death(3).evidence == {"known_by": "exit", "exit_code": 3, "counters": {}}
    assert death(None).evidence == {"known_by": "exit", "counters": {}}


def test_a_fault_that_was_got_over_is_not_why_the_kernel_killed_it() -> None:
    log = "CUDA error: an illegal memory access was encountered"
    assert type(death(SIGKILL, log, group=(0, 1), is_alone=True)) is OutOfMemory
    assert type(death(SIGKILL, log, group=(0, 1))) is MemorySuspected


# llama.cpp under ulimit -v of 200 MiB, or -d of 40 to 80 MiB.
NO_THREAD = (
    "terminate called after throwing an instance of 'std::system_error'\n  what():  Resource temporarily unavailable"
)


def test_no_thread_under_a_limit_on_memory_is_suspicious() -> None:
    found = death(SIGABRT, NO_THREAD, machine=(30, 30), memory_limits=("address space 200 MiB",))
    assert type(found) is MemorySuspected
    assert "address space 200 MiB" in found.message
    assert found.evidence["known_by"] == "message"
    assert "Resource temporarily unavailable" in found.evidence["log_line"]
    # Without one, it is as likely the number of processes.
    assert type(death(SIGABRT, NO_THREAD, machine=(30, 30))) is EngineDied


def test_a_start_that_failed_without_a_word_in_the_log() -> None:
    # What llama.cpp's exception said under ulimit -v of 60 MiB, and -d of 20 MiB.
    said = "Resource temporarily unavailable"
    found = unexplained_start("llama.cpp", said, ("address space 60 MiB",))
    assert (found.slug, found.evidence) == ("memory-suspected", {"known_by": "message", "body": said})
    assert unexplained_start("llama.cpp", said, ()).slug == "engine-start-failed"
    assert unexplained_start("llama.cpp", "std::bad_alloc", ()).slug == "out-of-memory"
    assert unexplained_start("llama.cpp", said, ()).evidence["body"] == said


@pytest.mark.parametrize(
    "log",
    [
        "0.00.412.101 W warning: failed to mlock 96567296-byte buffer: Cannot allocate memory",
        "0.31.100.000 E srv         alloc: failed to allocate memory for prompt cache state: std::bad_alloc",
        "Out of memory: Killed process 4243 (firefox) total-vm:30000000kB",
        "note: to avoid 'CUDA out of memory' use -ngl 0",
    ],
)
def test_what_is_not_its_own_failure_does_not_explain_its_end(log: str) -> None:
    assert type(death(SIGKILL, log, group=(0, 0), machine=(30, 30))) is EngineDied
    assert type(death(1, log)) is EngineDied


def test_pages_of_the_file_need_no_room() -> None:
    # llama.cpp, SmolLM2 in a group of 110 MiB: 119 MiB were predicted, 92 of them mapped weights.
    fits = Outlook(predicted_bytes=119 * MIB, available_bytes=110 * MIB, mapped_bytes=92 * MIB)
    assert ending_of(death(SIGSEGV), None, fits).slug == "engine-died"
    short = Outlook(predicted_bytes=119 * MIB, available_bytes=20 * MIB, mapped_bytes=92 * MIB)
    found = ending_of(death(SIGSEGV), None, short)
    assert found.slug == "memory-suspected"
    assert (
        "27 MiB were predicted to be needed beside 92 MiB of the model's file and 20 MiB were available, 7 MiB too"
        in (str(found.message))
    )


def test_what_happened_long_before_the_end_is_not_why() -> None:
    earlier = "failed to allocate buffer of size 4096\n" + "slot released\n" * 100
    assert type(death(SIGSEGV, earlier)) is EngineDied
    # A full context is refused and got over; it ends no process.
    assert type(death(SIGSEGV, "Context size has been exceeded.")) is EngineDied


def test_a_suspicion_says_that_it_is_one() -> None:
    # M10: 28 layers × 8 × (128 + 128) × 2 B × 131,072 = 15,032,385,536 B of cache; with 3 GiB of weights on a host of
    # 16 GiB it is 1,024 MiB too much.
    cache = 28 * 8 * (128 + 128) * 2 * 131_072
    assert cache == 15_032_385_536 == 14 * GIB
    outlook = Outlook(predicted_bytes=cache + 3 * GIB, available_bytes=16 * GIB)
    ending = ending_of(death(SIGSEGV), None, outlook)
    assert ending.slug == MemorySuspected.slug
    assert "killed by signal 11 (SIGSEGV)" in str(ending.message)
    assert "17,408 MiB were predicted to be needed and 16,384 MiB were available, 1,024 MiB too few" in str(
        ending.message
    )
    assert "does not prove" in str(ending.message)


# P73, ggml-org/llama.cpp#27872, with the wording of common/fit.cpp.
FIT_LOG = """\
llama_params_fit_impl: projected to use 24840 MiB of device memory vs. 22341 MiB of free device memory
llama_params_fit_impl: cannot meet free memory target of 1024 MiB, need to reduce device memory by 3523 MiB
llama_params_fit: failed to fit params to free device memory: model_params::tensor_buft_overrides already set, abort
ggml_backend_cuda_buffer_type_alloc_buffer: allocating 20480.00 MiB on device 0: cudaMalloc failed: out of memory
"""


def test_p73_predicted_and_ignored() -> None:
    error = death(1, FIT_LOG)
    assert type(error) is OutOfMemory
    # 24,840 - 22,341 + 1,024
    assert "Predicted and ignored" in error.message
    assert "3523 MiB short" in error.message
    matches = {match.kind: match.numbers for match in explain(FIT_LOG).matches}
    assert matches["predicted_oom_ignored"]["deficit_mib"] == 3523


def test_an_estimate_that_fits_is_not_ignored() -> None:
    assert ignored_estimate(FIT_LOG.replace("24840", "20000")) == ""
    assert ignored_estimate("") == ""


def test_our_own_prediction_ignored_is_said_too() -> None:
    outlook = Outlook(predicted_bytes=24_840 * MIB, available_bytes=(22_341 - 1_024) * MIB)
    ending = ending_of(death(1, "failed to allocate buffer of size 4096"), None, outlook)
    assert ending.outcome == "out_of_memory"
    assert "Predicted and ignored: 24,840 MiB" in str(ending.message)
    assert "3,523 MiB too few" in str(ending.message)


def test_a_refused_setting_stays_one_where_memory_was_short_too() -> None:
    ending = ending_of(InvalidSettings("n_seq_max must be <= 256"), None, SHORT)
    assert (ending.outcome, ending.slug) == ("invalid_settings", "invalid-settings")
    assert "Predicted" not in str(ending.message)


def test_a_bug_is_recorded_with_where_it_is() -> None:
    try:
        raise ZeroDivisionError("at this line")
    except ZeroDivisionError as error:
        ending = ending_of(error, "log", SHORT)
    assert (ending.outcome, ending.slug) == ("internal", "internal")
    assert "test_order_of_evidence.py" in str(ending.traceback)
    assert ending.evidence == {}
