"""How long what is left of a design will take, judging by the trials of the same levels so far.

Longer levels take longer, so each level is judged by its own trials. A level that none was timed of yet is judged by
the line through those that were, where levels are numbers, and else by their mean; trials that do more than others
(``SCORES``) by each other, as far as there are some. A trial that was refused or failed
tells of its own level alone, and only until one of it was measured: it ended before its time.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from statistics import fmean, linear_regression

from kvscope.record.rows import MEASURED_OUTCOMES, Json

# Named among a trial's levels where it scores texts as well, which other trials of its level do not.
SCORES = "scores"


@dataclass(slots=True)
class TimeLeft:
    """Seconds of trials by level; ``note`` what is known, then ask."""

    _seconds: dict[str, list[float]] = field(default_factory=dict)
    _failed: dict[str, list[float]] = field(default_factory=dict)

    def note(self, levels: Mapping[str, Json], seconds: float | None, outcome: str | None) -> None:
        """One trial that ended; one that was interrupted says nothing of how long a whole one takes."""
        if seconds is not None and outcome not in (None, "interrupted"):
            times = self._seconds if outcome in MEASURED_OUTCOMES else self._failed
            times.setdefault(_key(levels), []).append(seconds)

    def of(self, levels: Mapping[str, Json]) -> float | None:
        """Seconds that a trial at these levels is expected to take; None where no trial was timed."""
        key = _key(levels)
        own = self._seconds.get(key) or self._failed.get(key)
        if own:
            return fmean(own)
        times = self._seconds or self._failed
        return _by_others(levels, times) if times else None

    def of_all(self, trials: Iterable[Mapping[str, Json]]) -> float | None:
        """Seconds for all of them, one after another; 0 for none, None where no trial was timed."""
        return sum(self._each(trials)) if self._seconds or self._failed else None

    def _each(self, trials: Iterable[Mapping[str, Json]]) -> Iterable[float]:
        known: dict[str, float] = {}
        for levels in trials:
            key = _key(levels)
            if key not in known:
                known[key] = self.of(levels) or 0.0
            yield known[key]


def _by_others(levels: Mapping[str, Json], times: Mapping[str, list[float]]) -> float:
    alike = {key: seconds for key, seconds in times.items() if set(json.loads(key)) == set(levels)}
    means = {key: fmean(seconds) for key, seconds in (alike or times).items()}
    level = _number(levels)
    timed = [(value, mean) for key, mean in means.items() if (value := _number(json.loads(key))) is not None]
    if level is not None and len(timed) > 1:
        line = linear_regression(*zip(*timed, strict=True))
        return max(line.intercept + line.slope * level, min(means.values()))
    return fmean(means.values())


def _key(levels: Mapping[str, Json]) -> str:
    return json.dumps(dict(levels), sort_keys=True, default=str)


def _number(levels: Mapping[str, Json]) -> float | None:
    """The one level, where it is a number."""
    values = list(levels.values())
    if len(values) != 1 or isinstance(values[0], bool) or not isinstance(values[0], int | float):
        return None
    return float(values[0])
