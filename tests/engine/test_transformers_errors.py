"""What the worker of transformers says becomes an error with something that helps."""

import pytest

from kvscope.engine.transformers_errors import worker_error


@pytest.mark.parametrize(
    ("package", "is_of_the_extra"), [("torch", True), ("transformers", True), ("optimum-quanto", False), ("hqq", False)]
)
def test_a_missing_package_is_one_that_the_hint_brings(package: str, is_of_the_extra: bool) -> None:
    message = {"kind": "missing_dependency", "message": f"{package} is not installed", "package": package}
    error = worker_error(message, doing="loading the model", device="cpu")
    hint = str(error.hint)
    assert f"pip install {package}" in hint
    assert ("kvscope[transformers]" in hint) is is_of_the_extra


LIMITS = ("address space 300 MiB",)


@pytest.mark.parametrize(
    ("said", "memory_limits", "slug"),
    [
        # As glibc said under ulimit -v of 300 MiB, and -d of 15 MiB: without the system's reason.
        ("libtorch_cpu.so: failed to map segment from shared object", LIMITS, "memory-suspected"),
        ("libtorch_cpu.so: cannot map zero-fill pages", LIMITS, "memory-suspected"),
        ("libtorch_cpu.so: failed to map segment from shared object", (), "engine-not-found"),
        ("libtorch_cpu.so: failed to map segment from shared object: Cannot allocate memory", (), "out-of-memory"),
        ("libtorch_cpu.so: failed to map segment from shared object: Operation not permitted", LIMITS,
         "engine-not-found"),
        ("libgomp.so.1: cannot allocate memory in static TLS block", LIMITS, "engine-not-found"),
        ("libcudart.so.12: cannot open shared object file: No such file or directory", LIMITS, "engine-not-found"),
    ],
)  # fmt: skip
def test_a_library_that_finds_no_room_is_not_a_broken_one(said: str, memory_limits: tuple[str, ...], slug: str) -> None:
    message = {"kind": "broken_dependency", "message": said, "package": "_C"}
    error = worker_error(message, doing="starting", device="cpu", memory_limits=memory_limits)
    assert error.slug == slug
    assert said in error.message
    if slug != "engine-not-found":
        assert error.evidence["known_by"] == "message"
