"""The weights in a Hugging Face folder: `model.safetensors`, or shards named by `model.safetensors.index.json`."""

import json
import re
from collections import abc
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.hugging_face_config import config_from_hugging_face
from engine.model.safetensors_header import first_tensor_cut_off
from engine.model.weights import StoredTensor

CONFIG_FILE = "config.json"
WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
EMBEDDING, HEAD = "model.embed_tokens.weight", "lm_head.weight"

# Frequencies that older versions of transformers stored with the weights; they follow from the configuration.
_DERIVED = re.compile(r"model\.layers\.\d+\.self_attn\.rotary_emb\.inv_freq")
_DTYPES = frozenset({torch.float64, torch.float32, torch.float16, torch.bfloat16})


class SafetensorsWeights:
    """A WeightSource over a folder. Files are mapped and stay open."""

    described_by = CONFIG_FILE

    def __init__(self, folder: Path) -> None:
        self.path = folder
        self._open_files: dict[Path, Any] = {}  # Any: the handle's type is not exported
        config = config_from_hugging_face(folder / CONFIG_FILE, read_json(folder / CONFIG_FILE))
        file_by_name = _locate(folder)
        for file in sorted(set(file_by_name.values())):
            self._open_files[file] = _open(file)
        self._stored = {
            name: StoredTensor(file, name, self._shape(name, file))
            for name, file in file_by_name.items()
            if not _DERIVED.fullmatch(name)
        }
        self._config = self._tied_as_stored(config)

    @property
    def config(self) -> ModelConfig:
        return self._config

    @property
    def stored(self) -> abc.Mapping[str, StoredTensor]:
        return self._stored

    @property
    def files(self) -> list[Path]:
        """The weight files, sorted, and the index that says which one a tensor is read from, if there is one."""
        index = self.path / INDEX_FILE
        return sorted({*self._open_files, *((index,) if index.exists() else ())})

    def name_in_file(self, name: str) -> str:
        return name

    def weight(self, name: str) -> Tensor:
        path = self._stored[name].path
        try:
            weight: Tensor = self._open_files[path].get_tensor(name)
        except (SafetensorError, OSError) as err:
            raise ModelFileError(path, f"tensor {name!r} cannot be read ({err})") from err
        if weight.dtype not in _DTYPES:
            raise UnsupportedModelError(path, f"tensor {name!r} of type {weight.dtype} is not supported")
        return weight

    def _shape(self, name: str, file: Path) -> tuple[int, ...]:
        try:
            return tuple(self._open_files[file].get_slice(name).get_shape())
        except SafetensorError as err:
            raise ModelFileError(file, f"has no tensor {name!r}, although {INDEX_FILE} says so") from err

    def _tied_as_stored(self, config: ModelConfig) -> ModelConfig:
        """A head that is stored beside the embedding is tied to it only if it is the same, as transformers has it."""
        if not config.tied_embeddings or HEAD not in self._stored or EMBEDDING not in self._stored:
            return config
        head, embedding = self.weight(HEAD), self.weight(EMBEDDING)
        if head.dtype != embedding.dtype or not torch.equal(head, embedding):
            return replace(config, tied_embeddings=False)
        del self._stored[HEAD]
        return config


def read_json(path: Path) -> dict[str, Any]:  # Any: parsed JSON
    """The object in `path`. Raises ModelFileError if it is missing or holds no JSON object."""
    try:
        values = json.loads(path.read_bytes())
    except (OSError, ValueError, RecursionError) as err:  # ValueError: not JSON, or not UTF-8
        raise ModelFileError(path, f"cannot be read ({err})") from err
    if not isinstance(values, dict):
        raise ModelFileError(path, "holds no JSON object")
    return values


def _locate(folder: Path) -> dict[str, Path]:
    """Each tensor's file, which is there."""
    index_path = folder / INDEX_FILE
    if not index_path.exists():
        path = folder / WEIGHTS_FILE
        if not path.exists():
            raise ModelFileError(folder, f"has neither {WEIGHTS_FILE} nor {INDEX_FILE}; other forms are not read")
        return dict.fromkeys(_open(path).keys(), path)
    weight_map = read_json(index_path).get("weight_map")
    if not isinstance(weight_map, dict) or not all(isinstance(file, str) for file in weight_map.values()):
        raise ModelFileError(index_path, "has no weight_map of file names")
    file_by_name = {name: folder / Path(file).name for name, file in weight_map.items()}
    for name, path in file_by_name.items():
        if not path.exists():
            raise ModelFileError(index_path, f"keeps tensor {name!r} in {path.name}, which is missing")
    return file_by_name


def _open(path: Path) -> Any:  # Any: the handle's type is not exported
    try:
        return safe_open(path, framework="pt")
    except (SafetensorError, OSError) as err:
        name = first_tensor_cut_off(path)
        if name is not None:
            raise ModelFileError(path, f"is cut off: tensor {name!r} ends behind the end of the file") from err
        raise ModelFileError(path, f"cannot be read ({err})") from err
