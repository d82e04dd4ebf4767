"""Where weights come from: one protocol over a Hugging Face folder and a GGUF file, under Hugging Face's names."""

from typing import Protocol

from torch import Tensor

from engine.model.config import ModelConfig


class WeightSource(Protocol):
    """The parameters of one model. Reading one twice is allowed and costs the same again."""

    @property
    def config(self) -> ModelConfig:
        """The shape of the model."""

    def weight(self, name: str, shape: tuple[int, ...]) -> Tensor:
        """The parameter with Hugging Face's `name`, in any float dtype, on the CPU.

        Raises ModelFileError, naming the file, if it is missing or has another shape.
        """
