"""Where weights come from: one protocol over a Hugging Face folder and a GGUF file, under Hugging Face's names."""

from collections import abc
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from torch import Tensor

from engine.model.config import ModelConfig
from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.parameters import Shape


@dataclass(frozen=True, slots=True)
class StoredTensor:
    """Where a parameter lies: the file, its name there, its shape."""

    path: Path
    name: str
    shape: Shape


class WeightSource(Protocol):
    """The parameters of one model. Reading one twice is allowed and costs the same again."""

    @property
    def config(self) -> ModelConfig:
        """The shape of the model."""

    @property
    def path(self) -> Path:
        """What to name where a parameter is missing."""

    @property
    def described_by(self) -> str:
        """What says which shapes the parameters should have."""

    @property
    def stored(self) -> abc.Mapping[str, StoredTensor]:
        """Everything there is, by Hugging Face's name."""

    def name_in_file(self, name: str) -> str:
        """What a parameter would be called where it is stored."""

    def weight(self, name: str) -> Tensor:
        """The parameter with Hugging Face's `name`, which is stored, in any float dtype, on the CPU.

        Raises ModelFileError, naming the file and the tensor, if it cannot be read.
        """


def check_stored(source: WeightSource, expected: abc.Mapping[str, Shape]) -> None:
    """Every parameter of `expected` is there in its shape, and no other.

    Raises ModelFileError, or UnsupportedModelError for a tensor that would be left unused; both name file and tensor.
    """
    for name, shape in expected.items():
        stored = source.stored.get(name)
        if stored is None:
            raise ModelFileError(source.path, f"its weights have no tensor {source.name_in_file(name)!r}")
        if stored.shape != shape:
            problem = f"tensor {stored.name!r} has shape {stored.shape}, {source.described_by} asks for {shape}"
            raise ModelFileError(stored.path, problem)
    for name, stored in source.stored.items():
        if name not in expected:
            problem = f"tensor {stored.name!r} has no place in a model of the architecture {source.config.architecture}"
            raise UnsupportedModelError(stored.path, problem)
