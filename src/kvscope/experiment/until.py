"""Until when a design is repeated."""

import math
from dataclasses import dataclass

from kvscope.errors import BadDesign


@dataclass(frozen=True, slots=True, kw_only=True)
class Until:
    """Repeat until the 95 % interval of the effect on ``metric`` (a column of the record) is no wider than ``share`` of
    the baseline's mean on either side, at every level; at most ``most_repeats`` times."""

    share: float
    metric: str = "ttft_s"
    most_repeats: int = 50

    def __post_init__(self) -> None:
        if not 0 < self.share < math.inf:
            raise BadDesign(f"{self.share:g} is no width to repeat until.", hint="Use a share above 0, like 5%.")
        if self.most_repeats < 1:
            raise BadDesign("A design needs at least one repeat.", hint="Use --most-repeats 1 or more.")
