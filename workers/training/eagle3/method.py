"""The training method of EAGLE-3. Validation simulates decoding with the drafter that is served."""

from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig

from engine.drafters.eagle3 import Eagle3Drafter
from engine.drafters.eagle3_config import Eagle3Config, default_taps
from engine.drafters.eagle3_module import Eagle3
from engine.models.base import Model
from engine.models.rotary import tables_of
from workers.hyperparameters.eagle3 import Eagle3Hyperparameters
from workers.training.acceptance import Acceptance
from workers.training.data import draft_indices
from workers.training.eagle3.steps import UnrolledLoss
from workers.training.eagle3.unroll import Unroll
from workers.training.figures import validation_of
from workers.training.hidden_states import TapRows
from workers.training.loop import BatchLoss, Validation
from workers.training.preparation import Preparation, as_stored, in_bfloat16
from workers.training.simulation import simulate

_INITIAL_SCALE = 0.02  # standard deviation of the random initial matrices
_GAIN_TOKENS = 64


class Eagle3Method:
    def __init__(
        self, target: Model, parameters: Eagle3Hyperparameters, module: Eagle3, *, train: TapRows, validation: TapRows
    ) -> None:
        self._target, self._parameters = target, parameters
        device, config = target.device, module.config
        self.eagle3 = module.to(device)
        cosines, sines = tables_of(config.layer_config(), config.head_dim, config.max_positions)
        embedding = target.weights.embedding if module.embed_tokens is None else module.embed_tokens.weight
        self._train, self._validation = train, validation
        self._loss = UnrolledLoss(
            unroll=Unroll(module, embedding, (cosines.to(device), sines.to(device))),
            lm_head=module.lm_head.weight,
            target_head=target.lm_head[module.draft_vocab].float(),
            draft_index=draft_indices(module.draft_vocab.to(device), config.vocab_size),
            parameters=parameters,
            bfloat16=in_bfloat16(parameters.loop.precision, device),
            anchor_share=parameters.anchor_share,
        )

    @classmethod
    def prepare(cls, preparation: Preparation, parameters: Eagle3Hyperparameters) -> "Eagle3Method":
        """Runs the target over all conversations.

        Raises: SpeculatorNotLoadable: the speculator in `preparation.initial` does not fit the target.
        """
        target = preparation.target
        if preparation.initial is not None:
            module = Eagle3.load(preparation.initial)
            Eagle3Drafter(module, target)  # raises if the module does not fit the target
        else:
            vocab = preparation.draft_vocab(parameters.draft_vocab_size, parameters.loop)
            config = _config(preparation, parameters, draft_vocab_size=vocab.shape[0])
            module = initial_module(config, vocab, target.lm_head, final_gain(preparation), seed=preparation.seed)
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

    def loss(self, rows: Tensor, step: int) -> BatchLoss:
        return self._loss.batch_loss(self._train, rows.tolist(), step)

    def validate(self) -> Validation:
        return validation_of(self.simulate(), self._loss.sums(self._validation))

    @torch.no_grad()
    def simulate(self) -> Acceptance:
        """Simulates serving the validation conversations at temperature 0."""
        drafter = Eagle3Drafter(as_stored(self.eagle3), self._target)
        return simulate(drafter, self._validation, self._target, budget=self._parameters.loop.draft_budget)


def _config(preparation: Preparation, parameters: Eagle3Hyperparameters, *, draft_vocab_size: int) -> Eagle3Config:
    """Returns the config of a new drafter. Its layer has the sizes of the target's layers."""
    target = preparation.target.config
    published = AutoConfig.from_pretrained(preparation.model_dir, trust_remote_code=False)
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
        rope_parameters=dict(published.rope_parameters),
        tap_layers=_taps(target.num_layers, parameters.loop.export_as),
        fc_norm=parameters.fc_norm,
        norm_output=parameters.norm_output,
        prompt_tokens=parameters.prompt_tokens,
    )


def _taps(num_layers: int, export_as: str | None) -> tuple[int, ...]:
    """Returns the taps of a new drafter: an early and a middle layer, and the output of the last layer.

    SGLang, which reads the format `specforge`, has no tap after the last layer.
    """
    early, middle, late = default_taps(num_layers)
    return (early, middle, late if export_as == "specforge" else num_layers)


def final_gain(preparation: Preparation) -> Tensor:
    """Returns [H] float32, the factors of the norm after the target's last layer.

    They are computed from hidden states, because each architecture stores this norm in its own way.
    """
    target = preparation.target
    tokens = torch.tensor(preparation.conversations[0].prompt_token_ids[:_GAIN_TOKENS], device=target.device)
    states = target.hidden_states(tokens, (target.config.num_layers,))
    assert states.taps is not None  # because a tap was asked for
    normed = functional.rms_norm(states.taps[:, 0].float(), (target.config.hidden_size,), eps=target.config.norm_eps)
    return (states.final.float() * normed).sum(0) / normed.square().sum(0).clamp(min=1e-6)


def initial_module(
    config: Eagle3Config, draft_vocab: Tensor, lm_head: Tensor, final_gain: Tensor, *, seed: int
) -> Eagle3:
    """Returns a new drafter, which copies its prediction from the target.

    The layer adds zero to its input, which is the last tap, and the last norm and lm_head are those of the target. If
    the last tap is the output of the target's last layer, the drafter therefore begins with the target's logits for the
    token before the token to be drafted. All other matrices are random.

    lm_head: [V, H], of the target.
    final_gain: [H], the factors of the target's last norm.
    """
    module = Eagle3(config, draft_vocab)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in module.parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=_INITIAL_SCALE, generator=generator)
        module.lm_head.weight.copy_(lm_head[draft_vocab.to(lm_head.device)].float())
        module.norm.weight.copy_(final_gain)
        module.fc.weight.zero_()
        module.fc.weight[:, -config.target_hidden_size :].fill_diagonal_(1.0)
        module.layer.self_attn.o_proj.weight.zero_()
        module.layer.mlp.down_proj.weight.zero_()
    return module
