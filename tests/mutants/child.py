"""One mutant in a process of its own: its module is mutated as it is imported, nothing is written to disk.

Prints `same`, `killed by …` or `survived` as the last line. Without a module it prints the digests of the code as it
is, which must pass the tests.
"""

import contextlib
import io
import sys
import traceback
from importlib.abc import MetaPathFinder
from importlib.machinery import ModuleSpec, PathFinder, SourceFileLoader

import pytest

from tests.mutants.operators import mutate

CORE_TESTS = ("tests/core", "tests/fairness/test_bounds.py", "tests/policies/test_conformance.py")
QUOTA_TESTS = ("tests/quota",)
LEASE_TESTS = tuple(
    f"tests/leases/test_{name}.py"
    for name in ("leased_rates", "lease_failures", "lease_parts", "changed_leases", "holdings", "emergency")
)
KINDS = ("engine.core", "gateway.quota", "gateway.leases")


class MutatingLoader(SourceFileLoader):
    """Compiles the mutated source, and never the cached one."""

    def __init__(self, fullname: str, path: str, index: int) -> None:
        super().__init__(fullname, path)
        self._index = index

    def get_code(self, fullname: str):
        path = self.get_filename(fullname)
        return compile(mutate(self.get_data(path), self._index), path, "exec")


class MutatingFinder(MetaPathFinder):
    def __init__(self, module: str, index: int) -> None:
        self._module, self._index = module, index

    def find_spec(self, fullname, path, target=None) -> ModuleSpec | None:
        if fullname != self._module:
            return None
        spec = PathFinder.find_spec(fullname, path)
        assert spec is not None
        assert spec.origin is not None
        spec.loader = MutatingLoader(fullname, spec.origin, self._index)
        return spec


def main(arguments: list[str]) -> None:
    if not arguments:
        digests = [digest_of(kind) for kind in KINDS]
        failed = next(filter(None, map(failed_test, KINDS)), None)
        print(*digests if failed is None else ("fails", failed, "as", "it", "is"))
        return
    module, index, expected = arguments[0], int(arguments[1]), arguments[2]
    sys.meta_path.insert(0, MutatingFinder(module, index))
    print(verdict(module, expected))


def digest_of(module: str) -> str:
    if module.startswith("gateway.leases"):
        from tests.mutants import lease_traffic

        return lease_traffic.lease_decisions()
    from tests.mutants import traffic

    return traffic.quota_decisions() if module.startswith("gateway") else traffic.plans()


def verdict(module: str, expected: str) -> str:
    try:
        digest = digest_of(module)
    except Exception as error:  # noqa: BLE001 # whatever a fault leads to, it was noticed
        where = traceback.extract_tb(error.__traceback__)[-1]
        return f"killed by traffic: {type(error).__name__} in {where.name}: {str(error)[:120]}".replace("\n", " ")
    if digest == expected:
        return "same"
    failed = failed_test(module)
    return "survived" if failed is None else f"killed by {failed}"


def failed_test(module: str) -> str | None:
    """The first test of the module's suite that fails; None if all pass."""
    output = io.StringIO()
    is_lease = module.startswith("gateway.leases")
    tests = LEASE_TESTS if is_lease else QUOTA_TESTS if module.startswith("gateway") else CORE_TESTS
    with contextlib.redirect_stdout(output):
        code = pytest.main(["-x", "-q", "-p", "no:cacheprovider", "--no-header", *tests])
    if code == pytest.ExitCode.OK:
        return None
    failed = [line for line in output.getvalue().splitlines() if line.startswith(("FAILED", "ERROR"))]
    return failed[0] if failed else str(code)


if __name__ == "__main__":
    main(sys.argv[1:])
