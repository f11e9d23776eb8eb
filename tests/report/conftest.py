"""The report's tests use the same hand-made rows as the analysis's."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent.parent / "analysis"))
