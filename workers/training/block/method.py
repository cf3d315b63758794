"""The training method of block drafters. Validation simulates decoding with the drafter that is served.

The values of the taps (the target's intermediate hidden states) differ by orders of magnitude between dimensions.
Training therefore divides each dimension by its root mean square over the training rows. The saved `fc` includes this
division, so the served drafter reads unscaled taps.
"""

from copy import deepcopy
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoConfig

from engine.drafters.block import BlockDrafter
from engine.drafters.block_config import BlockConfig
from engine.drafters.block_model import BlockModel
from engine.models.base import Model
from workers.hyperparameters.block import BlockHyperparameters
from workers.training.acceptance import Acceptance
from workers.training.block.data import Blocks, blocks_of, num_anchors
from workers.training.block.loss import DepthSums, block_loss, loss_over_depths
from workers.training.data import draft_indices
from workers.training.hidden_states import TapRows
from workers.training.loop import BatchLoss, Validation
from workers.training.preparation import Preparation, as_stored, in_bfloat16
from workers.training.simulation import simulate

_INITIAL_SCALE = 0.02  # standard deviation of initial matrices
_SCALE_ROWS = 16_384  # maximum number of training rows from which the root mean squares of taps are estimated


class BlockMethod:
    def __init__(
        self,
        target: Model,
        parameters: BlockHyperparameters,
        module: BlockModel,
        *,
        train: TapRows,
        validation: TapRows,
    ) -> None:
        """module: a drafter whose `fc` expects taps that are divided by their root mean squares."""
        self._target, self._parameters = target, parameters
        self._train, self._validation = train, validation
        root_mean_squares = train.taps[:_SCALE_ROWS].float().square().mean(0).sqrt()  # [T, H]
        self._scale = 1.0 / root_mean_squares.clamp(min=1e-6)
        self.block = module.to(target.device)
        vocab = module.draft_vocab
        self._lm_head = target.lm_head[vocab].float()  # [Vd, H]
        self._draft_index = draft_indices(vocab.to(target.device), module.config.vocab_size)
        self._bfloat16 = in_bfloat16(parameters.loop.precision, target.device)

    @classmethod
    def prepare(cls, preparation: Preparation, parameters: BlockHyperparameters) -> "BlockMethod":
        """Runs the target over all conversations.

        Raises: SpeculatorNotLoadable: the speculator in `preparation.initial` does not fit the target.
        """
        target = preparation.target
        if preparation.initial is not None:
            module = BlockModel.load(preparation.initial)
            BlockDrafter(module, target)  # raises if the module does not fit the target
        else:
            vocab = preparation.draft_vocab(parameters.draft_vocab_size, parameters.loop)
            config = make_config(preparation, parameters, draft_vocab_size=vocab.shape[0])
            module = _initial_module(config, vocab, target, seed=preparation.seed)
        taps = module.config.tap_layers
        train, validation = preparation.tap_rows(taps, memory_bytes=parameters.loop.cache_memory_bytes)
        method = cls(target, parameters, module, train=train, validation=validation)
        if preparation.initial is not None:
            with torch.no_grad():
                module.fc.weight.div_(method._scale.flatten())  # the loaded `fc` reads unscaled taps
        return method

    @property
    def draft_vocab_size(self) -> int:
        return self.block.config.draft_vocab_size

    @property
    def cached_bytes(self) -> int:
        return self._train.num_bytes + self._validation.num_bytes

    @property
    def module(self) -> nn.Module:
        return self.block

    @property
    def num_rows(self) -> int:
        return len(self._train.prompt_lengths)

    def save(self, folder: Path, *, base_model: str) -> None:
        served = self.served()
        served.config = replace(served.config, verifier=served.config.verifier | {"name_or_path": base_model})
        served.save(folder)

    @torch.no_grad()
    def served(self) -> BlockModel:
        """Returns a copy whose `fc` reads unscaled taps."""
        served = deepcopy(self.block)
        served.fc.weight.mul_(self._scale.flatten())
        return served

    def loss(self, rows: Tensor, step: int) -> BatchLoss:
        parts = []
        for conversation in rows.tolist():
            possible = num_anchors(self._train, conversation)
            drawn = torch.randperm(possible)[: self._parameters.anchors]
            parts.append(self._blocks_loss(self._train, conversation, drawn))
        token_losses, confidence_losses, sums = zip(*parts, strict=True)
        total = sum(sums[1:], start=sums[0])
        parameters = self._parameters
        loss = loss_over_depths(
            torch.stack(token_losses).sum(0),
            torch.stack(confidence_losses).sum(0),
            total.count,
            decay=parameters.decay,
            confidence_weight=parameters.confidence_weight,
        )
        return BatchLoss(loss, nats=float(total.nats.sum()), num_tokens=int(total.count.sum()))

    @torch.no_grad()
    def validate(self) -> Validation:
        sums = [
            self._blocks_loss(self._validation, index, torch.arange(num_anchors(self._validation, index)))[2]
            for index in range(len(self._validation.prompt_lengths))
        ]
        total = sum(sums[1:], start=sums[0])
        acceptance = self.simulate()
        return Validation(
            acceptance_length=acceptance.length,
            acceptance_rate_per_position=tuple(acceptance.rate_per_position()),
            accuracy_per_depth=tuple((total.correct / total.count.clamp(min=1)).tolist()),
            loss=float(total.nats.sum() / total.count.sum().clamp(min=1)),
        )

    @torch.no_grad()
    def simulate(self) -> Acceptance:
        """Simulates serving the validation conversations at temperature 0."""
        drafter = BlockDrafter(as_stored(self.served()), self._target)
        return simulate(drafter, self._validation, self._target, budget=self._parameters.loop.draft_budget)

    def _blocks_loss(self, rows: TapRows, conversation: int, anchors: Tensor) -> tuple[Tensor, Tensor, DepthSums]:
        config = self.block.config
        blocks = blocks_of(rows, conversation, anchors, depths=config.max_depth, draft_index=self._draft_index)
        with torch.autocast(self._target.device.type, dtype=torch.bfloat16, enabled=self._bfloat16):
            hidden = self._hidden(blocks)
            previous = blocks.tokens[:, :-1]
            logits = self.block.logits(hidden, self._lm_head, previous)
            confidence = self.block.confidence(hidden, previous) if config.confidence else None
            with torch.no_grad():
                target = blocks.hidden @ self._lm_head.T
        return block_loss(
            logits, blocks.labels, target, confidence, soft_target_weight=self._parameters.soft_target_weight
        )

    def _hidden(self, blocks: Blocks) -> Tensor:
        """Returns [A, D, H]: for each block, the module's output at the D rows that predict a token."""
        config = self.block.config
        tokens = torch.full((len(blocks.anchors), config.block_size), config.mask_token_id, device=blocks.tokens.device)
        tokens[:, 0] = blocks.tokens[:, 0]
        positions = torch.arange(len(blocks.taps), device=blocks.anchors.device)
        hidden: Tensor = self.block(
            blocks.taps * self._scale,
            positions,
            self._target.weights.embedding[tokens].float(),
            blocks.anchors,
            positions < blocks.anchors.unsqueeze(1),  # [A, S]: a block reads the taps before its anchor
        )
        return hidden[:, config.first_row : config.first_row + config.max_depth]


