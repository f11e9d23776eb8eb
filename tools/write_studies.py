"""Write docs/studies anew: a study file for every design, with its defaults of today. Run it after a default moved:

python tools/write_studies.py
"""

from pathlib import Path

from kvscope.experiment.asked import Asked
from kvscope.experiment.designs import DESIGNS
from kvscope.experiment.plan import plan
from kvscope.experiment.study_file import study_text

FOLDER = Path(__file__).parent.parent / "docs" / "studies"
# The grid has no factors of its own.
FACTORS = {"grid": {"n_ubatch": (128, 512), "prompt_tokens": (256, 1024)}}

if __name__ == "__main__":
    for name in DESIGNS:
        path = FOLDER / f"{name}.toml"
        path.write_text(study_text([plan(Asked(design=name, factors=FACTORS.get(name, {})))], path), encoding="utf-8")
