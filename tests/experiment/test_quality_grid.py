"""Tasks and lengths at once: a repeat asks the same questions again, so that there is one unless more are asked for."""

import pytest

from kvscope.experiment.design import Factor
from kvscope.experiment.designs import grid, input_length, kv_dtype, quality

TASKS = Factor(name="quality_task", levels=("needle", "keys"))
LENGTHS = Factor(name="prompt_tokens", levels=(256, 1024))


@pytest.mark.parametrize(("first", "second"), [(quality, None), (quality, input_length), (input_length, quality)])
def test_tasks_by_lengths_are_asked_once(first: object, second: object) -> None:
    kind = grid.kind_of(first.KIND, (TASKS, LENGTHS), second=None if second is None else second.KIND)  # type: ignore[attr-defined]
    assert kind.default_repeats == 1


def test_other_grids_repeat_as_before() -> None:
    factors = (Factor(name="cache_type_k", levels=("f16", "q8_0")), LENGTHS)
    assert grid.kind_of(kv_dtype.KIND, factors, second=input_length.KIND).default_repeats == 5
    assert grid.kind_of(grid.KIND, factors).default_repeats == 5
