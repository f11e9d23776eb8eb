"""Copies of prompts as the engine's log states them."""

import pytest
from study_rows import design_row, reported, trial_row

from kvscope.analysis.prompt_copies import copies_carry_checkpoints, host_cache_bytes, stated_copies
from kvscope.record.rows import TrialResult

TRIAL = trial_row(design_row(), 512)


@pytest.mark.parametrize(("printed", "least"), [("40.563", 42_532_864), ("0.000", 0)])
def test_the_log_is_read_as_not_more_than_it_says(printed: str, least: int) -> None:
    line = reported("host_cache", printed, "after_request", request_index=1)
    assert host_cache_bytes(TrialResult(trial=TRIAL, reported=(line,)), 1) == least


def test_what_the_log_never_said_is_unknown() -> None:
    assert host_cache_bytes(TrialResult(trial=TRIAL), 1) is None


def test_a_listed_copy_is_the_state_of_its_tokens_and_its_checkpoints() -> None:
    # llama.cpp b9860 with Gemma 3 270M, --input-tokens 256: five such copies of 271 tokens were mappings of
    # 15,015,936 B (three of them) and twice 5,005,312 B; their checkpoints lay in the heap.
    copy = "   - prompt 0x7f1221458210:     271 tokens, checkpoints:  2,     8.480 MiB"
    small = "   - prompt 0x7f1221456db0:      28 tokens, checkpoints:  2,     0.817 MiB"
    state = " - cache state: 6 prompts, 43.217 MiB (limits: 8192.000 MiB, 1024 tokens, 262156 est)"
    lines = [
        reported("checkpoint", "0.015", "after_request", request_index=1),
        reported("checkpoint", "3.695", "after_request", request_index=1),
        reported("host_cache", "43.217", "after_request", request_index=1, line="\n".join([state, small, *[copy] * 5])),
    ]
    result = TrialResult(trial=TRIAL, reported=tuple(lines))
    assert copies_carry_checkpoints(result)
    sizes = [buffer.num_bytes for buffer in stated_copies(result, 1)]
    whole, *states = sizes[:6]
    assert whole == int(0.8165 * 2**20)  # smaller than such checkpoints: those of another prompt, and not known
    assert all(0 <= 5_005_312 - size <= 16 * 1024 for size in states)
    assert 0 <= 15_015_936 - sum(states[:3]) <= 3 * 16 * 1024
    # In all what the log says, each copy by less than a thousandth of a MiB below.
    assert 0 <= 43.217 * 2**20 - sum(sizes) <= 6 * 1100
    # Without the sizes of its checkpoints a copy is one size.
    alone = TrialResult(trial=TRIAL, reported=tuple(lines[2:]))
    assert [buffer.num_bytes for buffer in stated_copies(alone, 1)] == [whole, *[int(8.4795 * 2**20)] * 5]
