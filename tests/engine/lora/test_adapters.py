"""LoRA adapters agree with peft; neither other adapters in the batch nor drafts change an answer."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

from engine.config import EngineConfig
from engine.drafters.none import NoDrafter
from engine.drafters.per_adapter import PerAdapterDrafter
from engine.errors import AdapterNotLoadable
from engine.generate import generate
from engine.load import load_model
from engine.loop import Engine
from engine.lora.stacks import LoraStacks
from engine.request import Completion, Request, SamplingParams
from tests.engine.drafters import OracleDrafter
from tests.engine.graph_decoding.late_device import LateDevice, install
from tests.tiny_model import make_tiny_model

ALL_MODULES = ["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("base"), "qwen3")


def make_adapter(base: Path, folder: Path, modules: list[str], *, rank: int, seed: int = 0) -> Path:
    """Makes an adapter with random matrices B, as if it had been trained. An adapter of rank 5 uses rsLoRA."""
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        config = LoraConfig(
            r=rank, lora_alpha=3 * rank, target_modules=modules, use_rslora=rank == 5, task_type="CAUSAL_LM"
        )
        model = get_peft_model(AutoModelForCausalLM.from_pretrained(base), config)
        for name, parameter in model.named_parameters():
            if "lora_B" in name:
                torch.nn.init.normal_(parameter, std=0.05)
    model.save_pretrained(str(folder))
    return folder


@pytest.fixture(scope="module")
def adapters(base: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("adapters")
    return {
        "all": make_adapter(base, folder / "all", ALL_MODULES, rank=4),
        "few": make_adapter(base, folder / "few", ["q_proj", "v_proj", "up_proj"], rank=5, seed=1),
    }


def make_engine(base: Path, adapters: dict[str, Path], dtype: str = "float32", **config: int) -> Engine:
    engine = Engine(load_model(base, dtype=dtype), NoDrafter(), EngineConfig(**config))  # type: ignore[arg-type]
    for name, folder in adapters.items():
        engine.adapters.load(name, folder)
    return engine


def make_requests() -> list[Request]:
    """Makes requests with a common prefix and different adapters, so that they must not share cached blocks."""
    requests = []
    for index in range(9):
        sampling = SamplingParams(max_tokens=24, temperature=0.7 * (index % 2), seed=3, num_logprobs=3, ignore_eos=True)
        prompt = (*range(40, 75), index)
        requests.append(Request(f"r{index}", prompt, sampling, (None, "all", "few")[index % 3]))
    return requests


def answers_of(completions: list[Completion]) -> list[tuple[object, ...]]:
    return [(c.request_id, c.token_ids, c.logprobs) for c in completions]


def log_probability_error(engine: Engine, base: Path, adapter: Path, name: str | None) -> float:
    """Returns the largest difference between log-probabilities of the engine and of peft.

    The engine answers a prompt with its adapter `name`, or without an adapter; peft scores this answer with `adapter`.
    """
    prompt = tuple(range(30, 60))
    sampling = SamplingParams(max_tokens=8, temperature=0.0, num_logprobs=0, ignore_eos=True)
    (answer,) = generate(engine, [Request("r", prompt, sampling, name)])
    assert answer.logprobs is not None
    reference = AutoModelForCausalLM.from_pretrained(base)
    reference.load_adapter(str(adapter))
    with torch.inference_mode():
        logits = reference(torch.tensor([prompt + answer.token_ids])).logits[0, len(prompt) - 1 : -1]
    expected = logits.log_softmax(-1).gather(1, torch.tensor(answer.token_ids).unsqueeze(1)).squeeze(1)
    return float((torch.tensor([p.logprob for p in answer.logprobs]) - expected).abs().max())


@pytest.mark.parametrize("name", ["all", "few"])
def test_log_probabilities_agree_with_peft(base: Path, adapters: dict[str, Path], name: str) -> None:
    engine = make_engine(base, adapters)
    assert log_probability_error(engine, base, adapters[name], name) <= 1e-4
    assert log_probability_error(engine, base, adapters[name], None) > 1e-2  # without the adapter


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_batching_and_drafts_do_not_change_answers(base: Path, adapters: dict[str, Path], dtype: str) -> None:
    requests = make_requests()
    expected = [answers_of(generate(make_engine(base, adapters, dtype), [request]))[0] for request in requests]
    engine = make_engine(base, adapters, dtype, max_batch_size=5, draft_budget=10)
    batched = generate(engine, requests)
    assert answers_of(batched) == expected

    answers = {completion.request_id: completion.token_ids for completion in batched}
    vocab_size = engine.model.config.vocab_size
    engine.swap_drafter(OracleDrafter(answers, max_depth=4, error=0.2, tree=True, vocab_size=vocab_size))
    drafted = generate(engine, requests)
    assert answers_of(drafted) == expected
    assert max(c.speculation.mean_acceptance_length for c in drafted) > 1.5


def test_requests_with_different_adapters_use_different_drafters(base: Path, adapters: dict[str, Path]) -> None:
    requests = make_requests()
    engine = make_engine(base, adapters, max_batch_size=9, draft_budget=4)
    plain = generate(engine, requests)
    vocab_size = engine.model.config.vocab_size

    def oracle(*names: str | None) -> OracleDrafter:
        answers = {r.request_id: c.token_ids for r, c in zip(requests, plain, strict=True) if r.adapter in names}
        return OracleDrafter(answers, max_depth=4, error=0.0, tree=False, vocab_size=vocab_size)

    engine.swap_drafter(PerAdapterDrafter(oracle(None, "few"), {"all": oracle("all")}))
    drafted = generate(engine, requests)

    assert answers_of(drafted) == answers_of(plain)
    # Five passes of up to 5 tokens yield the 23 tokens after the first. An oracle fails for requests of other adapters.
    assert {c.speculation.num_spec_steps for c in drafted} == {5}


def test_reloading_an_adapter_from_another_folder_changes_later_answers(base: Path, adapters: dict[str, Path]) -> None:
    engine = make_engine(base, adapters)
    request = make_requests()[1]
    (before,) = answers_of(generate(engine, [request]))
    engine.adapters.load("all", adapters["few"])
    (after,) = answers_of(generate(engine, [request]))
    (expected,) = answers_of(generate(engine, [replace(request, adapter="few")]))
    assert after == expected != before


def test_a_running_request_keeps_its_adapter_after_the_adapter_is_unloaded(
    base: Path, adapters: dict[str, Path]
) -> None:
    engine = make_engine(base, adapters)
    request = make_requests()[1]
    (expected,) = generate(engine, [request])
    engine.add(request)
    tokens: list[int] = []
    for step in range(100):
        if step == 3:
            engine.adapters.unload("all")
        tokens += [token for output in engine.step() for token in output.token_ids]
        if not engine.has_work:
            break
    assert tuple(tokens) == expected.token_ids
    with pytest.raises(ValueError, match="adapter 'all' is not loaded; there are: few"):
        engine.add(request)


def test_unsupported_or_damaged_adapters_are_refused(base: Path, adapters: dict[str, Path], tmp_path: Path) -> None:
    engine = make_engine(base, {})

    def assert_refused(
        match: str, *, config: dict[str, object] | None = None, left_out: str = "", wrong_shape: bool = False
    ) -> None:
        values = json.loads((adapters["all"] / "adapter_config.json").read_text()) | (config or {})
        tensors = load_file(adapters["all"] / "adapter_model.safetensors")
        tensors.pop(left_out, None)
        if wrong_shape:
            tensors = {name: tensor[:, :-1].contiguous() for name, tensor in tensors.items()}
        (tmp_path / "adapter_config.json").write_text(json.dumps(values))
        save_file(tensors, tmp_path / "adapter_model.safetensors")
        with pytest.raises(AdapterNotLoadable, match=match):
            engine.adapters.load("x", tmp_path)

    assert_refused("use_dora must be False", config={"use_dora": True})
    assert_refused("peft_type must be LORA", config={"peft_type": "VERA"})
    assert_refused(
        "only one of lora_A and lora_B", left_out="base_model.model.model.layers.0.mlp.up_proj.lora_B.weight"
    )
    assert_refused(r"must have A \[r, 64\]", wrong_shape=True)
    with pytest.raises(AdapterNotLoadable, match="no readable LoRA adapter"):
        engine.adapters.load("x", tmp_path / "nowhere")
    assert engine.adapters.names == ()


def test_stacked_adapters_give_the_same_answers_with_and_without_graph_decoding(
    base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on CUDA, stacks hold the weights of adapters.

    The engine rebuilds the stacks when a request first needs an adapter, even while graph steps are in flight.
    """
    for module in ("linear", "norm", "swiglu", "rope", "attention", "decoder"):
        monkeypatch.setattr(f"kernels.{module}.library", lambda: None)
    sampling = SamplingParams(max_tokens=6, temperature=0.0, ignore_eos=True)
    names = (None, "all", None, "few", "all")
    requests = [Request(f"r{index}", (5, 6, index), sampling, adapter=name) for index, name in enumerate(names)]
    expected = [c.token_ids for c in generate(make_engine(base, adapters, max_batch_size=2), requests)]
    monkeypatch.setattr("engine.loop.stacks_for", LoraStacks)
    device = LateDevice()
    install(monkeypatch, device)
    for graph_decoding in ("off", "on"):
        engine = make_engine(base, adapters, max_batch_size=2, graph_decoding=graph_decoding)  # type: ignore[arg-type]
        assert [c.token_ids for c in generate(engine, requests)] == expected
    assert device.most_queued == 2


def test_rebuilt_stacks_leave_out_unloaded_adapters(
    base: Path, adapters: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("kernels.linear.library", lambda: None)
    loaded = make_engine(base, adapters).adapters
    first, second = loaded.get("all"), loaded.get("few")
    stacks = LoraStacks(loaded, torch.device("cpu"))
    rows = stacks.rows([None, first, first, None, second])
    assert rows is not None
    assert rows.adapters.tolist() == [-1, 0, 0, -1, 1]
    assert rows.num_runs == 4
    assert stacks.rows([None, None]) is None
    loaded.unload("all")
    loaded.load("third", adapters["all"])
    third = loaded.get("third")
    assert stacks.has([first, second])
    stacks.rebuild_with([third])
    assert [stacks.index(adapter) for adapter in (None, second, third)] == [-1, 0, 1]
    assert not stacks.has([first])
