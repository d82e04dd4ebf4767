"""The alphabet in which byte-level BPE spells bytes (GPT-2). Knows nothing else."""

from tokenizers.pre_tokenizers import ByteLevel


def byte_by_character() -> dict[str, int]:
    """GPT-2's alphabet: printable bytes are their own character, the others follow from U+0100 on, in order."""
    own = {ord(character) for character in ByteLevel.alphabet() if ord(character) < 256}
    moved = [byte for byte in range(256) if byte not in own]
    return {chr(byte): byte for byte in own} | {chr(256 + index): byte for index, byte in enumerate(moved)}
