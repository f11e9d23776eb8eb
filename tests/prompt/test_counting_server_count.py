"""What a difference between our count and a server's means: public reports' cases, and faults put in at random."""

import random
from collections.abc import Callable, Sequence

import pytest

from kvscope.prompt.counting.server_count import (
    ABSENT,
    CACHED_LEFT_OUT,
    CONSTANT,
    CUT_TO_LIMIT,
    CUTS,
    DOUBLED_BOS,
    EQUAL,
    FEWER,
    GROWING,
    HALF_WINDOW,
    STUCK,
    UNEXPLAINED,
    CountFinding,
    CountSample,
    compare_counts,
    leading_bos,
)


def counts(pairs: Sequence[tuple[int | None, int | None]], **more: int | None) -> list[CountSample]:
    return [CountSample(ours=ours, server=server, **more) for ours, server in pairs]


def slugs(findings: Sequence[CountFinding]) -> list[str]:
    return [finding.slug for finding in findings]


class TestReports:
    def test_a_second_bos(self) -> None:
        # A public report: the same chat is [2, 2, 105 ...] offline and [2, 105 ...] on the server; 2 is the BOS.
        assert leading_bos([2, 2, 105], 2) == 2
        assert leading_bos([2, 105], 2) == 1
        assert leading_bos([105], 2) == 0
        assert leading_bos([2, 105], None) is None
        served_twice = counts([(2, 3)], leading_bos=1)
        (finding,) = compare_counts(served_twice)
        assert (finding.slug, finding.difference_tokens, finding.evidence) == (DOUBLED_BOS, 1, ((2, 3),))
        ours_twice = counts([(3, 2)], leading_bos=2)
        (finding,) = compare_counts(ours_twice)
        assert (finding.slug, finding.difference_tokens, finding.is_cut) == (DOUBLED_BOS, -1, False)
        assert "ours" in finding.claim

    def test_one_more_token_where_we_send_no_bos_is_not_called_a_second_one(self) -> None:
        (finding,) = compare_counts(counts([(10, 11), (50, 51)], leading_bos=0))
        assert finding.slug == CONSTANT

    def test_half_the_window_and_two(self) -> None:
        # Ollama with num_ctx 2048 and num_keep 4: 4 + (2048 - 4) / 2 = 1026, whatever was sent.
        findings = compare_counts(counts([(30, 30), (2500, 1026), (9000, 1026)], limit_tokens=2048))
        assert slugs(findings) == [HALF_WINDOW, EQUAL]
        assert findings[0].requests == (1, 2)
        assert "1,026 of 9,000" in findings[0].claim
        assert "2,048" in findings[0].claim
        # The same without knowing the window: stuck.
        assert slugs(compare_counts(counts([(30, 30), (2500, 1026), (9000, 1026)]))) == [STUCK, EQUAL]
        # And one alone.
        assert slugs(compare_counts(counts([(9000, 1026)]))) == [FEWER]

    def test_blocks_that_a_context_shift_takes_out(self) -> None:
        # llama.cpp with n_ctx 1000 and n_keep 0: blocks of 500 while more than that is over: 1300 - 500, 2100 - 1500.
        findings = compare_counts(counts([(30, 30), (1300, 800), (2100, 600)], limit_tokens=1000))
        assert slugs(findings) == [HALF_WINDOW, EQUAL]
        assert "blocks of 500" in findings[0].claim

    def test_the_window_less_the_output(self) -> None:
        samples = counts([(30, 30), (2030, 2016), (2040, 2016)], limit_tokens=2048, output_limit_tokens=32)
        assert slugs(compare_counts(samples)) == [CUT_TO_LIMIT, EQUAL]

    def test_what_was_read_anew_is_no_cut(self) -> None:
        # 120 newly read, 3,880 reused: 4,000 were sent and 4,000 were seen.
        (finding,) = compare_counts([CountSample(ours=4000, server=120, cached=3880)])
        assert finding.slug == CACHED_LEFT_OUT
        assert not finding.is_cut
        # Where the reused are not stated, it may be that or a cut: never a success.
        (finding,) = compare_counts([CountSample(ours=4000, server=120)])
        assert finding.is_cut
        assert any("reused" in other for other in finding.also_possible)

    def test_a_count_that_is_absent_is_unknown_and_not_zero(self) -> None:
        (finding,) = compare_counts(counts([(770, None)]))
        assert (finding.slug, finding.is_cut, finding.evidence) == (ABSENT, False, ((770, None),))
        assert finding.difference_tokens is None
        findings = compare_counts(counts([(770, 770), (900, None), (None, 5)]))
        assert slugs(findings) == [EQUAL, ABSENT]
        assert findings[1].requests == (1, 2)
        # A server that states 0 has not counted what was sent.
        assert compare_counts(counts([(770, 0)]))[0].is_cut

    def test_a_default_system_prompt(self) -> None:
        (finding,) = compare_counts(counts([(12, 33), (512, 533), (4096, 4117)]))
        assert (finding.slug, finding.difference_tokens) == (CONSTANT, 21)
        assert any("system prompt" in other for other in finding.also_possible)

    def test_another_tokenizer(self) -> None:
        (finding,) = compare_counts(counts([(100, 131), (1000, 1290), (4000, 5210)]))
        assert finding.slug == GROWING
        (finding,) = compare_counts(counts([(100, 82), (1000, 790), (4000, 3180)]))
        assert (finding.slug, finding.is_cut) == (GROWING, False)

    def test_one_length_alone_that_is_fewer_is_never_a_success(self) -> None:
        for server in (0, 1, 50, 98, 99):
            assert compare_counts(counts([(100, server)]))[0].is_cut

    def test_one_fewer_at_all_lengths_is_no_cut_but_at_the_longest_it_is(self) -> None:
        (finding,) = compare_counts(counts([(10, 9), (100, 99), (1000, 999)]))
        assert (finding.slug, finding.is_cut) == (CONSTANT, False)
        findings = compare_counts(counts([(10, 10), (100, 100), (1000, 999)]))
        assert slugs(findings) == [FEWER, EQUAL]
        assert findings[0].requests == (2,)

    def test_a_few_marks_fewer_are_no_cut_and_more_are(self) -> None:
        (finding,) = compare_counts(counts([(100, 96), (1000, 996)]))
        assert (finding.slug, finding.is_cut) == (CONSTANT, False)
        assert compare_counts(counts([(100, 93), (1000, 993)]))[0].is_cut

    def test_one_fewer_where_we_send_one_bos_is_not_called_a_second_one(self) -> None:
        (finding,) = compare_counts(counts([(10, 9), (50, 49)], leading_bos=1))
        assert finding.slug == CONSTANT

    def test_a_shorter_prompt_that_reserves_more_is_cut_and_a_longer_one_is_not(self) -> None:
        # Window 512: 500 with 100 of output leave 412, 505 with 4 fit.
        samples = [
            CountSample(ours=30, server=30, output_limit_tokens=4, limit_tokens=512),
            CountSample(ours=500, server=412, output_limit_tokens=100, limit_tokens=512),
            CountSample(ours=505, server=505, output_limit_tokens=4, limit_tokens=512),
        ]
        findings = compare_counts(samples)
        assert slugs(findings) == [CUT_TO_LIMIT, EQUAL]
        assert findings[0].requests == (1,)

    def test_the_same_text_missing_everywhere_is_a_cut(self) -> None:
        # No token that begins or ends a sequence is 500 tokens long.
        findings = compare_counts(counts([(1100, 600), (1200, 700)]))
        assert [finding.is_cut for finding in findings] == [True]

    def test_no_rule(self) -> None:
        (finding,) = compare_counts(counts([(100, 103), (200, 200), (300, 304), (400, 401), (500, 506), (600, 600)]))
        assert finding.slug == UNEXPLAINED

    def test_one_token_more_at_one_of_two_lengths_is_no_other_tokenizer(self) -> None:
        assert slugs(compare_counts(counts([(30, 30), (200, 201)]))) == [UNEXPLAINED]
        assert slugs(compare_counts(counts([(30, 30), (200, 240)]))) == [GROWING]

    def test_what_the_server_counts_as_we_do_was_read_whole_whatever_it_adds_to_others(self) -> None:
        assert slugs(compare_counts(counts([(30, 51), (200, 200), (300, 300)]))) == [UNEXPLAINED]
        # But not where that is the number that its window leaves: 300 and the 21 that it adds are over 316 less 16.
        samples = counts([(30, 51), (200, 221), (300, 300)], limit_tokens=316, output_limit_tokens=16)
        assert slugs(compare_counts(samples)) == [CUT_TO_LIMIT, CONSTANT]

    def test_nothing_to_compare(self) -> None:
        assert compare_counts([]) == ()

    def test_a_cut_beside_another_difference(self) -> None:
        # The server adds 21 tokens, and its window of 2,048 less 32 of output is 2,016.
        samples = counts([(30, 51), (900, 921), (2040, 2016), (3000, 2016)], limit_tokens=2048, output_limit_tokens=32)
        assert slugs(compare_counts(samples)) == [CUT_TO_LIMIT, CONSTANT]


