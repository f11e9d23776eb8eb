"""What was planned and not run: a sitting that ended early, by its time or by hand, leaves trials and whole designs."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kvscope.analysis.levels import level_key

if TYPE_CHECKING:
    from kvscope.analysis.study import DesignStudy, Study


def repeats_run(design: DesignStudy) -> tuple[int, int]:
    """Trials that were run, failures included, of the level with the fewest and of that with the most."""
    run = dict.fromkeys(map(level_key, design.design.levels), 0)
    trials = {a.trial.trial_id: a for a in design.attempts if a.trial.role == "measured" and not a.is_unfinished}
    for attempt in trials.values():
        key = level_key(attempt.trial.level)
        run[key] = run.get(key, 0) + 1
    return min(run.values(), default=0), max(run.values(), default=0)


def trials_left(study: Study) -> tuple[int, int]:
    """(not run, planned) trials of all designs, without what warms up. A design that repeats until it is sure has no
    more planned than it had run."""
    left = planned = 0
    for design in study.designs:
        levels = {level_key(level) for level in design.design.levels}
        asked = len(levels) * design.design.repeats
        trials = {a.trial.trial_id for a in design.attempts if a.trial.role == "measured" and not a.is_unfinished}
        left += max(0, asked - len(trials))
        planned += max(asked, len(trials))
    return left, planned


def not_begun(study: Study) -> tuple[DesignStudy, ...]:
    """Designs of which no trial was begun."""
    return tuple(design for design in study.designs if not design.attempts)
