import contextlib
import struct

import gguf
import numpy as np
import pytest

from engine.model.errors import ModelFileError, UnsupportedModelError
from engine.model.gguf_file import GgufFile


@pytest.fixture
def path(tmp_path):
    rng = np.random.default_rng(3)
    writer = gguf.GGUFWriter(tmp_path / "small.gguf", "llama")
    writer.add_string("general.name", "naïve ☃")
    writer.add_bool("general.flag", True)  # noqa: FBT003  # the package's signature
    writer.add_array("general.numbers", [1, -2, 3])
    writer.add_array("general.words", ["a", "", "ß"])
    writer.add_float32("general.float", 0.25)
    writer.add_uint64("general.long", 1 << 40)
    for quantization in ("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q8_0"):
        kind = gguf.GGMLQuantizationType[quantization]
        values = rng.standard_normal((6, 64), dtype=np.float32)
        writer.add_tensor(quantization, gguf.quants.quantize(values, kind), raw_dtype=kind)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return tmp_path / "small.gguf"


def test_metadata_is_read_with_its_types(path):
    metadata = GgufFile(path).metadata
    assert metadata["general.architecture"] == "llama"
    assert metadata["general.name"] == "naïve ☃"
    assert metadata["general.flag"] is True
    assert metadata["general.numbers"] == [1, -2, 3]
    assert metadata["general.words"] == ["a", "", "ß"]
    assert metadata["general.float"] == 0.25
    assert metadata["general.long"] == 1 << 40


def test_tensors_are_those_of_the_packages_own_reader(path):
    file = GgufFile(path)
    expected = gguf.GGUFReader(path).tensors
    assert list(file.tensors) == [tensor.name for tensor in expected]
    for tensor in expected:
        values = gguf.quants.dequantize(tensor.data, tensor.tensor_type)
        assert file.tensor(tensor.name).dtype == np.float32
        np.testing.assert_array_equal(file.tensor(tensor.name), values.reshape(6, 64))


def test_missing_tensor_is_named(path):
    with pytest.raises(ModelFileError, match=r"small\.gguf: has no tensor 'output\.weight'"):
        GgufFile(path).tensor("output.weight")


def test_file_cut_off_anywhere_is_refused_by_name(path):
    content = path.read_bytes()
    end_of_data = max(tensor.offset + tensor.num_bytes for tensor in GgufFile(path).tensors.values())
    for length in [*range(0, 900, 13), end_of_data - 1]:
        path.write_bytes(content[:length])
        with pytest.raises(ModelFileError, match=r"small\.gguf"):
            GgufFile(path)


@pytest.mark.parametrize("seed", range(60))
def test_damaged_header_is_refused_or_read_but_never_crashes(path, seed):
    content = bytearray(path.read_bytes())
    rng = np.random.default_rng(seed)
    for position in rng.integers(4, 700, size=3):
        content[position] = rng.integers(256)
    path.write_bytes(content)
    tensors = []
    with contextlib.suppress(ModelFileError):  # any other exception fails
        tensors = list(GgufFile(path).tensors.values())
    assert all(tensor.offset + tensor.num_bytes <= len(content) for tensor in tensors)


def test_foreign_file_is_refused(tmp_path):
    path = tmp_path / "model.gguf"
    path.write_bytes(b"PK\x03\x04 not a model at all")
    with pytest.raises(ModelFileError, match=r"model\.gguf: is not a GGUF file"):
        GgufFile(path)


def test_missing_file_is_named(tmp_path):
    with pytest.raises(ModelFileError, match=r"gone\.gguf: cannot be read"):
        GgufFile(tmp_path / "gone.gguf")


def test_unknown_version_is_unsupported(path):
    content = bytearray(path.read_bytes())
    content[4:8] = struct.pack("<I", 9)
    path.write_bytes(content)
    with pytest.raises(UnsupportedModelError, match="GGUF version 9"):
        GgufFile(path)
