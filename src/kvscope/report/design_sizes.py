"""How the size of each finding of a design is written: the slug of the finding → the words of its interval."""

from collections.abc import Mapping

_SECONDS = "size.difference_s"
_BYTES = "size.difference_bytes"

DESIGN_SIZES: Mapping[str, str] = {}