def random_lengths(rng: random.Random, most: int, fewest: int = 3) -> list[int]:
    """Distinct lengths in any order, one of them short, as a warm-up is."""
    found = {rng.randint(8, 60)}
    while len(found) < rng.randint(fewest, 7):
        found.add(rng.randint(64, most))
    lengths = list(found)
    rng.shuffle(lengths)
    return lengths


def with_repeats(rng: random.Random, samples: list[CountSample]) -> list[CountSample]:
    """The same, some of them asked more than once."""
    found = samples + [sample for sample in samples if rng.random() < 0.3]
    rng.shuffle(found)
    return found


def clean(rng: random.Random) -> list[CountSample]:
    limit = rng.choice([None, rng.randint(512, 40_000)])
    output = rng.choice([None, rng.randint(1, 400)])
    most = 30_000 if limit is None else max(limit - (output or 0), 100)
    samples = []
    for length in random_lengths(rng, most, fewest=1):
        cached = rng.choice([None, 0, rng.randint(0, length)])
        samples.append(
            CountSample(
                ours=length,
                server=length,
                cached=cached,
                output_limit_tokens=output,
                limit_tokens=limit,
                leading_bos=rng.choice([None, 0, 1, 2]),
            )
        )
    return with_repeats(rng, samples)


def second_bos(rng: random.Random) -> list[CountSample]:
    return counts([(length, length + 1) for length in random_lengths(rng, 20_000, 1)], leading_bos=1)


