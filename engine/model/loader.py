"""From a path to a model that is ready to run: finds the files, reads the weights, packs them, describes the result."""

import hashlib
import re
from collections import abc
from dataclasses import dataclass
from pathlib import Path

import torch

from engine.model.default_model import find_default_model
from engine.model.errors import ModelFileError
from engine.model.gguf_file import GgufFile
from engine.model.gguf_weights import GgufWeights
from engine.model.info import LoadedModel, ModelInfo
from engine.model.llama import LlamaForCausalLM
from engine.model.parameters import parameter_shapes
from engine.model.safetensors_weights import CONFIG_FILE, SafetensorsWeights
from engine.model.tokenizer_folder import tokenizer_files, tokenizer_from_folder
from engine.model.tokenizer_info import TokenizerInfo
from engine.model.tokenizer_json import tokenizer_from_gguf
from engine.model.weight_reader import WeightReader
from engine.model.weights import WeightSource

DTYPES: abc.Mapping[str, torch.dtype] = {"float32": torch.float32, "bfloat16": torch.bfloat16}

_HASH_CHUNK_BYTES = 1 << 20
_QUANTIZATION_SUFFIX = re.compile(r"[.-](I?Q\d\w*|BF16|F16|F32)$", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class _ModelFiles:
    """`hashed` are the files that decide the output."""

    name: str
    weights: WeightSource
    tokenizer: TokenizerInfo
    hashed: tuple[Path, ...]


def load_model(
    path: Path | None,
    *,
    dtype: str = "auto",
    device: str = "auto",
    quantization: str | None = None,
    on_progress: abc.Callable[[float], None] | None = None,
) -> LoadedModel:
    """The model in `path`, a GGUF file or a Hugging Face folder; the default model if it is None.

    `dtype` is float32, bfloat16 or auto (bfloat16 where the device computes it natively); `device` is auto (CUDA if
    there is one), or a torch device; `quantization` of the weights is None or int8. `on_progress` is called with the
    fraction done, rising to 1.0.
    Raises ModelNotFoundError, ModelFileError, UnsupportedModelError or ModelMemoryError, and ValueError for an unknown
    dtype or device.
    """
    torch_device = _resolve_device(device)
    torch_dtype = _resolve_dtype(dtype, torch_device)
    files = _open_files(find_default_model() if path is None else path)
    config = files.weights.config
    progress = on_progress or (lambda _: None)
    reader = WeightReader(files.weights, parameter_shapes(config), torch_device, torch_dtype, progress)
    with torch.inference_mode():
        module = LlamaForCausalLM(config, reader.weight).eval()
        module.pack(quantization)
    info = _describe(files, torch_dtype, quantization, reader.num_parameters)
    progress(1.0)
    return LoadedModel(info, config, module, torch_device, torch_dtype)


def _describe(files: _ModelFiles, dtype: torch.dtype, quantization: str | None, num_parameters: int) -> ModelInfo:
    config, tokenizer = files.weights.config, files.tokenizer
    return ModelInfo(
        name=files.name,
        architecture=config.architecture,
        dtype=str(dtype).removeprefix("torch."),
        quantization=quantization,
        parameter_count=num_parameters,
        context_tokens=config.context_tokens,
        vocabulary_size=config.vocabulary_size,
        tokenizer_json=tokenizer.tokenizer_json,
        chat_template=tokenizer.chat_template,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_ids=tokenizer.eos_token_ids,
        pad_token_id=tokenizer.pad_token_id,
        unk_token_id=tokenizer.unk_token_id,
        add_bos_token=tokenizer.add_bos_token,
        model_hash=_hash(files.hashed, dtype, quantization),
        kv_bytes_per_token=2 * config.num_layers * config.num_kv_heads * config.head_dim * dtype.itemsize,
    )


def _resolve_device(device: str) -> torch.device:
    if device == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        return torch.device(device)
    except RuntimeError as err:
        raise ValueError(f"device {device!r} is unknown") from err


def _resolve_dtype(dtype: str, device: torch.device) -> torch.dtype:
    if dtype == "auto":
        return torch.bfloat16 if _computes_bfloat16(device) else torch.float32
    if dtype not in DTYPES:
        raise ValueError(f"dtype {dtype!r} is unknown, choose one of auto, {', '.join(DTYPES)}")
    return DTYPES[dtype]


def _computes_bfloat16(device: torch.device) -> bool:
    """Natively: emulation is slower than float32."""
    if device.type == "cuda":
        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    if device.type == "cpu":
        return bool(torch.cpu._is_avx512_bf16_supported() or torch.cpu._is_amx_tile_supported())
    return False


def _open_files(path: Path) -> _ModelFiles:
    if path.is_dir():
        if not (path / CONFIG_FILE).exists():
            raise ModelFileError(path, f"is a folder without {CONFIG_FILE}, so not a Hugging Face model")
        folder_weights = SafetensorsWeights(path)
        hashed = (path / CONFIG_FILE, *tokenizer_files(path), *folder_weights.files)
        return _ModelFiles(path.resolve().name, folder_weights, tokenizer_from_folder(path), hashed)
    if path.suffix == ".safetensors":
        raise ModelFileError(path, "is a file of weights; name the folder that holds it and its config.json")
    file = GgufFile(path)
    name = _QUANTIZATION_SUFFIX.sub("", path.stem)
    return _ModelFiles(name, GgufWeights(file), tokenizer_from_gguf(file), (path,))


def _hash(paths: abc.Iterable[Path], dtype: torch.dtype, quantization: str | None) -> str:
    digest = hashlib.sha256(" ".join(filter(None, (str(dtype), quantization))).encode())
    for path in paths:
        digest.update(f"\0{path.name}\0{path.stat().st_size}\0".encode())
        with path.open("rb") as file:
            while chunk := file.read(_HASH_CHUNK_BYTES):
                digest.update(chunk)
    return digest.hexdigest()
