"""The panel's statistics against comparisons whose truth is known; prints Markdown tables.

    python benchmarks/quality_statistics.py [--studies 1000] [--part coverage|calls|others|signs]

*coverage*: how often the 95 % intervals of a share and of a paired difference hold the truth, by documents, items per
document and how far these hang together. *calls*: how often a null is called a loss, and how often a loss of five
points is found with the number of items that the panel asked for after a first study of 60 items. *others*: the same
of levels that are asked other items (``input_length``), with the number that stands beside the share of a first study.
*signs*: prompts cut in silence, an ignored middle, and false alarms where there is neither.
"""

import argparse
import sys
from collections import Counter
from collections.abc import Callable, Iterator
from itertools import product
from pathlib import Path
from statistics import fmean

import numpy as np

sys.path.insert(0, str(Path(__file__).parent.parent / "tests" / "analysis"))

from answer_rows import answers
from simulated_answers import Truth, differences, rates, study, unpaired_rates

from kvscope.analysis.proportions import clustered_share, paired_counts
from kvscope.analysis.quality_cell import cell_of

SHARES = (0.3, 0.5, 0.8, 0.95)
DISCORDANCES = (0.05, 0.1, 0.2)
DOCUMENTS = ((10, 1), (30, 1), (200, 1), (5, 5), (10, 5), (20, 5), (60, 5), (4, 12), (10, 12))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--studies", type=int, default=1000)
    parser.add_argument("--part", choices=["coverage", "calls", "others", "signs"])
    asked = parser.parse_args()
    for name, part in (("coverage", coverage), ("calls", calls), ("others", others), ("signs", signs)):
        if asked.part in (None, name):
            for line in part(asked.studies):
                sys.stdout.write(line + "\n")
                sys.stdout.flush()
            sys.stdout.write("\n")


def coverage(studies: int) -> Iterator[str]:
    """A row for each number of documents and correlation; each the least over base shares and discordances."""
    yield "| documents × items | correlation | share, mean | share, least | difference, mean | difference, least |"
    yield "|---|--:|--:|--:|--:|--:|"
    for (documents, items), correlation in product(DOCUMENTS, (0.0, 0.1, 0.3)):
        if items == 1 and correlation:
            continue
        of_share, of_difference = [], []
        chance = np.random.default_rng(1)
        for share, (loss, discordance) in product(SHARES, ((0.0, 0.04), (0.05, 0.1), (0.1, 0.2))):
            truth = Truth(share=share, loss=loss, discordance=discordance, per_document=items, correlation=correlation)
            if truth.is_possible:
                held = [_held(chance, truth, documents) for _ in range(studies)]
                of_share.append(sum(first for first, _ in held) / studies)
                of_difference.append(sum(second for _, second in held) / studies)
        cells = [fmean(of_share), min(of_share), fmean(of_difference), min(of_difference)]
        yield f"| {documents} × {items} | {correlation:g} | " + " | ".join(f"{100 * c:.1f}" for c in cells) + " |"


def _held(chance: np.random.Generator, truth: Truth, documents: int) -> tuple[bool, bool]:
    baseline, changed = study(chance, truth, documents)
    difference = paired_counts(differences(baseline, changed)).difference()
    return clustered_share(baseline).contains(truth.share), difference.contains(-truth.loss)


def calls(studies: int) -> Iterator[str]:
    """A row for each base share, discordance, items per document and number of levels."""
    yield "| baseline | otherwise | items/document | levels | items asked (median) | null called | 5 points found |"
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    chance = np.random.default_rng(2)
    kinds = ((1, 0.0, 1), (1, 0.0, 3), (3, 0.1, 1), (5, 0.2, 1))
    for share, discordance, (items, correlation, levels) in product(SHARES, DISCORDANCES, kinds):
        truth = Truth(share=share, loss=0.05, discordance=discordance, per_document=items, correlation=correlation)
        if not truth.is_possible:
            continue
        found = rates(chance, truth, studies, first_documents=60 // items, num_levels=levels)
        yield (
            f"| {100 * share:.0f} % | {100 * discordance:.0f} % | {items} | {levels} | {found.items} "
            f"| {100 * found.false_calls / found.num:.1f} % | {100 * found.found / found.num:.1f} % |"
        )


def others(studies: int) -> Iterator[str]:
    """A row for each base share, items per document and size of the first study."""
    yield "| baseline | items/document | correlation | first documents | items asked (median) | null called | found |"
    yield "|--:|--:|--:|--:|--:|--:|--:|"
    chance = np.random.default_rng(7)
    kinds = ((1, 0.0), (3, 0.1), (5, 0.2), (6, 0.3))
    for share, (items, correlation), documents in product((0.3, 0.5, 0.6, 0.75, 0.9), kinds, (10, 20)):
        truth = Truth(share=share, loss=0.05, per_document=items, correlation=correlation)
        found = unpaired_rates(chance, truth, studies, first_documents=documents)
        yield (
            f"| {100 * share:.0f} % | {items} | {correlation:g} | {documents} | {found.items} "
            f"| {100 * found.false_calls / found.num:.1f} % | {100 * found.found / found.num:.1f} % |"
        )


def signs(studies: int) -> Iterator[str]:
    """A row for each kind of engine and size of study: what the panel said, of so many."""
    kinds: dict[str, float | Callable[[float], float]] = {
        "right 90 %, whole": 0.9,
        "right 40 %, whole": 0.4,
        "right 90 %, the last 30 % arrives": lambda depth: 0.9 if depth > 70 else 0.0,
        "right 90 %, the first 30 % arrives": lambda depth: 0.9 if depth < 30 else 0.0,
        "right 50 %, the last half arrives": lambda depth: 0.5 if depth > 50 else 0.0,
        "right 90 %, the first 40 % and the last 10 % arrive": lambda depth: 0.9 if not 40 < depth < 90 else 0.0,
        "right 90 %, middle third ignored": lambda depth: 0.9 if not 100 / 3 < depth < 200 / 3 else 0.0,
        "right 90 %, middle third 50 %": lambda depth: 0.9 if not 100 / 3 < depth < 200 / 3 else 0.5,
        "from 95 % at the head to 55 % at the tail": lambda depth: 0.95 - 0.4 * depth / 100,
    }
    yield "| engine | documents × items | nothing | head never arrives | tail never arrives | middle ignored | weaker |"
    yield "|---|---|--:|--:|--:|--:|--:|"
    slugs = (None, "head_never_arrives", "tail_never_arrives", "middle_ignored", "middle_weaker")
    for (name, right), (documents, items) in product(kinds.items(), ((20, 1), (40, 1), (10, 8))):
        said: Counter[str | None] = Counter()
        for seed in range(studies):
            sign = cell_of(answers(documents, items, right, seed=seed), 1).sign
            said[None if sign is None else sign.slug] += 1
        cells = " | ".join(f"{100 * said[slug] / studies:.1f} %" for slug in slugs)
        yield f"| {name} | {documents} × {items} | {cells} |"


if __name__ == "__main__":
    main()
