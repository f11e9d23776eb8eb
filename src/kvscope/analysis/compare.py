"""Predicted, engine-reported and measured, component by component, side by side and never merged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.attribute import Attribution, Resident
from kvscope.analysis.notes import note
from kvscope.record.rows import Json, ReportedBufferRow, TrialResult

MIB = 1024**2

# In the order in which they are shown. The engine's run time (its heap, stacks, libraries) is not among them: no file
# predicts it; it is a measured term of the attribution.
COMPONENTS = ("weights", "kv_cache", "recurrent_state", "compute_buffer", "output_buffer", "host_cache")


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Four numbers for one component: needed and allocated (predicted), engine-reported (the log's own digits, one per
    buffer), resident (observed). ``agrees``: every printed number equals the prediction written with as many digits;
    None where there is nothing to compare."""

    slug: str
    needed_bytes: int | None
    allocated_bytes: int | None
    reported_mib: tuple[str, ...]
    agrees: bool | None
    resident: Resident
    because: str | None = None

    @property
    def reported_total_mib(self) -> str | None:
        """Sum of the printed numbers with their own digits."""
        if not self.reported_mib:
            return None
        digits = max(len(text.partition(".")[2]) for text in self.reported_mib)
        return f"{sum(float(text) for text in self.reported_mib):,.{digits}f}"


def prints_as(num_bytes: int, printed_mib: str) -> bool:
    """Whether ``num_bytes``, written in MiB with as many decimals as ``printed_mib`` has, reads the same."""
    digits = len(printed_mib.partition(".")[2])
    return f"{num_bytes / MIB:.{digits}f}" == printed_mib


def buffers_agree(sizes: Sequence[int], printed: Sequence[str]) -> bool | None:
    """Whether buffers of these sizes read as printed, in whatever order; None if either side names none."""
    if not sizes or not printed:
        return None
    if len(sizes) != len(printed):
        return False
    return all(prints_as(size, text) for size, text in zip(sorted(sizes), sorted(printed, key=float), strict=True))


def compare_components(
    result: TrialResult, prediction: Mapping[str, Json] | None, attribution: Attribution | None
) -> tuple[Component, ...]:
    """The components that the prediction, the engine or the measurement knows of, in a fixed order."""
    rows = []
    for slug in COMPONENTS:
        items = _items(prediction, slug)
        sizes = [int(b["bytes"]) for b in (prediction or {}).get("buffers") or () if b["name"] == slug]
        printed = tuple(r.printed_mib for r in _reported(result, slug, attribution))
        resident = _resident(slug, attribution)
        if not printed and resident is None and not _total(items, "allocated_bytes"):
            continue
        rows.append(
            Component(
                slug=slug,
                needed_bytes=_total(items, "needed_bytes"),
                allocated_bytes=_total(items, "allocated_bytes"),
                reported_mib=printed,
                # The host cache fills as conversations come: its prediction is of the moment after load.
                agrees=None if slug == "host_cache" else buffers_agree(sizes, printed),
                resident=resident or Resident(num_bytes=None, how="unknown", note=note("not_looked_for")),
                because=items[0].get("because") if items else None,
            )
        )
    return tuple(rows)


def _items(prediction: Mapping[str, Json] | None, slug: str) -> list[Mapping[str, Json]]:
    return [i for i in (prediction or {}).get("items") or () if i["component"] == slug]


def _total(items: Sequence[Mapping[str, Json]], field: str) -> int | None:
    """Sum of a field over items; None if there are none, or if any of them is unknown."""
    values = [item.get(field) for item in items]
    if not values or any(value is None for value in values):
        return None
    return sum(int(value) for value in values if value is not None)


def _reported(result: TrialResult, slug: str, attribution: Attribution | None) -> list[ReportedBufferRow]:
    rows = [r for r in result.reported if r.component == slug]
    if slug != "host_cache":
        return [r for r in rows if r.phase == "loaded"]
    if attribution is None or attribution.phase == "loaded":
        return []
    at = [r for r in rows if r.request_index == attribution.request_index]
    return at[-1:]


def _resident(slug: str, attribution: Attribution | None) -> Resident | None:
    return None if attribution is None else attribution.residents.get(slug)
