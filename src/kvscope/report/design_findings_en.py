"""What designs say of their rows, in English: sentences by slug, and how a size is written."""

from collections.abc import Mapping

DESIGN_FINDINGS: Mapping[str, str] = {
    "claim.evidence": "Rests on {total} trials (trial/attempt): {trials}.",
    "size.difference_s": "Difference {value:s}, 95 % interval {low:s} to {high:s}, {num} pairs.",
    "size.difference_bytes": "Difference {value:signed_mib}, 95 % interval {low:signed_mib} to {high:signed_mib}, "
    "{num} pairs.",
}
