"""Attempts whose positions were scored, built by hand or from whole distributions."""

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kvscope.record.rows import AnswerRow, ScoredTokenRow, TrialResult, TrialRow

Logits = NDArray[np.float64]


def log_softmax(logits: Logits) -> Logits:
    shifted = logits - logits.max()
    return np.asarray(shifted - np.log(np.exp(shifted).sum()))


def position(logits: Logits, token: int, *, num_top: int, **changes: Any) -> ScoredTokenRow:
    """What a record keeps of one distribution."""
    logprobs = log_softmax(logits)
    top = np.argsort(-logprobs, kind="stable")[:num_top]
    values: dict[str, Any] = {"answer_index": 0, "position": 0, "pattern": "one by one"}
    return ScoredTokenRow(
        token=token,
        logprob=float(logprobs[token]),
        top_tokens=tuple(int(each) for each in top),
        top_logprobs=tuple(float(logprobs[each]) for each in top),
        **{**values, **changes},
    )


def attempt(
    items: Mapping[tuple[str, str], Sequence[tuple[Logits, int]]],
    *,
    trial_id: str = "t",
    build: str = "b1",
    pattern: str = "one by one",
    num_top: int = 50,
) -> TrialResult:
    """``items``: (document, item) → its positions, each a distribution and the text's own token."""
    answers, tokens = [], []
    for index, ((document, item), positions) in enumerate(items.items()):
        answers.append(
            AnswerRow(
                index=index,
                task="fidelity",
                item=item,
                document=document,
                language="en",
                reading="scored",
                score=None,
            )
        )
        tokens += [
            position(logits, token, num_top=num_top, answer_index=index, position=place, pattern=pattern)
            for place, (logits, token) in enumerate(positions)
        ]
    trial = TrialRow(
        trial_id=trial_id,
        attempt=1,
        design_id="d",
        run_id="r",
        role="measured",
        levels={},
        level=None,
        repeat=0,
        block=0,
        position=0,
        started_at="2026-01-01T00:00:00+00:00",
        settings={},
        outcome="ok",
    )
    return TrialResult(
        trial=trial,
        answers=tuple(answers),
        scored_tokens=tuple(tokens),
        effective={"engine_version": "1", "engine_build": build},
    )
