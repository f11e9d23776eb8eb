"""Whatever ``kvscope predict`` accepts as a llama.cpp setting, both ways of running llama.cpp accept too."""

import pytest

from kvscope.engine.llama_flags import flags
from kvscope.engine.worker import apply_settings
from kvscope.errors import InvalidSettings, UsageError
from kvscope.predict.allocation.llama_cpp_settings import (
    ALIASES,
    CACHE_TYPES,
    SETTING_NAMES,
    canonical_settings,
)
from kvscope.scenario import SettingValue

CANDIDATES: tuple[SettingValue, ...] = (
    -1, 0, 1, 512, "8k", 0.5, "1.5", True, False, "on", "off", "auto", "none", "mmap", "mlock", "mmap+mlock", "dio",
    *CACHE_TYPES, "float16",
)  # fmt: skip


# The library's parameters have them; no flag of llama-server is known that sets them.
LIBRARY_ONLY = {"kv_unified_per_slot", "n_outputs_max"}


def accepted() -> list[tuple[str, dict[str, SettingValue]]]:
    """(as given, canonical form) of every name and alias with every value that it takes."""
    found = []
    for name in (*SETTING_NAMES, *ALIASES):
        for value in CANDIDATES:
            try:
                found.append((f"{name}={value!r}", canonical_settings({name: value})))
            except UsageError:
                continue
    return found


def test_every_name_is_tried_with_some_value() -> None:
    assert {name for _, canonical in accepted() for name in canonical} == set(SETTING_NAMES)


def test_llama_server_has_a_flag_for_each() -> None:
    for given, canonical in accepted():
        if LIBRARY_ONLY & set(canonical):
            with pytest.raises(InvalidSettings, match="knows no llama-server flag"):
                list(flags(canonical))
            continue
        words = list(flags(canonical))
        assert all(isinstance(word, str) and word for word in words), given


@pytest.mark.engine
def test_the_library_takes_each() -> None:
    """On the real CommonParams, which the value must reach unchanged."""
    xllamacpp = pytest.importorskip("xllamacpp")
    for given, canonical in accepted():
        params = xllamacpp.CommonParams()
        apply_settings(params, canonical)  # raises SettingError
        for name, value in canonical.items():
            if name.startswith("sampling."):
                assert getattr(params.sampling, name.partition(".")[2]) == value, given
            elif hasattr(params, name) and isinstance(value, int | float):
                assert getattr(params, name) == value, given