def make_config(preparation: Preparation, parameters: BlockHyperparameters, *, draft_vocab_size: int) -> BlockConfig:
    """Returns the config of a new drafter. Its layers are Qwen3's, with the sizes of the target's layers."""
    target = preparation.target.config
    published = AutoConfig.from_pretrained(preparation.model_dir, trust_remote_code=False)
    transformer = {
        "model_type": "qwen3",
        "hidden_size": target.hidden_size,
        "intermediate_size": parameters.intermediate_size or target.intermediate_size,
        "num_hidden_layers": parameters.num_layers,
        "num_attention_heads": target.num_heads,
        "num_key_value_heads": target.num_kv_heads,
        "head_dim": target.head_dim,
        "vocab_size": target.vocab_size,
        "rms_norm_eps": target.norm_eps,
        "rope_parameters": dict(published.rope_parameters),
        "max_position_embeddings": preparation.target.max_positions,
        "is_causal": parameters.causal,
    }
    tap_numbers = range(1, parameters.num_taps + 1)
    values = {
        "speculators_model_type": "dspark",
        "transformer_layer_config": transformer,
        "draft_vocab_size": draft_vocab_size,
        "block_size": parameters.block_size,
        "aux_hidden_state_layer_ids": sorted({tap * target.num_layers // parameters.num_taps for tap in tap_numbers}),
        "mask_token_id": _unused_token(preparation),
        "sample_from_anchor": parameters.sample_from_anchor,
        "markov_rank": parameters.markov_rank,
        "enable_confidence_head": parameters.confidence,
        "confidence_head_with_markov": parameters.confidence and parameters.markov_rank > 0,
        "speculators_config": {"verifier": {"architectures": list(published.architectures or [])}},
    }
    return BlockConfig.from_values(values)


def _unused_token(preparation: Preparation) -> int:
    """Returns the first token that no conversation contains, to serve as the mask token; 0 if all tokens occur."""
    used = {t for c in preparation.conversations for t in (*c.prompt_token_ids, *c.completion_token_ids)}
    return next((token for token in range(preparation.target.config.vocab_size) if token not in used), 0)


def _initial_module(config: BlockConfig, vocab: Tensor, target: Model, *, seed: int) -> BlockModel:
    reduced = config.draft_vocab_size < config.vocab_size
    block = BlockModel(config, vocab, lm_head=target.lm_head[vocab].float() if reduced else None)
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for name, parameter in block.named_parameters():
            if parameter.dim() == 2:
                parameter.normal_(std=_INITIAL_SCALE, generator=generator)
            elif name.endswith(".bias"):
                parameter.zero_()
        if block.markov_head is not None:
            block.markov_head.markov_w2.weight.zero_()  # the Markov head adds 0 at first
    return block
