"""`python -m tests.engine.tensor_parallel.program CASES.json` runs models on groups of real processes.

Each case states the number of ranks and names functions of this module, which rank 0 runs. This process forks the
ranks, because a new process would take seconds to import the modules. Before the fork, it computes nothing. It prints
one line of JSON per case.
"""

import hashlib
import json
import os
import signal
import sys
import tempfile
import traceback
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from engine.config import EngineConfig
from engine.drafters.base import Drafter
from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.mtp import MtpDrafter
from engine.drafters.none import NoDrafter
from engine.fingerprint import fingerprint_of
from engine.generate import generate
from engine.load import follow_engine, load_model
from engine.loop import Engine
from engine.models.base import Model
from engine.request import Completion, Request
from engine.row_invariance import check_row_invariance
from engine.tensor_parallel.group import join_group
from engine.tensor_parallel.leader import ShardedModel
from engine.tensor_parallel.load import load_shard
from engine.tensor_parallel.parent import RANK_VARIABLE, RENDEZVOUS_VARIABLE
from tests.engine.drafters import every_drafter
from tests.engine.eagle3_reference import make_config, make_module
from tests.engine.loaded_weights import loaded_bytes
from tests.engine.test_equality import SAMPLINGS, make_requests

ROW_COUNTS = (1, 5, 40)


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One run of a model. degree: number of ranks, where 1 means no group. work: names of functions in `WORK` to run.

    The functions read the other fields.
    """

    work: list[str]
    model_dir: str
    degree: int
    dtype: str = "auto"
    weights: str = "auto"
    samplings: tuple[str, ...] = ("greedy", "T=0.8")
    draft_dir: str | None = None  # None: only the drafter `none` is used
    adapter_dir: str | None = None

    @property
    def config(self) -> EngineConfig:
        return EngineConfig(
            tensor_parallel=self.degree, dtype=self.dtype, weights=self.weights, device="cpu", draft_budget=15
        )


def digest(*tensors: Tensor) -> str:
    """Returns the SHA-256 of the tensors' bytes."""
    parts = [tensor.contiguous().view(-1).view(torch.uint8).numpy().tobytes() for tensor in tensors]
    return hashlib.sha256(b"".join(parts)).hexdigest()


def bits(case: Case, model: Model) -> dict[str, Any]:
    """Returns digests of the final hidden states, of the taps, and of the logits for each of `ROW_COUNTS`."""
    ids = torch.randint(model.config.vocab_size, (max(ROW_COUNTS),), generator=torch.Generator().manual_seed(3))
    hidden = model.hidden_states(ids, range(model.config.num_layers + 1))
    assert hidden.taps is not None
    logits = {str(count): digest(model.logits(hidden.final[:count])) for count in ROW_COUNTS}
    return {"hidden": digest(hidden.final), "taps": digest(hidden.taps), "logits": logits}


def answers(case: Case, model: Model) -> dict[str, Any]:
    """Returns sampling -> drafter -> digest of the answers. The first drafter is `none`."""
    found: dict[str, dict[str, str]] = {}
    for name in case.samplings:
        requests = make_requests(model, SAMPLINGS[name], count=4, max_tokens=8)
        plain = _complete(case, model, NoDrafter(), requests)
        found[name] = {"none": _digest_of_answers(plain)}
        for drafter in _drafters(case, model, {c.request_id: c.token_ids for c in plain}):
            drafted = _complete(case, model, drafter, requests)
            found[name].setdefault(f"{drafter.name} {len(found[name])}", _digest_of_answers(drafted))
    return found


def adapters(case: Case, model: Model) -> list[str]:
    """Returns digests of a batch that partly uses an adapter: after the adapter's first and second load."""
    assert case.adapter_dir is not None
    engine, found = Engine(model, NoDrafter(), case.config), []
    for name in ("first", "again"):
        engine.adapters.load(name, Path(case.adapter_dir))
        requests = make_requests(model, SAMPLINGS["T=0.8"], count=4, max_tokens=8)
        mixed = [replace(r, adapter=name if i % 2 else None) for i, r in enumerate(requests)]
        found.append(_digest_of_answers(generate(engine, mixed)))
    return found


def invariance(case: Case, model: Model) -> str | None:
    """Returns the fault that the test of row invariance finds, or None. The test does not use stored results."""
    with tempfile.TemporaryDirectory() as folder:
        return check_row_invariance(model, folder=Path(folder)).reason


def weight_bytes(case: Case, model: Model) -> int:
    """Returns the bytes of rank 0's weights, without norms and biases."""
    return loaded_bytes(model)


def fingerprint(case: Case, model: Model) -> str:
    return str(fingerprint_of(Path(case.model_dir), model))


WORK: Mapping[str, Callable[[Case, Model], Any]] = {
    work.__name__: work for work in (bits, answers, adapters, fingerprint, invariance, weight_bytes)
}


def _complete(case: Case, model: Model, drafter: Drafter, requests: list[Request]) -> list[Completion]:
    return generate(Engine(model, drafter, case.config), requests)


def _digest_of_answers(completions: list[Completion]) -> str:
    kept = [(c.request_id, c.token_ids, c.logprobs, str(c.finish_reason)) for c in completions]
    return hashlib.sha256(repr(kept).encode()).hexdigest()


def _drafters(case: Case, model: Model, tokens_of: Mapping[str, tuple[int, ...]]) -> list[Drafter]:
    if case.draft_dir is None:
        return []
    draft_model = load_model(Path(case.draft_dir), dtype=str(model.dtype).removeprefix("torch."), device="cpu")
    own = [MtpDrafter.load(None, model)] if model.config.latent is not None else []  # DeepSeek's own module
    return [*every_drafter(model, draft_model, tokens_of), Eagle3Drafter(make_module(make_config()), model), *own]


def _run_rank(case: Case, rank: int, folder: Path) -> None:
    """Runs one rank of the case, in a forked process. Rank 0 writes the result to FOLDER/result."""
    os.environ |= {RANK_VARIABLE: str(rank), RENDEZVOUS_VARIABLE: str(folder)}
    model_dir = Path(case.model_dir)
    if rank > 0:
        follow_engine(model_dir, case.config)
    if case.degree == 1:
        model = load_model(model_dir, dtype=case.dtype, weights=case.weights, device="cpu")
    else:
        model = ShardedModel(load_shard(model_dir, case.config, join_group(case.degree)), model_dir)
    result = {name: WORK[name](case, model) for name in case.work}
    (folder / "unfinished").write_text(json.dumps(result))
    (folder / "unfinished").rename(folder / "result")


def run(case: Case) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name:
        folder, ranks = Path(name), []
        for rank in range(case.degree):
            pid = os.fork()
            if pid == 0:
                try:
                    _run_rank(case, rank, folder)
                    os._exit(0)
                except BaseException:
                    traceback.print_exc()
                finally:
                    os._exit(1)
            ranks.append(pid)
        ended, status = os.waitpid(-1, 0)  # rank 0 ends first, or a rank has failed
        for pid in ranks:
            if pid != ended:
                os.kill(pid, signal.SIGKILL)
                os.waitpid(pid, 0)
        if not (folder / "result").exists():
            raise RuntimeError(f"{case}: rank {ranks.index(ended)} has ended with status {status}")
        result: dict[str, Any] = json.loads((folder / "result").read_text())
        return result


def main() -> None:
    for values in json.loads(Path(sys.argv[1]).read_text()):
        print(json.dumps(run(Case(**values))), flush=True)


if __name__ == "__main__":
    main()
