"""A model folder is accepted if it has all required files, valid weights and no forbidden file."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from control.models.catalog.folder import UnusableModel, inspect_folder

TENSOR = {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]}  # 6 values of 4 bytes


def safetensors(header: dict[str, Any] | bytes, data_bytes: int) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + bytes(data_bytes)


def make_folder(path: Path) -> Path:
    """Makes the smallest folder that is accepted. Its weights are one tensor of zeros."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    (path / "tokenizer.json").write_text("{}")
    (path / "model.safetensors").write_bytes(safetensors({"weight": TENSOR}, 24))
    return path


def error_code_of(path: Path) -> str:
    with pytest.raises(UnusableModel) as refused:
        inspect_folder(path)
    return refused.value.code


def test_a_complete_folder_passes_and_its_revision_depends_on_its_content(tmp_path: Path) -> None:
    first, copy, other = (make_folder(tmp_path / name) for name in ("first", "copy", "other"))
    (other / "model.safetensors").write_bytes(safetensors({"weight": TENSOR}, 24)[:-1] + b"\1")

    assert inspect_folder(first).model_type == "llama"
    assert inspect_folder(first).revision == inspect_folder(copy).revision
    assert inspect_folder(first).revision != inspect_folder(other).revision


def write(name: str, content: str | bytes) -> Callable[[Path], object]:
    data = content.encode() if isinstance(content, str) else content
    return lambda path: (path / name).write_bytes(data)


def remove(name: str) -> Callable[[Path], object]:
    return lambda path: (path / name).unlink()


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (remove("config.json"), "model_config_missing"),
        (remove("tokenizer.json"), "model_tokenizer_missing"),
        (remove("model.safetensors"), "model_weights_missing"),
        (write("config.json", "{"), "model_config_invalid"),
        (write("config.json", "[]"), "model_config_invalid"),
        (write("config.json", "{}"), "model_type_unsupported"),
        (write("config.json", '{"model_type": ["llama"]}'), "model_type_unsupported"),
        (write("config.json", '{"model_type": "mamba"}'), "model_type_unsupported"),
        (write("config.json", '{"model_type": "llama", "auto_map": {}}'), "model_code_forbidden"),
        (write("tokenizer_config.json", '{"auto_map": {"AutoTokenizer": "x"}}'), "model_code_forbidden"),
        (write("modeling_evil.py", "import os"), "model_file_forbidden"),
        (write("pytorch_model.bin", b""), "model_file_forbidden"),
        (write("model.safetensors.py", b""), "model_file_forbidden"),
        (lambda path: (path / "code").mkdir(), "model_file_forbidden"),
        (lambda path: (path / "vocab.json").symlink_to("/etc/passwd"), "model_file_forbidden"),
    ],
)
def test_a_folder_with_a_missing_invalid_or_forbidden_file_is_refused(
    tmp_path: Path, change: Callable[[Path], object], code: str
) -> None:
    folder = make_folder(tmp_path / "model")
    change(folder)

    assert error_code_of(folder) == code


@pytest.mark.parametrize("method", ["fp8", "fbgemm_fp8", "compressed-tensors", "awq", "gptq"])
@pytest.mark.parametrize("file", ["quantize_config.json", "quant_config.json"])
def test_a_checkpoint_of_a_supported_quantization_passes(tmp_path: Path, method: str, file: str) -> None:
    folder = make_folder(tmp_path / "model")
    config = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    (folder / "config.json").write_text(json.dumps(config))
    (folder / file).write_text("{}")

    assert inspect_folder(folder).model_type == "llama"


@pytest.mark.parametrize("method", ["bitsandbytes", "modelopt", "hqq"])
def test_a_checkpoint_of_an_unsupported_quantization_is_refused_and_its_method_is_named(
    tmp_path: Path, method: str
) -> None:
    folder = make_folder(tmp_path / "model")
    config = {"model_type": "llama", "quantization_config": {"quant_method": method}}
    (folder / "config.json").write_text(json.dumps(config))

    with pytest.raises(UnusableModel, match=rf"method {method}.* fp8.* upload the bf16 checkpoint") as refused:
        inspect_folder(folder)
    assert refused.value.code == "quantized_checkpoint"


@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
def test_the_file_of_a_quantization_tool_is_refused_if_the_config_describes_no_quantization(
    tmp_path: Path, name: str
) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / name).write_text("{}")

    assert error_code_of(folder) == "quantized_checkpoint"


def test_a_missing_folder_is_refused(tmp_path: Path) -> None:
    assert error_code_of(tmp_path / "none") == "model_folder_missing"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\0" * 8,
        struct.pack("<Q", 1 << 60) + b"{}",
        safetensors(b"nonsense", 0),
        safetensors(b"[" * 100_000, 0),
        safetensors(b"[]", 0),
        safetensors({}, 0),
        safetensors({"weight": TENSOR}, 23),
        safetensors({"weight": TENSOR}, 25),
        safetensors({"weight": {**TENSOR, "dtype": "PICKLE"}}, 24),
        safetensors({"weight": {**TENSOR, "shape": [2, 4]}}, 24),
        safetensors({"weight": {**TENSOR, "shape": [-2, -3]}}, 24),
        safetensors({"weight": {**TENSOR, "data_offsets": [24, 0]}}, 24),
        safetensors({"weight": {"dtype": "F32"}}, 24),
        safetensors({"weight": 5}, 24),
        safetensors({"a": TENSOR, "b": TENSOR}, 24),  # two tensors with the same bytes
        # The bytes 24 to 31 belong to no tensor.
        safetensors({"a": TENSOR, "b": {**TENSOR, "data_offsets": [32, 56]}}, 56),
    ],
)
def test_an_invalid_weight_file_is_refused(tmp_path: Path, content: bytes) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "model.safetensors").write_bytes(content)

    assert error_code_of(folder) == "model_weights_invalid"


@pytest.mark.parametrize("model_type", ["glm4", "smollm3", "seed_oss", "ernie4_5", "olmo2", "phi", "phi3", "granite"])
def test_model_types_that_the_engine_serves_are_accepted(tmp_path: Path, model_type: str) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    assert inspect_folder(folder).model_type == model_type


@pytest.mark.parametrize(
    ("model_type", "message"),
    [
        ("bloom", "models of type bloom are not served: it computes a product with torch"),
        ("mamba", "models of type mamba are not served: layers of type linear_attention are not supported"),
        ("theirs", "model_type must be one of transformers' causal language models, got 'theirs'"),
    ],
)
def test_the_refusal_of_a_model_type_has_the_reason(tmp_path: Path, model_type: str, message: str) -> None:
    folder = make_folder(tmp_path / "model")
    (folder / "config.json").write_text(json.dumps({"model_type": model_type}))
    with pytest.raises(UnusableModel) as refused:
        inspect_folder(folder)
    assert refused.value.message.startswith(message)
