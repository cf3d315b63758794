"""The inputs from which a training method is made: the target, the corpus, and the target's hidden states."""

from collections.abc import Callable, Mapping, Sequence
from copy import deepcopy
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from engine.models.base import Model
from workers.contracts import Progress
from workers.emitter import Emit
from workers.hyperparameters.loop import LoopParameters
from workers.training.data import Conversation, Corpus, most_frequent_tokens, token_counts
from workers.training.hidden_states import TapRows, compute_hidden_rows, compute_tap_rows
from workers.training.kept_states import KeptStates
from workers.training.processes import ALONE, Processes

_MASS_CONVERSATIONS = 32  # maximum number of conversations from which the probability mass of tokens is estimated
_MASS_ROWS = 256  # positions whose probabilities are in memory at once

_Module = TypeVar("_Module", bound=nn.Module)


@dataclass(frozen=True, slots=True, kw_only=True)
class Preparation:
    """The inputs of a training method.

    cache: the folder for hidden states that are stored in files; created when it is needed.
    initial: the folder of a speculator of the same kind, from which training continues.
    kept: the folder with hidden states of earlier runs, to which new hidden states are added.
    """

    model_dir: Path
    target: Model
    corpus: Corpus
    cache: Path
    seed: int
    emit: Emit
    initial: Path | None = None
    kept: KeptStates | None = None
    processes: Processes = ALONE

    @property
    def conversations(self) -> tuple[Conversation, ...]:
        return (*self.corpus.train, *self.corpus.validation)

    def draft_vocab(self, size: int, loop: LoopParameters) -> Tensor:
        """Returns [Vd] int64, at most `size` tokens: tokens of the answers, and others if `loop.draft_vocab_fill`.

        Only training conversations are counted. As in serving, validation answers can have tokens that are never
        drafted.
        """
        config, train = self.target.config, self.corpus.train
        counts = token_counts((c.completion_token_ids for c in train), vocab_size=config.vocab_size)
        fill: list[Tensor] = []
        if loop.draft_vocab_fill:
            prompts = token_counts((c.prompt_token_ids for c in train), vocab_size=config.vocab_size)
            fill = [prompts, self._probability_mass()]
        eos, size = sorted(config.eos_token_ids), min(size, config.vocab_size)
        return most_frequent_tokens(counts, size=size, always=eos, fill=fill)

    def _probability_mass(self) -> Tensor:
        """Returns [V] float32: the sum of the target's probabilities of each token over all positions of some answers.

        32 conversations are enough: they rank tokens as well as 300 do.
        """
        train = self.corpus.train
        chosen = train[:: -(-len(train) // _MASS_CONVERSATIONS)]
        hidden = compute_hidden_rows(self.target, chosen, file=None, kept=self.kept).hidden
        mass = torch.zeros(self.target.config.vocab_size, device=hidden.device)
        for rows in hidden.split(_MASS_ROWS):
            mass += functional.linear(rows, self.target.lm_head).float().softmax(-1).sum(0)
        return mass.cpu()

    def cache_file(self, name: str, *, needed_bytes: int, memory_bytes: int) -> Path | None:
        """Returns the file in which hidden states must be stored; None if they fit in `memory_bytes`.

        Hidden states on a GPU are always stored in its memory. needed_bytes: for all conversations together.
        """
        in_memory = needed_bytes <= memory_bytes or self.target.device.type != "cpu"
        return None if in_memory else self.cache / f"{name}.bin"

    def tap_rows(self, tap_layers: Sequence[int], *, memory_bytes: int) -> tuple[TapRows, TapRows]:
        """Runs the target over all conversations. `tap_layers` may be empty, see `TapRows.taps`.

        Returns: rows for training, and rows for validation.
        """
        target, corpus = self.target, self.corpus
        row_bytes = max(1, len(tap_layers)) * target.config.hidden_size * target.dtype.itemsize
        needed = sum(c.num_tokens for c in self.conversations) * row_bytes

        def rows(conversations: tuple[Conversation, ...], name: str, before: int) -> TapRows:
            file = self.cache_file(name, needed_bytes=needed, memory_bytes=memory_bytes)
            report = self.reporter(before=before)
            return compute_tap_rows(
                target,
                conversations,
                tap_layers=tap_layers,
                file=file,
                on_done=report,
                kept=self.kept,
                processes=self.processes,
            )

        return rows(corpus.train, "train", 0), rows(corpus.validation, "validation", len(corpus.train))

    def reporter(self, *, before: int) -> Callable[[int], None]:
        """Returns a function that emits the progress over the training and the validation conversations.

        The function's argument is the number of training or of validation conversations processed so far. `before` is 0
        for training conversations; for validation conversations, it is the number of training conversations.
        """
        total = len(self.conversations)
        return lambda done: self.emit(Progress(done=before + done, total=total, unit="hidden states"))


def in_bfloat16(precision: str, device: torch.device) -> bool:
    """Tells whether matrix products use bfloat16. precision: the hyperparameter `LoopParameters.precision`."""
    if precision != "auto":
        return precision == "bfloat16"
    return device.type == "cuda" or is_faster_in_bfloat16(torch.cpu.get_capabilities())


def is_faster_in_bfloat16(processor: Mapping[str, Any]) -> bool:
    """Tells whether products in bfloat16 are faster than in float32 on a processor.

    Intel's processors need AMX for that. Without it, products of 1,800 rows reach 84 GFLOP/s in bfloat16 and 125 to 155
    in float32 (two cores of a Xeon with AVX512-BF16).

    processor: the result of `torch.cpu.get_capabilities`.
    """
    if processor.get("amx_bf16"):
        return True
    return bool(processor.get("avx512_bf16")) and not str(processor.get("cpu_name")).startswith("Intel")


def as_stored(module: _Module) -> _Module:
    """Returns a copy with weights rounded to bfloat16, as the artifact stores them."""
    return deepcopy(module).to(torch.bfloat16).float()
