"""The block drafter's network, used for training and serving: one pass predicts a whole block of tokens.

    context_t = norm(fc(taps of position t))                  one per past position; every layer projects keys and
                                                              values from it
    block     = [e(anchor token), e(mask), ..., e(mask)]      at the anchor's position and those after it
    layers    as in Qwen3, but the block attends to the contexts before the anchor and to itself
    logits_i  = lm_head norm(block_i)                         row i predicts the token at its own position (DFlash)
                                                              or at the next position (DSpark)
    Markov    logits_i += W2 latent(W1[previous token])       latent is the identity, or a gate computed from block_i
    confidence_i = sigmoid(w [block_i, W1[previous token]] + b)
                                                              estimates the acceptance probability, which is the sum
                                                              over all tokens of the smaller of the drafter's and the
                                                              target's probability

The taps are the target's intermediate hidden states. The anchor is the last known token; the target has not computed
its position yet, so the anchor has no context.

Shape letters: A blocks of B tokens, S context positions, T tap layers, H hidden size, D head size, Hkv key heads,
G query heads per key head, N stored rows, V and Vd the target's and the drafter's vocabulary, r the Markov head's rank.

Source: DFlash, arXiv:2602.06036; JetSpec (causal within the block), arXiv:2606.18394; DSpark, arXiv:2607.05147.
"""

import json
from dataclasses import replace
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.drafters.block_config import BlockConfig, LayerAttention, transformers_config
from engine.drafters.modules import GatedMlp, Norm
from engine.errors import ModelNotLoadable, SpeculatorNotLoadable
from engine.models.rotary import tables_of
from kernels.rope import rotate

WEIGHTS_FILE = "model.safetensors"
# tensors that are not loaded: copies of the target's weights, and tensors computed from others
_IGNORED = ("verifier_lm_head.", "verifier_norm.", "rotary_emb.")


class FrozenRows(nn.Module):
    """Frozen rows [N, H] of the target's embedding or lm_head that are stored with the drafter."""

    weight: Tensor

    def __init__(self, weight: Tensor) -> None:
        super().__init__()
        self.register_buffer("weight", weight)


class BlockAttention(nn.Module):
    def __init__(self, config: BlockConfig, attention: LayerAttention) -> None:
        super().__init__()
        H, D, bias = config.hidden_size, config.head_dim, config.attention_bias
        self.config, self.attention = config, attention
        self.q_proj = nn.Linear(H, config.num_heads * D, bias=bias)
        self.k_proj = nn.Linear(H, config.num_kv_heads * D, bias=bias)
        self.v_proj = nn.Linear(H, config.num_kv_heads * D, bias=bias)
        self.o_proj = nn.Linear(config.num_heads * D, H, bias=bias)
        self.q_norm = Norm(D, eps=config.norm_eps)
        self.k_norm = Norm(D, eps=config.norm_eps)

    def forward(self, block: Tensor, context: Tensor, layout: "BlockLayout") -> Tensor:
        """block [A, B, H], context [S, H] -> [A, B, H]."""
        D, group = self.config.head_dim, self.config.num_heads // self.config.num_kv_heads
        query = rotate(self.q_norm(self.q_proj(block).unflatten(-1, (-1, D))), *layout.block_angles)
        keys, values = self._keys_values(block, layout.block_angles)  # [A, B, Hkv, D]
        past_keys, past_values = self._keys_values(context, layout.context_angles)  # [S, Hkv, D]
        query = query.unflatten(-2, (-1, group)) * D**-0.5  # [A, B, Hkv, G, D]
        past = torch.einsum("abhgd,shd->abhgs", query, past_keys)
        own = torch.einsum("abhgd,achd->abhgc", query, keys)
        masked_past, masked_own = layout.masks(self.attention)
        past = past.masked_fill(masked_past[:, None, None, None], -torch.inf)
        own = own.masked_fill(masked_own[None, :, None, None], -torch.inf)
        weights = torch.cat([past, own], dim=-1).softmax(-1)
        past_weights, own_weights = weights.split((past.shape[-1], own.shape[-1]), dim=-1)
        out = torch.einsum("abhgs,shd->abhgd", past_weights, past_values)
        out = out + torch.einsum("abhgc,achd->abhgd", own_weights, values)
        mixed: Tensor = self.o_proj(out.flatten(2))
        return mixed

    def _keys_values(self, x: Tensor, angles: tuple[Tensor, Tensor]) -> tuple[Tensor, Tensor]:
        D = self.config.head_dim
        keys = self.k_norm(self.k_proj(x).unflatten(-1, (-1, D)))
        return rotate(keys, *angles), self.v_proj(x).unflatten(-1, (-1, D))


