"""The weights in a Hugging Face folder: `model.safetensors`, or shards named by `model.safetensors.index.json`."""

import json
from pathlib import Path
from typing import Any

from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model.config import ModelConfig, config_from_hugging_face
from engine.model.errors import ModelFileError, UnsupportedModelError

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"


class SafetensorsWeights:
    """A WeightSource over a folder. Files are mapped when first asked for and stay open."""

    def __init__(self, folder: Path) -> None:
        self._config_path = folder / CONFIG_FILE
        self._config = config_from_hugging_face(self._config_path, read_json(self._config_path))
        self._file_by_name = _locate(folder)
        self._open_files: dict[Path, Any] = {}  # Any: the handle's type is not exported

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def files(self) -> list[Path]:
        """The weight files, sorted, and the index that says which one a tensor is read from, if there is one."""
        index = self._config_path.with_name(INDEX_FILE)
        return sorted({*self._file_by_name.values(), *((index,) if index.exists() else ())})

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        path = self._file_by_name.get(name)
        if path is None:
            raise ModelFileError(self._config_path.parent, f"its weight files have no tensor {name!r}")
        if path not in self._open_files:
            self._open_files[path] = _open(path)
        try:
            weight: Tensor = self._open_files[path].get_tensor(name)
        except SafetensorError as err:
            raise ModelFileError(path, f"tensor {name!r} cannot be read ({err})") from err
        if tuple(weight.shape) != shape:
            problem = f"tensor {name!r} has shape {tuple(weight.shape)}, config.json asks for {shape}"
            raise ModelFileError(path, problem)
        if not weight.is_floating_point():
            raise UnsupportedModelError(path, f"tensor {name!r} of type {weight.dtype} is not supported")
        return weight


def read_json(path: Path) -> dict[str, Any]:  # Any: parsed JSON
    """The object in `path`. Raises ModelFileError if it is missing or holds no JSON object."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError) as err:  # ValueError: not JSON, or not UTF-8
        raise ModelFileError(path, f"cannot be read ({err})") from err
    if not isinstance(values, dict):
        raise ModelFileError(path, "holds no JSON object")
    return values


def _locate(folder: Path) -> dict[str, Path]:
    """Each tensor's file."""
    index_path = folder / INDEX_FILE
    if not index_path.exists():
        path = folder / WEIGHTS_FILE
        return dict.fromkeys(_open(path).keys(), path)
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ModelFileError(index_path, "has no weight_map of file names")
    return {name: folder / Path(file).name for name, file in weight_map.items()}


def _open(path: Path) -> Any:  # Any: the handle's type is not exported
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as err:
        raise ModelFileError(path, f"cannot be read ({err})") from err