def second_bos_of_ours(rng: random.Random) -> list[CountSample]:
    return counts([(length, length - 1) for length in random_lengths(rng, 20_000, 1)], leading_bos=2)


def system_prompt(rng: random.Random) -> list[CountSample]:
    more = rng.randint(2, 400)
    return counts([(length, length + more) for length in random_lengths(rng, 20_000)], leading_bos=rng.choice([0, 1]))


def other_tokenizer(rng: random.Random) -> list[CountSample]:
    rate = rng.choice([rng.uniform(0.6, 0.92), rng.uniform(1.08, 2.5)])
    start = rng.randint(0, 10)
    pairs = [(n, max(1, round(n * rate * rng.uniform(0.985, 1.015)) + start)) for n in random_lengths(rng, 20_000, 4)]
    return counts(pairs, limit_tokens=rng.choice([None, 60_000]), output_limit_tokens=rng.choice([None, 32]))


def cut_at(
    limit: int | None, output: int | None, lengths: list[int], cut: Callable[[int], int], most: int, more: int
) -> list[CountSample]:
    """``more``: what the server's template adds to each prompt before it cuts what is over ``most``."""
    pairs = [(n, n + more if n + more <= most else cut(n + more)) for n in lengths]
    return counts(pairs, limit_tokens=limit, output_limit_tokens=output)


def over_and_under(rng: random.Random, most: int, over: int = 2) -> list[int]:
    """Lengths below ``most`` and ``over`` or more of them above it by more than a few."""
    lengths = random_lengths(rng, most - 1, 1)
    above = rng.sample(range(most + 8, 6 * most), over)
    return [*lengths, *above]


