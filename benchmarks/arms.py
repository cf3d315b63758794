"""The arms that `benchmarks.cpu` compares. An arm is an engine with a drafting method and a weight format.

Each arm runs in its own process:

slipstream   plain · ngram · suffix · each trained speculator, with and without suffix · plain with int8 weights
vllm         plain · ngram · suffix          bf16 weights, like ours
transformers plain · prompt lookup           bf16 weights, one prompt at a time
llama.cpp    plain · ngram                   Q4_1 weights, a third of the bytes of bf16, so no claim compares llama.cpp
"""

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import IO, Any, cast

from benchmarks.peers.install import LLAMA_CPP, TRANSFORMERS, VLLM, VLLM_SUFFIX, Environment, PeerMissing
from benchmarks.peers.wire import Answers, Job
from benchmarks.workload import WITHOUT_WEIGHTS, speculator_kind
from examples.prepare_model import ModelNotFoundError, gguf_path

ROOT = Path(__file__).resolve().parents[1]
PLAIN = "plain"
OURS = "slipstream"
_RUNNERS = "benchmarks.peers"
ENGINES = (OURS, "vllm", "transformers", "llama.cpp")

_VLLM_NGRAM = {"method": "ngram", "num_speculative_tokens": 5, "prompt_lookup_max": 4, "prompt_lookup_min": 2}


@dataclass(frozen=True, slots=True, kw_only=True, eq=False)
class Arm:
    engine: str
    drafter: str = PLAIN
    weights: str = "bf16"
    runner: str  # module below _RUNNERS
    environment: Environment | None = None  # None: the Python environment of this process
    extra: str | None = None  # a requirement that is installed in addition to the environment's requirements
    variant: str = ""  # distinguishes arms with the same engine, drafter and weights
    environ: dict[str, str] = field(default_factory=dict)
    largest_batch: int = 1 << 30  # the arm is left out at larger batch sizes
    settings: dict[str, Any] = field(default_factory=dict)

    @property
    def name(self) -> str:
        labels = [self.weights] if self.weights != "bf16" else []
        return " ".join([self.engine, self.drafter, *labels, *([self.variant] if self.variant else [])])

    @property
    def plain_name(self) -> str:
        """The name of the arm with the same engine and weights but without speculation."""
        return replace(self, drafter=PLAIN).name


def our_arms(model: Path, speculators: Sequence[Path]) -> list[Arm]:
    """Returns the arms of our engine. Their draft budgets are adaptive, as in serving.

    Raises: WorkloadError: a folder does not contain a speculator.
    """
    plain = our_arm(model, PLAIN, "none")
    arms = [plain, replace(plain, weights="int8"), *(our_arm(model, drafter, drafter) for drafter in WITHOUT_WEIGHTS)]
    for folder in speculators:
        kind = speculator_kind(folder)
        arms += [our_arm(model, name, name, folder) for name in (kind, f"{kind}+suffix")]
    return arms


def our_arm(
    model: Path, label: str, drafter: str, speculator: Path | None = None, *, draft_budget: int | None = None
) -> Arm:
    """Args: label: name of the drafting method in the results. draft_budget: None for an adaptive budget."""
    settings = {
        "model": str(model),
        "drafter": drafter,
        "speculator": str(speculator) if speculator else None,
        "draft_budget": draft_budget,
    }
    return Arm(engine=OURS, drafter=label, runner="run_slipstream", settings=settings)


def vllm_arms(model: Path) -> list[Arm]:
    """Returns arms with a thread per core, and "own threads" arms, which leave one core free as vLLM does."""
    plain: dict[str, Any] = {"model": str(model)}
    ngram, suffix = plain | {"speculation": _VLLM_NGRAM}, plain | {"speculation": {"method": "suffix"}}
    cores = sorted(os.sched_getaffinity(0))
    on_all = [_vllm(PLAIN, plain, cores), _vllm("ngram", ngram, cores)]
    one_free = [_vllm(PLAIN, plain, cores[1:], "own threads"), _vllm("ngram", ngram, cores[1:], "own threads")]
    return [*on_all, *(one_free if len(cores) > 1 else ()), replace(_vllm("suffix", suffix, cores), extra=VLLM_SUFFIX)]


