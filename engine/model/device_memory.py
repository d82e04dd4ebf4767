"""What a device's memory has room for, and how its allocators say that it has none."""

import torch

from engine import machine

_WORDS = ("can't allocate memory", "out of memory")


def free_memory(device: torch.device) -> int:
    """Bytes that are free on `device`."""
    if device.type == "cuda":
        return int(torch.cuda.mem_get_info(device)[0])
    return machine.cpu_memory().free_bytes


def release_cached(device: torch.device) -> None:
    """What torch keeps of the memory of `device` for tensors to come is the device's again."""
    if device.type == "cuda":
        torch.cuda.empty_cache()


def is_out_of_memory(error: BaseException) -> bool:
    """Whether an allocation failed. Not every allocator has an error of its own."""
    if isinstance(error, MemoryError | torch.OutOfMemoryError):
        return True
    return isinstance(error, RuntimeError) and any(words in str(error) for words in _WORDS)