class BlockLayer(nn.Module):
    def __init__(self, config: BlockConfig, attention: LayerAttention) -> None:
        super().__init__()
        self.self_attn = BlockAttention(config, attention)
        self.mlp = GatedMlp(config.hidden_size, config.intermediate_size)
        self.input_layernorm = Norm(config.hidden_size, eps=config.norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, eps=config.norm_eps)

    def forward(self, block: Tensor, context: Tensor, layout: "BlockLayout") -> Tensor:
        block = block + self.self_attn(self.input_layernorm(block), context, layout)
        out: Tensor = block + self.mlp(self.post_attention_layernorm(block))
        return out


class MarkovHead(nn.Module):
    """Adds a correction of rank r to the logits, which depends on the previous token: W2 latent."""

    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        rank = config.markov_rank
        self.markov_w1 = nn.Embedding(config.vocab_size, rank)
        self.markov_w2 = nn.Linear(rank, config.draft_vocab_size, bias=False)
        self.gate_proj = nn.Linear(config.hidden_size + rank, rank) if config.markov_type == "gated" else None

    def latent(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """hidden [..., H], previous [...] int64 token ids -> [..., r]."""
        rows: Tensor = self.markov_w1(previous)
        if self.gate_proj is None:
            return rows
        return torch.sigmoid(self.gate_proj(torch.cat([hidden, rows], dim=-1))) * rows


class ConfidenceHead(nn.Module):
    def __init__(self, config: BlockConfig) -> None:
        super().__init__()
        self.proj = nn.Linear(config.hidden_size + config.markov_rank * config.confidence_with_markov, 1)

    def forward(self, features: Tensor) -> Tensor:
        """Returns the confidence before the sigmoid, [...].

        features: [..., H], or [..., H + r] with the Markov head's W1[previous token] after the hidden state.
        """
        out: Tensor = self.proj(features).squeeze(-1)
        return out


class BlockLayout:
    """Positions of contexts and blocks in one pass, and which rows may attend to which.

    context_positions: [S] int64. anchors: [A] int64, positions of the anchors. visible: [A, S] bool, whether a context
    belongs to the text of a block and precedes its anchor.
    """

    def __init__(self, model: "BlockModel", context_positions: Tensor, anchors: Tensor, visible: Tensor) -> None:
        self._distances = anchors.unsqueeze(1) - context_positions  # [A, S]
        self._visible = visible
        self._size = model.config.block_size
        offsets = torch.arange(self._size, device=anchors.device)
        self.context_angles = model.angles(context_positions)
        self.block_angles = model.angles(anchors.unsqueeze(1) + offsets)

    def masks(self, attention: LayerAttention) -> tuple[Tensor, Tensor]:
        """Returns masks of the positions that must not be read: [A, S] for contexts, [B, B] within the block."""
        visible = self._visible if attention.window is None else self._visible & (self._distances <= attention.window)
        ones = torch.ones(self._size, self._size, dtype=torch.bool, device=visible.device)
        # With causal attention, a row's later rows in the block are masked; they are above the diagonal.
        return ~visible, ones.triu(1) if attention.causal else ~ones


class BlockModel(nn.Module):
    """draft_vocab: [Vd] int64, the target's id of each draft token, ascending."""

    draft_vocab: Tensor

    def __init__(
        self,
        config: BlockConfig,
        draft_vocab: Tensor | None = None,
        *,
        lm_head: Tensor | None = None,
        embedding: Tensor | None = None,
    ) -> None:
        """
        Args:
            lm_head: [Vd, H]. The drafter's own lm_head; None: it uses the target's.
            embedding: [V, H]. The drafter's own embedding; None: it uses the target's.
        """
        super().__init__()
        self.config = config
        vocab = torch.arange(config.draft_vocab_size) if draft_vocab is None else draft_vocab
        if vocab.shape != (config.draft_vocab_size,):
            raise ValueError(f"draft_vocab must be [{config.draft_vocab_size}], got {list(vocab.shape)}")
        self.register_buffer("draft_vocab", vocab, persistent=False)
        H = config.hidden_size
        self.fc = nn.Linear(len(config.tap_layers) * H, H, bias=False)
        self.hidden_norm = Norm(H, eps=config.norm_eps)
        self.layers = nn.ModuleList(BlockLayer(config, attention) for attention in config.attention)
        self.norm = Norm(H, eps=config.norm_eps)
        self.markov_head = MarkovHead(config) if config.markov_rank else None
        self.confidence_head = ConfidenceHead(config) if config.confidence else None
        self.lm_head = None if lm_head is None else FrozenRows(lm_head)
        self.embed_tokens = None if embedding is None else FrozenRows(embedding)
        self._tables = self.rotary_tables(1)

    def angles(self, positions: Tensor) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines [..., D / 2] of positions."""
        longest = int(positions.max()) + 1
        if longest > self._tables[0].shape[0]:
            self._tables = self.rotary_tables(2 * longest)
        cosines, sines = (table.to(positions.device)[positions] for table in self._tables)
        return cosines, sines

    def rotary_tables(self, max_positions: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines. Raises: ModelNotLoadable: the rotary scaling depends on the sequence's length."""
        return tables_of(transformers_config(self.config.transformer), self.config.head_dim, max_positions)

    def forward(
        self, taps: Tensor, context_positions: Tensor, embeddings: Tensor, anchors: Tensor, visible: Tensor
    ) -> Tensor:
        """Runs blocks at many anchors in one pass over the same contexts, as in training.

        Args:
            taps: [S, T, H]. The target's residual streams at the T tap layers, for S positions of one or more texts.
            context_positions: [S] int64.
            embeddings: [A, B, H]. The embeddings of the anchor token and of the masks after it.
            anchors: [A] int64. Position of each block's anchor.
            visible: [A, S] bool. Which contexts belong to the block's text and precede its anchor.

        Returns: [A, B, H] after the final norm.
        """
        context = self.hidden_norm(self.fc(taps.flatten(1)))  # [S, H]
        layout = BlockLayout(self, context_positions, anchors, visible)
        block = embeddings
        for layer in self.layers:
            block = layer(block, context, layout)
        out: Tensor = self.norm(block)
        return out

    def logits(self, hidden: Tensor, lm_head: Tensor, previous: Tensor) -> Tensor:
        """hidden [..., H], lm_head [Vd, H], previous [...] int64: the token before each prediction -> [..., Vd]."""
        base = hidden @ lm_head.T
        if self.markov_head is None:
            return base
        correction: Tensor = self.markov_head.markov_w2(self.markov_head.latent(hidden, previous))
        return base + correction

    def confidence(self, hidden: Tensor, previous: Tensor) -> Tensor:
        """hidden [..., H], previous [...] int64: the token before each prediction -> [...], before the sigmoid."""
        assert self.confidence_head is not None
        if self.config.confidence_with_markov:
            assert self.markov_head is not None
            hidden = torch.cat([hidden, self.markov_head.markov_w1(previous)], dim=-1)
        out: Tensor = self.confidence_head(hidden)
        return out

    def save(self, folder: Path) -> None:
        """Writes config.json and weights in the format of speculators into an existing folder."""
        config = self.config
        tensors = {name: value.detach().to(config.dtype).contiguous() for name, value in self.state_dict().items()}
        if config.draft_vocab_size < config.vocab_size:
            vocab = self.draft_vocab.cpu()
            tensors["d2t"] = vocab - torch.arange(config.draft_vocab_size)
            tensors["t2d"] = torch.zeros(config.vocab_size, dtype=torch.bool).index_fill_(0, vocab, True)
        save_file(tensors, folder / WEIGHTS_FILE)
        (folder / "config.json").write_text(json.dumps(config.to_values(), indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "BlockModel":
        """Loads in float32. Raises: SpeculatorNotLoadable: files are missing, damaged, or of another drafter."""
        try:
            config = BlockConfig.from_values(json.loads((folder / "config.json").read_text()))
            tensors = {name: value for path in sorted(folder.glob("*.safetensors")) for name, value in _read(path)}
            model = cls(
                replace(config, dtype=tensors["fc.weight"].dtype),
                _draft_vocab(tensors.pop("d2t", None), tensors.pop("t2d", None)),
                lm_head=tensors.get("lm_head.weight"),
                embedding=tensors.get("embed_tokens.weight"),
            )
            model.load_state_dict(tensors)
        except (OSError, ValueError, KeyError, RuntimeError, SafetensorError, ModelNotLoadable) as error:
            raise SpeculatorNotLoadable(f"{folder} holds no block drafter: {error}") from error
        return model.float()


def _read(path: Path) -> list[tuple[str, Tensor]]:
    """Returns names and tensors. Old files prefix the heads' names with `logit_head.`, which is removed."""
    tensors = load_file(path)
    return [(n.removeprefix("logit_head."), tensor) for n, tensor in tensors.items() if not n.startswith(_IGNORED)]


def _draft_vocab(d2t: Tensor | None, t2d: Tensor | None) -> Tensor | None:
    """Returns the target's id of each draft token [Vd]; None if the vocabularies are equal.

    d2t: [Vd], the target's token id minus the draft token id. t2d: [V] bool, which tokens can be drafted.
    """
    if d2t is None:
        return None
    vocab = torch.arange(d2t.shape[0]) + d2t
    if t2d is not None and not torch.equal(vocab, t2d.nonzero().flatten()):
        raise ValueError("d2t and t2d name different tokens")
    return vocab