def _vllm(drafter: str, settings: dict[str, Any], cores: list[int], variant: str = "") -> Arm:
    """Returns an arm with one OpenMP thread bound to each core, by the settings of vLLM's ompmultiprocessing.py."""
    affinity = f"granularity=fine,explicit,proclist=[{','.join(map(str, cores))}]"
    return Arm(
        engine="vllm",
        drafter=drafter,
        runner="run_vllm",
        environment=VLLM,
        variant=variant,
        environ={
            "OMP_NUM_THREADS": str(len(cores)),
            "KMP_AFFINITY": affinity,
            "KMP_BLOCKTIME": "5",
            "KMP_TPAUSE": "0",
        },
        settings=settings,
    )


def transformers_arms(model: Path) -> list[Arm]:
    plain: dict[str, Any] = {"model": str(model)}
    return [
        Arm(
            engine="transformers",
            drafter=drafter,
            runner="run_transformers",
            environment=TRANSFORMERS,
            largest_batch=1,
            settings=settings,
        )
        for drafter, settings in ((PLAIN, plain), ("prompt lookup", plain | {"prompt_lookup": 10}))
    ]


def llama_cpp_arms() -> list[Arm]:
    """Raises: PeerMissing: the package that contains the GGUF file is not installed."""
    try:
        gguf = gguf_path()
    except ModelNotFoundError as error:
        raise PeerMissing(str(error)) from error
    plain: dict[str, Any] = {"gguf": str(gguf)}
    return [
        Arm(
            engine="llama.cpp",
            drafter=drafter,
            weights=gguf.stem.rpartition(".")[2],
            runner="run_llama_cpp",
            environment=LLAMA_CPP,
            largest_batch=largest_batch,
            settings=settings,
        )
        for drafter, settings, largest_batch in (
            (PLAIN, plain, 1 << 30),
            ("ngram", plain | {"speculation": "NGRAM_SIMPLE"}, 1),
        )
    ]


class Process:
    """The process of an arm's runner. While other arms run, it waits for the next job and uses no processor time."""

    def __init__(self, arm: Arm, settings: dict[str, Any], log_path: Path) -> None:
        """Starts the runner with the arm's settings and `settings`, and waits until its model is loaded.

        Raises: PeerMissing: the engine cannot be installed or started.
        """
        python, environ = sys.executable, dict(os.environ)
        if arm.environment is not None:
            arm.environment.ensure()
            if arm.extra is not None:
                arm.environment.ensure_extra(arm.extra)
            python, environ = str(arm.environment.python), environ | arm.environment.variables | arm.environ
        self._log_path = log_path
        settings = arm.settings | settings | {"weights": arm.weights}
        with log_path.open("w", encoding="utf-8") as log:
            self._process = subprocess.Popen(
                [python, "-m", f"{_RUNNERS}.{arm.runner}", json.dumps(settings)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=log,
                text=True,
                cwd=ROOT,
                env=environ,
            )
        try:
            self.about: dict[str, str] = self._read()["ready"]
        except PeerMissing:
            self.close()
            raise

    def answer(self, job: Job) -> Answers:
        """Raises: PeerMissing: the runner failed or died."""
        print(json.dumps(asdict(job)), file=self._pipe(self._process.stdin), flush=True)
        return Answers(**self._read())

    def close(self) -> None:
        self._pipe(self._process.stdin).close()
        try:
            self._process.wait(timeout=30)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._pipe(self._process.stdout).close()

    def _read(self) -> dict[str, Any]:
        line = self._pipe(self._process.stdout).readline()
        if line:
            reply: dict[str, Any] = json.loads(line)
        else:
            reply = {"error": f"the runner's process died, see {self._log_path}: {self._log_tail()}"}
        if "error" in reply:
            raise PeerMissing(reply["error"])
        return reply

    def _log_tail(self) -> str:
        lines = self._log_path.read_text(encoding="utf-8", errors="replace").splitlines()
        return " / ".join(lines[-2:])

    @staticmethod
    def _pipe(stream: IO[str] | None) -> IO[str]:
        return cast(IO[str], stream)  # never None, because Popen was called with PIPE
