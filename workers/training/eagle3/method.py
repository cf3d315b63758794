"""EAGLE-3 under training: ties rows, unroll and loss together, and validates with the drafter that serves."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig

from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.eagle3_config import Eagle3Config, default_taps
from engine.drafters.eagle3_module import Eagle3
from engine.models.base import Model
from engine.rotary import tables_of
from workers.hyperparameters.eagle3 import Eagle3Hyperparameters
from workers.training.data import IGNORED
from workers.training.eagle3.data import Eagle3Batch, make_batch
from workers.training.eagle3.loss import step_loss
from workers.training.eagle3.unroll import Unroll
from workers.training.figures import Sums, batches_of, validation_of
from workers.training.hidden_states import TapRows
from workers.training.loop import BatchLoss, Validation
from workers.training.preparation import Preparation, as_stored, in_bfloat16
from workers.training.replay import simulate
from workers.training.simulate import Acceptance

_INITIAL_SCALE = 0.02  # standard deviation of weights the target has nothing to offer for


class Eagle3Method:
    def __init__(
        self, target: Model, parameters: Eagle3Hyperparameters, module: Eagle3, *, train: TapRows, validation: TapRows
    ) -> None:
        self._target, self._parameters = target, parameters
        device, config = target.device, module.config
        self.eagle3 = module.to(device)
        self._lm_head = target.lm_head[module.draft_vocab].float()  # [Vd, H]
        self._place = torch.full((config.vocab_size + 1,), IGNORED, device=device)
        self._place[module.draft_vocab] = torch.arange(config.draft_vocab_size, device=device)
        cosines, sines = tables_of(config.layer_config(), config.head_dim, config.max_positions)
        embedding = target.weights.embedding if module.embed_tokens is None else module.embed_tokens.weight
        self._unroll = Unroll(module, embedding, (cosines.to(device), sines.to(device)))
        self._train, self._validation = train, validation
        self._bfloat16 = in_bfloat16(parameters.loop.precision, device)

    @classmethod
    def prepare(cls, preparation: Preparation, parameters: Eagle3Hyperparameters) -> "Eagle3Method":
        """Runs the target over all conversations. Raises: SpeculatorNotLoadable: from where it should go on."""
        target = preparation.target
        if preparation.initial is not None:
            module = Eagle3.load(preparation.initial)
            Eagle3Drafter(module, target)  # does it fit the target?
        else:
            vocab = preparation.draft_vocab(parameters.draft_vocab_size)
            config = _config(preparation, parameters, draft_vocab_size=vocab.shape[0])
            module = initial_module(config, vocab, target.lm_head, seed=preparation.seed)
        taps = module.config.taps_of(target.config.num_layers)
        train, validation = preparation.tap_rows(taps, memory_bytes=parameters.loop.cache_memory_bytes)
        return cls(target, parameters, module, train=train, validation=validation)

    @property
    def draft_vocab_size(self) -> int:
        return self.eagle3.config.draft_vocab_size

    @property
    def cached_bytes(self) -> int:
        return self._train.num_bytes + self._validation.num_bytes

    def save(self, folder: Path, *, base_model: str) -> None:
        self.eagle3.save(folder, base_model=base_model)

    @property
    def module(self) -> nn.Module:
        return self.eagle3

    @property
    def num_rows(self) -> int:
        return len(self._train.prompt_lengths)

    def loss(self, rows: Tensor) -> BatchLoss:
        losses, sums = self._steps(self._train, rows.tolist())
        decay = self._parameters.step_decay
        total = torch.stack([decay**step * loss for step, loss in enumerate(losses)]).sum()
        return BatchLoss(total, nats=sum(s.nats for s in sums), num_tokens=sum(s.count for s in sums))

    @torch.no_grad()
    def validate(self) -> Validation:
        count, size = len(self._validation.prompt_lengths), self._parameters.loop.batch_rows
        batches = [self._steps(self._validation, rows)[1] for rows in batches_of(count, size)]
        return validation_of(self.simulate(), batches)

    @torch.no_grad()
    def simulate(self) -> Acceptance:
        """What serving the validation conversations at temperature 0 would accept."""
        drafter = Eagle3Drafter(as_stored(self.eagle3), self._target)
        return simulate(drafter, self._validation, self._target, budget=self._parameters.loop.draft_budget)

    def _steps(self, source: TapRows, conversations: list[int]) -> tuple[list[Tensor], list[Sums]]:
        """Loss and sums of every step of the unroll."""
        parameters = self._parameters
        batch = make_batch(source, conversations, steps=parameters.steps, place=self._place)
        target = self._target_probabilities(batch) if parameters.soft_target_weight > 0.0 else None
        losses, sums = [], []
        with torch.autocast(self._target.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            for step, features in enumerate(self._unroll.outputs(batch, parameters.steps)):
                loss, found = step_loss(
                    features.float(),
                    self.eagle3.lm_head.weight,
                    batch.labels[:, step],
                    target,
                    batch.chosen[:, step],
                    parameters.soft_target_weight,
                )
                losses.append(loss)
                sums.append(found)
        return losses, sums

    @torch.no_grad()
    def _target_probabilities(self, batch: Eagle3Batch) -> Tensor:
        """[A + B, Vd]: the target's own, cut to the draft vocabulary."""
        return functional.linear(batch.hidden, self._lm_head).softmax(-1)


def _config(preparation: Preparation, parameters: Eagle3Hyperparameters, *, draft_vocab_size: int) -> Eagle3Config:
    """The layer is one of the target's own shape."""
    target, own = preparation.target.config, AutoConfig.from_pretrained(preparation.model_dir, trust_remote_code=False)
    return Eagle3Config(
        hidden_size=target.hidden_size,
        target_hidden_size=target.hidden_size,
        intermediate_size=parameters.intermediate_size or target.intermediate_size,
        num_heads=target.num_heads,
        num_kv_heads=target.num_kv_heads,
        head_dim=target.head_dim,
        vocab_size=target.vocab_size,
        draft_vocab_size=draft_vocab_size,
        norm_eps=target.norm_eps,
        max_positions=preparation.target.max_positions,
        rope_parameters=dict(own.rope_parameters),
        tap_layers=default_taps(target.num_layers),
        fc_norm=parameters.fc_norm,
        norm_output=parameters.norm_output,
    )


def initial_module(config: Eagle3Config, draft_vocab: Tensor, lm_head: Tensor, *, seed: int) -> Eagle3:
    """lm_head: the target's [V, H]; the drafter's starts as its rows where the sizes agree."""
    module = Eagle3(config, draft_vocab)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=_INITIAL_SCALE, generator=generator)
        if lm_head.shape[1] == config.hidden_size:
            module.lm_head.weight.copy_(lm_head[draft_vocab.to(lm_head.device)].float())
    return module
