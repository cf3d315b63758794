"""The engine widens MXFP4 checkpoints of gpt-oss to the same bits as transformers, and refuses invalid checkpoints."""

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM
from transformers.utils.quantization_config import Mxfp4Config

from engine.errors import ModelNotLoadable
from engine.load import load_model
from engine.models.quantized.report import WeightsReport, report_weights
from engine.models.weights import open_weights
from tests.engine.models.quantized.checkpoints import Stored, make_mxfp4

TOKEN_IDS = torch.randint(0, 250, (60,), generator=torch.Generator().manual_seed(1))
WINDOW = 20


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float32])
def test_every_number_and_scale_is_widened_to_the_bits_of_transformers(tmp_path: Path, dtype: torch.dtype) -> None:
    folder, _ = make_mxfp4(tmp_path)
    path = folder / "model.safetensors"
    tensors, generator = load_file(path), torch.Generator().manual_seed(0)
    for name, tensor in tensors.items():
        if name.endswith(("_blocks", "_scales")):  # scales stay below 254: 254 overflows, 255 is NaN
            limit = 256 if name.endswith("_blocks") else 254
            tensors[name] = torch.randint(limit, tensor.shape, generator=generator, dtype=torch.uint8)
    save_file(tensors, path, {"format": "pt"})
    config = Mxfp4Config(dequantize=True)
    reference = AutoModelForCausalLM.from_pretrained(folder, quantization_config=config, dtype=dtype)
    experts = {name: tensor for name, tensor in reference.named_parameters() if name.endswith("_proj")}
    assert len(experts) == 4
    with open_weights(folder) as source:
        for name, expected in experts.items():
            widened = source.tensor(name).to(dtype)
            assert torch.equal(widened.view(torch.uint8), expected.detach().contiguous().view(torch.uint8)), name
        assert sorted(source.names()) == sorted(dict(reference.named_parameters()))


def test_a_quantized_checkpoint_computes_what_the_bf16_checkpoint_computes(tmp_path: Path) -> None:
    quantized, exact = make_mxfp4(tmp_path, sliding_window=WINDOW)
    states = [load_model(folder, dtype="bfloat16").hidden_states(TOKEN_IDS).final for folder in (quantized, exact)]
    assert torch.equal(*states)


def test_the_report_says_that_the_weights_are_widened(tmp_path: Path) -> None:
    folder, _ = make_mxfp4(tmp_path)
    report = report_weights(folder, load_model(folder, dtype="bfloat16"))
    assert report == WeightsReport("mxfp4", "bfloat16 (widened)")


def remove(suffix: str) -> Callable[[Stored], object]:
    return lambda stored: stored.pop(suffix)


def shorten(suffix: str) -> Callable[[Stored], object]:
    return lambda stored: stored.update({suffix: stored[suffix][..., :-1]})


def fill(suffix: str, value: int) -> Callable[[Stored], object]:
    return lambda stored: stored.update({suffix: torch.full_like(stored[suffix], value)})


@pytest.mark.parametrize(
    ("change", "code"),
    [
        (remove("scales"), "quantization_scales_missing"),
        (remove("blocks"), "quantization_scales_missing"),
        (shorten("scales"), "quantized_weights_invalid"),
        (shorten("blocks"), "quantized_weights_invalid"),
        (fill("scales", 255), "quantized_weights_invalid"),
        (lambda stored: stored.update(scales=stored["scales"].float()), "quantized_weights_invalid"),
    ],
    ids=["no scales", "no blocks", "few scales", "short blocks", "NaN", "float scales"],
)
def test_missing_or_inconsistent_tensors_are_refused(
    tmp_path: Path, change: Callable[[Stored], object], code: str
) -> None:
    folder, _ = make_mxfp4(tmp_path, change=change)
    with pytest.raises(ModelNotLoadable) as raised:
        load_model(folder)
    assert raised.value.code == code
