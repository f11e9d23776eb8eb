"""What has no name, held against limits: of each row at its worst moment, and between any two rows of one run."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.attribution import Attribution
from kvscope.analysis.identity import Between, RowIdentity, worst_between

# Of what grew in a calibrated row, and of the smaller growth of two: what the engine holds of its own is known there.
ROW_SHARE, PAIR_SHARE = 0.05, 0.02
# Of a row that was not calibrated, after its load alone: heap and arenas are named by their place, and what requests do
# to them is not told apart.
BY_PLACE_SHARE = 0.10


@dataclass(frozen=True, slots=True, kw_only=True)
class Worst:
    """A row at the moment at which the largest share of what grew has no name, by the limit of its kind."""

    key: str
    attribution: Attribution
    share: float
    is_calibrated: bool

    @property
    def limit_share(self) -> float:
        return ROW_SHARE if self.is_calibrated else BY_PLACE_SHARE

    @property
    def is_too_much(self) -> bool:
        return self.share > self.limit_share


def worst_row(rows: Sequence[RowIdentity], loaded: Mapping[str, Attribution]) -> Worst | None:
    """Of all rows and moments that which is furthest beyond its limit, or nearest to it. ``loaded``: the identity after
    the load of rows that may have no other."""
    found = [
        Worst(key=row.key, attribution=each.attribution, share=each.unexplained_share, is_calibrated=_calibrated(row))
        for row in rows
        for each in (row.moments if _calibrated(row) else (row.loaded,))
        if each is not None and each.unexplained_share is not None
    ]
    known = {each.key for each in found}
    found += [
        Worst(key=key, attribution=each, share=each.unexplained_share, is_calibrated=False)
        for key, each in loaded.items()
        if key not in known and each.maps_read and each.unexplained_share is not None
    ]
    return max(found, key=lambda each: each.share / each.limit_share, default=None)


def _calibrated(row: RowIdentity) -> bool:
    return row.calibration is not None


def worst_pair(rows: Sequence[RowIdentity]) -> Between | None:
    """The two calibrated rows of one run whose rests at the peak differ by the largest share; None where there are no
    two."""
    pairs = worst_between([row for row in rows if _calibrated(row)])
    known = [pair for pair in pairs if pair.unexplained_share is not None]
    return max(known, key=lambda pair: pair.unexplained_share or 0.0, default=None)
