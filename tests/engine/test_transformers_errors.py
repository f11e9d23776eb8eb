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
