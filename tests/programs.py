"""Programs that are no Python packages: where they are, and what becomes of a test where they are not."""

import os
import shutil

import pytest

# Not one of the product's own variables, which refuses those that it does not know.
REQUIRE_VARIABLE = "REQUIRE_BROWSERS"
CHROMIUM = ("chromium", "chromium-browser", "google-chrome")


def find_program(*names: str) -> str:
    """The path of the first of `names` that is installed.

    If none is, the test is skipped, or fails where the variable REQUIRE_BROWSERS is set, as in .ci/run.
    """
    for name in names:
        if path := shutil.which(name):
            return path
    told = f"{' or '.join(names)} is not installed: make browsers"
    if os.environ.get(REQUIRE_VARIABLE):
        pytest.fail(told)
    pytest.skip(told)
