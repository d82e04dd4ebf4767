"""Generates the protocol modules, and lints the protocol with buf.

    python proto/build.py              write the modules beside their .proto files
    python proto/build.py --check      fail if a committed module differs from what its .proto generates
    python proto/build.py --lint       buf lint, and buf breaking against the previous commit that landed, if git has it

Google's protos come from the `googleapis-common-protos` and `grpcio-tools` packages, never copied into the tree.
"""

import argparse
import filecmp
import shutil
import subprocess
import sys
import tempfile
from importlib import resources
from pathlib import Path

from google.api import annotations_pb2

ROOT = Path(__file__).resolve().parent
GOOGLE = Path(annotations_pb2.__file__).parents[2]
WELL_KNOWN = Path(str(resources.files("grpc_tools"))) / "_proto"
BUF = Path(sys.executable).parent / "buf"
GENERATED = ("*_pb2.py", "*_pb2.pyi", "*_pb2_grpc.py", "*_pb2_grpc.pyi")


def sources() -> list[str]:
    return sorted(str(path.relative_to(ROOT)) for path in (ROOT / "evenflow").rglob("*.proto"))


def generate(into: Path) -> None:
    """Write every generated module under `into`, in the layout of the .proto files."""
    outputs = [f"--{kind}_out={into}" for kind in ("python", "mypy", "grpc_python", "mypy_grpc")]
    plugins = [
        f"--plugin=protoc-gen-{name}={Path(sys.executable).parent / f'protoc-gen-{name}'}"
        for name in ("mypy", "mypy_grpc")
    ]
    includes = [f"-I{ROOT}", f"-I{GOOGLE}", f"-I{WELL_KNOWN}"]
    subprocess.run(
        [sys.executable, "-m", "grpc_tools.protoc", *includes, *plugins, *outputs, *sources()], check=True, cwd=ROOT
    )


def generated(under: Path) -> set[Path]:
    return {path.relative_to(under) for pattern in GENERATED for path in (under / "evenflow").rglob(pattern)}


def check() -> int:
    """Return 1 and name the files if the committed modules are not what the .proto files generate."""
    with tempfile.TemporaryDirectory() as scratch:
        fresh = Path(scratch)
        generate(fresh)
        paths = generated(fresh) | generated(ROOT)
        drifted = [
            path
            for path in sorted(paths)
            if not (
                (fresh / path).is_file()
                and (ROOT / path).is_file()
                and filecmp.cmp(fresh / path, ROOT / path, shallow=False)
            )
        ]
    for path in drifted:
        print(f"proto drift: {path}; run `make proto`")
    return 1 if drifted else 0


def module(revision: str | None, into: Path) -> Path:
    """Lay out a buf module with Google's protos beside ours, from the working tree or from a git revision."""
    into.mkdir()
    if revision is None:
        shutil.copytree(ROOT / "evenflow", into / "evenflow")
    else:
        archive = subprocess.run(
            ["git", "archive", revision, "proto"], check=True, cwd=ROOT.parent, capture_output=True
        ).stdout
        subprocess.run(["tar", "-x", "--strip-components=1", "-C", str(into)], check=True, input=archive)
    shutil.copy(ROOT / "buf.yaml", into / "buf.yaml")
    (into / "google").mkdir()
    shutil.copytree(GOOGLE / "google" / "api", into / "google" / "api", ignore=shutil.ignore_patterns("*.py", "*.pyi"))
    return into


def previous_revision() -> str | None:
    """The newest commit before HEAD that changed the protocol; None without git, or in a shallow or new history."""
    if shutil.which("git") is None:
        return None
    log = subprocess.run(
        ["git", "log", "--format=%H", "-n", "1", "HEAD~1", "--", "proto"],
        cwd=ROOT.parent,
        capture_output=True,
        text=True,
        check=False,
    )
    return log.stdout.strip() or None


def lint() -> int:
    """Run buf's linter, then its check that no committed message or field changed meaning on the wire.

    Without an earlier revision there is nothing to check against: says so, and the linter alone decides.
    """
    with tempfile.TemporaryDirectory() as scratch:
        ours = module(None, Path(scratch) / "now")
        code = subprocess.run([BUF, "lint", str(ours), "--path", str(ours / "evenflow")], check=False).returncode
        revision = previous_revision()
        if revision is None:
            print("buf breaking: skipped, git has no earlier revision of the protocol here", file=sys.stderr)
        elif code == 0:
            before = module(revision, Path(scratch) / "before")
            code = subprocess.run([BUF, "breaking", str(ours), "--against", str(before)], check=False).returncode
    return code


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    mode = parser.add_mutually_exclusive_group()
    mode.add_argument("--check", action="store_true")
    mode.add_argument("--lint", action="store_true")
    args = parser.parse_args()
    if args.check:
        return check()
    if args.lint:
        return lint()
    generate(ROOT)
    return 0


if __name__ == "__main__":
    sys.exit(main())
