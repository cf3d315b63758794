"""Quantized weights keep their format if a kernel supports the format. Drafts and adapters work with such weights."""

from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from engine.config import EngineConfig
from engine.drafters.ngram import NgramDrafter
from engine.drafters.none import NoDrafter
from engine.drafters.suffix import SuffixDrafter
from engine.generate import generate
from engine.load import load_engine, load_model
from engine.loop import Engine
from engine.models.dense import Decoder
from engine.models.quantized.report import WeightsReport, report_weights
from engine.request import Request, SamplingParams
from tests.engine.drafters import OracleDrafter
from tests.engine.lora.test_adapters import make_adapter
from tests.engine.models.quantized.checkpoints import make_quantized
from tests.tiny_model import make_tiny_model

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")
PROMPTS = [tuple(range(20, 20 + length)) * 2 for length in (3, 9, 17)]


@pytest.mark.parametrize(
    ("name", "report"),
    [
        ("fp8 blocks", WeightsReport("fp8 blocks 48x40", "bfloat16 (widened)")),
        ("compressed int8", WeightsReport("compressed-tensors int8", "int8")),
        ("compressed int8 with -128", WeightsReport("compressed-tensors int8", "bfloat16 (widened)")),
        ("compressed int8 groups", WeightsReport("compressed-tensors int8", "bfloat16 (widened)")),
        ("compressed int4", WeightsReport("compressed-tensors int4", "int4")),
        ("compressed int4 with zeros", WeightsReport("compressed-tensors int4", "bfloat16 (widened)")),
        ("gptq", WeightsReport("gptq int4", "int4")),
        ("gptq desc_act", WeightsReport("gptq int4", "bfloat16 (widened)")),
        ("awq", WeightsReport("awq int4", "bfloat16 (widened)")),
        ("gptq with zeros", WeightsReport("gptq int4", "bfloat16 (widened)")),
    ],
)
def test_the_report_states_the_formats_in_which_weights_are_stored_and_computed(
    tmp_path: Path, name: str, report: WeightsReport
) -> None:
    quantized, _ = make_quantized(tmp_path, name)

    assert report_weights(quantized, load_model(quantized, dtype="bfloat16")) == report


def test_a_loaded_engine_reports_unquantized_weights_too(tmp_path: Path) -> None:
    engine = load_engine(make_tiny_model(tmp_path), config=EngineConfig(weights="int8", dtype="bfloat16"))

    assert engine.weights_report == WeightsReport("float32", "int8")


def test_the_stored_scales_of_int8_weights_reach_the_kernel_unchanged(tmp_path: Path) -> None:
    quantized, _ = make_quantized(tmp_path, "compressed int8")
    model = load_model(quantized, dtype="bfloat16")
    stored = load_file(quantized / "model.safetensors")
    scales = [stored[f"model.layers.1.self_attn.{part}_proj.weight_scale"] for part in "qkv"]

    assert isinstance(model, Decoder)
    kept = model.weights.layers[1].qkv.scales
    assert kept is not None
    assert torch.equal(kept, torch.cat(scales)[:, 0])


@pytest.mark.parametrize("name", ["fp8 blocks", "compressed int8", "compressed int4", "awq", "gptq desc_act"])
def test_drafts_do_not_change_the_answers_of_a_quantized_model(tmp_path: Path, name: str) -> None:
    model = load_model(make_quantized(tmp_path, name)[0], dtype="bfloat16")
    sampling = SamplingParams(max_tokens=24, temperature=0.8, seed=3, num_logprobs=1)
    requests = [Request(f"r{index}", prompt, sampling, memory="test") for index, prompt in enumerate(PROMPTS)]
    plain = generate(Engine(model, NoDrafter(), EngineConfig()), requests)
    oracle = OracleDrafter(
        {answer.request_id: answer.token_ids for answer in plain},
        max_depth=4,
        error=0.3,
        tree=True,
        vocab_size=model.config.vocab_size,
    )

    for drafter in (NgramDrafter(), SuffixDrafter(), oracle):
        answers = generate(Engine(model, drafter, EngineConfig()), requests)
        assert [(a.token_ids, a.logprobs) for a in answers] == [(p.token_ids, p.logprobs) for p in plain]


@pytest.mark.parametrize("name", ["fp8 blocks", "compressed int8", "compressed int4", "awq"])
def test_an_adapter_on_a_quantized_model_agrees_with_the_same_adapter_on_its_float32_weights(
    tmp_path: Path, name: str
) -> None:
    quantized, exact = make_quantized(tmp_path, name)
    adapter = make_adapter(exact, tmp_path / "adapter", ["q_proj", "down_proj"], rank=4)
    sampling = SamplingParams(max_tokens=8, temperature=0.0, num_logprobs=1)
    answers = []
    for folder in (quantized, exact):
        engine = Engine(load_model(folder, dtype="float32"), NoDrafter(), EngineConfig())
        engine.adapters.load("a", adapter)
        answers += generate(engine, [Request("r", PROMPTS[0], sampling, adapter="a")])
        answers += generate(engine, [Request("plain", PROMPTS[0], sampling)])

    assert answers[0].token_ids == answers[2].token_ids
    assert answers[0].logprobs != answers[1].logprobs
