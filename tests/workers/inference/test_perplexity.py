"""The check of a registered model measures a perplexity that tells a trained model from damaged weights."""

import math
from pathlib import Path

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file

from control.core.settings.config import Config
from control.models.catalog.plausibility import MIN_TOKENS, implausibility
from engine.load import load_model
from engine.tokenizer import Tokenizer
from tests.tiny_model import make_tiny_model, train_tiny_model
from workers.contracts import ModelCheckSpec
from workers.failures import UserConfigError
from workers.inference.perplexity import TEXT, run_model_check, text_perplexity


def check(folder: Path) -> str | None:
    """Returns the reason why the check refuses the model, or None if it accepts the model."""
    result = run_model_check(ModelCheckSpec(job_id="job_1", model_dir=str(folder), device="cpu")).result
    return implausibility(**result, max_bits_per_byte=Config().max_model_bits_per_byte)


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return train_tiny_model(make_tiny_model(tmp_path_factory.mktemp("trained")), TEXT)


def change_weights(source: Path, folder: Path, factor: float) -> Path:
    """Copies the model, with the matrices of its layers multiplied by `factor`."""
    folder.mkdir()
    for file in source.iterdir():
        (folder / file.name).write_bytes(file.read_bytes())
    tensors = load_file(folder / "model.safetensors")
    for name, tensor in tensors.items():
        if "proj" in name:
            tensors[name] = tensor * factor
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    return folder


def test_a_trained_model_is_plausible(trained: Path) -> None:
    assert check(trained) is None


def test_random_weights_are_implausible(tmp_path: Path) -> None:
    assert "perplexity on an English text is" in (check(make_tiny_model(tmp_path)) or "")


@pytest.mark.parametrize("factor", [0.0, 448.0])
def test_weights_that_are_read_without_their_scales_are_implausible(
    trained: Path, tmp_path: Path, factor: float
) -> None:
    """An FP8 matrix is stored with its largest value scaled to 448."""
    assert check(change_weights(trained, tmp_path / "m", factor)) is not None


def test_weights_that_are_not_finite_are_implausible(trained: Path, tmp_path: Path) -> None:
    assert "not a finite number" in (check(change_weights(trained, tmp_path / "m", math.nan)) or "")


def test_the_perplexity_equals_the_perplexity_that_transformers_computes(trained: Path) -> None:
    ids = Tokenizer.load(trained).encode(TEXT)
    reference = transformers.AutoModelForCausalLM.from_pretrained(trained)
    with torch.no_grad():
        loss = reference(torch.tensor([ids]), labels=torch.tensor([ids])).loss

    assert text_perplexity(load_model(trained, device="cpu"), ids) == pytest.approx(float(loss.exp()), rel=1e-3)


def test_a_model_with_a_short_context_reads_only_the_beginning_of_the_text(tmp_path: Path) -> None:
    folder = make_tiny_model(tmp_path, max_position_embeddings=64)

    result = run_model_check(ModelCheckSpec(job_id="job_1", model_dir=str(folder), device="cpu")).result

    assert (result["num_tokens"], result["num_bytes"]) == (63, 64)


@pytest.mark.parametrize("token_ids", [[], [5]])
def test_a_text_of_fewer_than_two_tokens_has_no_finite_perplexity(tmp_path: Path, token_ids: list[int]) -> None:
    assert text_perplexity(load_model(make_tiny_model(tmp_path), device="cpu"), token_ids) == math.inf


def test_a_model_that_cannot_be_loaded_is_a_user_config_error(tmp_path: Path) -> None:
    with pytest.raises(UserConfigError):
        run_model_check(ModelCheckSpec(job_id="job_1", model_dir=str(tmp_path)))


@pytest.mark.parametrize(
    ("perplexity", "num_tokens", "is_plausible"),
    [
        (15.0, 170, True),  # a good model, 4.5 bytes per token
        (49_152.0, 170, False),  # guesses among 49,152 tokens
        (2.5, 770, True),  # a good model that reads bytes
        (256.0, 770, False),  # guesses among 256 bytes
        (None, 170, False),
        (1.0, MIN_TOKENS - 1, False),  # the tokenizer makes too few tokens for a judgement
        (1.0, MIN_TOKENS, True),
        (1.0, 0, False),
    ],
)
def test_the_bound_on_the_perplexity_depends_on_the_bytes_per_token(
    perplexity: float | None, num_tokens: int, is_plausible: bool
) -> None:
    reason = implausibility(perplexity=perplexity, num_tokens=num_tokens, num_bytes=770, max_bits_per_byte=2.4)

    assert (reason is None) == is_plausible