def cut_as_ollama_does(rng: random.Random) -> list[CountSample]:
    limit = rng.choice([512, 2048, 4096, rng.randint(256, 10_000)])
    kept = rng.choice([0, 1, 4])
    left = kept + (limit - kept) // 2
    lengths = over_and_under(rng, limit, rng.randint(1, 4))
    return cut_at(limit, rng.choice([None, 1]), lengths, lambda _: left, limit, 0)


def cut_by_context_shift(rng: random.Random) -> list[CountSample]:
    limit, kept = rng.choice([512, 1000, 4096]), rng.choice([0, 1, 4])
    block = (limit - kept) // 2

    def cut(sent: int) -> int:
        return sent - (sent - kept - block) // block * block

    return cut_at(limit, 1, over_and_under(rng, limit, rng.randint(2, 4)), cut, limit, 0)


def cut_to_the_limit(rng: random.Random) -> list[CountSample]:
    limit, output = rng.randint(400, 20_000), rng.randint(1, 200)
    more = rng.choice([0, 0, rng.randint(2, 50)])
    left = rng.choice([limit, limit - 1, limit - output])
    return cut_at(limit, output, over_and_under(rng, limit, rng.randint(1, 4)), lambda _: left, limit - more, more)


def stuck(rng: random.Random) -> list[CountSample]:
    most = rng.randint(300, 10_000)
    left = rng.randint(100, most - 1)
    return cut_at(None, None, over_and_under(rng, most, rng.randint(2, 4)), lambda _: left, most, rng.choice([0, 7]))


def fewer(rng: random.Random) -> list[CountSample]:
    most = rng.randint(300, 10_000)
    lengths = sorted(random_lengths(rng, most, 3))
    longest = most + rng.randint(8, 5 * most)
    return cut_at(None, None, [*lengths, longest], lambda n: rng.randint(1, n // 2), most, 0)


def unstated(rng: random.Random) -> list[CountSample]:
    return counts([(length, None) for length in random_lengths(rng, 20_000, 1)])


FAULTS = [
    (second_bos, DOUBLED_BOS),
    (second_bos_of_ours, DOUBLED_BOS),
    (system_prompt, CONSTANT),
    (other_tokenizer, GROWING),
    (cut_as_ollama_does, HALF_WINDOW),
    (cut_by_context_shift, HALF_WINDOW),
    (cut_to_the_limit, CUT_TO_LIMIT),
    (stuck, STUCK),
    (fewer, FEWER),
    (unstated, ABSENT),
]


@pytest.mark.parametrize(("fault", "slug"), FAULTS, ids=lambda value: getattr(value, "__name__", value))
def test_every_fault_is_named(fault: Callable[[random.Random], list[CountSample]], slug: str) -> None:
    for seed in range(100):
        rng = random.Random(f"{fault.__name__} {seed}")
        samples = with_repeats(rng, fault(rng))
        findings = compare_counts(samples)
        assert findings[0].slug == slug, (seed, findings, samples)
        assert sorted(place for finding in findings for place in finding.requests) == list(range(len(samples)))
        # A prompt that the server read whole is never called cut, and one that it cut is never called whole.
        cut = {place for finding in findings if finding.is_cut for place in finding.requests}
        if slug in CUTS:
            shortest = min(sample.ours or 0 for sample in samples)
            more = next(s.server - s.ours for s in samples if s.ours == shortest and s.server is not None)
            assert cut == {
                place
                for place, sample in enumerate(samples)
                if sample.ours is not None and sample.server is not None and sample.server < sample.ours + more
            }
        else:
            assert cut == set()


def test_no_false_alarm() -> None:
    for seed in range(2000):
        findings = compare_counts(clean(random.Random(seed)))
        assert slugs(findings) == [EQUAL], seed


def test_every_finding_says_what_else_it_could_be_and_what_to_do() -> None:
    for fault, slug in FAULTS:
        finding = compare_counts(fault(random.Random(1)))[0]
        assert finding.slug == slug
        assert finding.also_possible
        assert finding.next_step
        assert any(character.isdigit() for character in finding.claim)
