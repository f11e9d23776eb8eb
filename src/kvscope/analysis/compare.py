"""Predicted, engine-reported and measured, component by component, side by side and never merged."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from kvscope.analysis.attempts import has_engine_rules
from kvscope.analysis.attribute import Attribution, Resident
from kvscope.analysis.notes import note
from kvscope.record.rows import Json, ReportedBufferRow, TrialResult
from kvscope.units import MIB

# In the order in which they are shown. The engine's run time (its heap, stacks, libraries) is not among them: no file
# predicts it; it is a measured term of the attribution.
COMPONENTS = ("weights", "kv_cache", "recurrent_state", "compute_buffer", "output_buffer", "host_cache", "checkpoint")


@dataclass(frozen=True, slots=True, kw_only=True)
class Component:
    """Four numbers for one component: needed and allocated (predicted), engine-reported (the log's own digits, one per
    buffer), resident (observed). ``agrees``: every printed number, and the kind of its buffer, equals the prediction
    written with as many digits; None where there is nothing to compare. ``predicted_kinds`` and ``reported_kinds`` name
    the buffers as each side does (CPU_Mapped, full …)."""

    slug: str
    needed_bytes: int | None
    allocated_bytes: int | None
    reported_mib: tuple[str, ...]
    agrees: bool | None
    resident: Resident
    because: str | None = None
    predicted_kinds: tuple[str, ...] = ()
    reported_kinds: tuple[str, ...] = ()

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


def buffers_agree(predicted: Sequence[tuple[str, int]], reported: Sequence[tuple[str, str]]) -> bool | None:
    """Whether the predicted buffers (kind, bytes) are those reported (kind, printed MiB), in whatever order: of one
    kind, and of a size that reads as printed. A buffer whose kind is empty on either side is compared by its size
    alone. None if either side has no buffer."""
    if not predicted or not reported:
        return None
    left = sorted(reported, key=lambda r: not r[0])  # named ones first, so that an unnamed one is not spent on them
    for kind, size in sorted(predicted, key=lambda p: not p[0]):
        found = next((r for r in left if prints_as(size, r[1]) and (r[0] == kind or not r[0] or not kind)), None)
        if found is None:
            return False
        left.remove(found)
    return not left


def compare_components(
    result: TrialResult, prediction: Mapping[str, Json] | None, attribution: Attribution | None
) -> tuple[Component, ...]:
    """The components that the prediction, the engine or the measurement knows of, in a fixed order."""
    rows = []
    rules = has_engine_rules(prediction)
    for slug in COMPONENTS:
        items = _items(prediction, slug)
        buffers = [
            (str(b.get("kind") or ""), int(b["bytes"]))
            for b in (prediction or {}).get("buffers") or ()
            if b["name"] == slug and b.get("bytes") is not None
        ]
        lines = _reported(result, slug, attribution)
        resident = _resident(slug, attribution)
        if not lines and resident is None and not _total(items, "allocated_bytes"):
            continue
        rows.append(
            Component(
                slug=slug,
                needed_bytes=_total(items, "needed_bytes"),
                # What an engine reserves is known by its rules only; the weights are as large as the file says.
                allocated_bytes=_total(items, "allocated_bytes") if rules or slug == "weights" else None,
                reported_mib=tuple(r.printed_mib for r in lines),
                # The host cache fills as conversations come: its prediction is of the moment after load.
                agrees=None
                if slug == "host_cache"
                else buffers_agree(buffers, [(r.name, r.printed_mib) for r in lines]),
                resident=resident or Resident(num_bytes=None, how="unknown", note=note("not_looked_for")),
                because=items[0].get("because") if items else None,
                predicted_kinds=tuple(kind for kind, _ in buffers),
                reported_kinds=tuple(r.name for r in lines),
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
    if slug not in ("host_cache", "checkpoint"):
        return [r for r in rows if r.phase == "loaded"]
    if attribution is None or attribution.phase == "loaded":
        return []
    at = [r for r in rows if r.request_index == attribution.request_index]
    return at[-1:] if slug == "host_cache" else at


def _resident(slug: str, attribution: Attribution | None) -> Resident | None:
    return None if attribution is None else attribution.residents.get(slug)
