"""Medusa heads, used for training and serving: from the hidden state of token t, head i predicts token t + 1 + i.

    features_i  = h                                                   the hidden state of token t
    every layer   features_i += SiLU(W_i features_i + b_i)            W is initialized with zeros
                  with `token_input`, the first layer also adds U_i e(t) inside SiLU, where e(t) is the normalized
                  embedding of token t                                U is initialized with zeros
    tied          logits_i = lm_head features_i                       the target's rows of lm_head
    untied        logits_i = head_i features_i                        head_i is initialized with these rows

Heads propose only the tokens of a draft vocabulary: those most frequent in the training answers. A folder has three
files: `config.json`, `draft_vocab.safetensors`, and `medusa_lm_head.safetensors`, whose tensors have LoRAX's names:
`{head}.{layer}.linear.{weight,bias}`, and for untied heads `{head}.{layers}.weight`. `token_input` adds
`{head}.0.token.weight`, which LoRAX does not know.

Shape letters: R rows, K heads, H hidden size, V and Vd the target's and the draft vocabulary.

Source: Cai et al. 2024, arXiv:2401.10774; file layout: LoRAX, Medusa v1 and v2; vocabulary: FR-Spec, arXiv:2502.14856.
"""

import json
from dataclasses import asdict, dataclass
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional

from engine.errors import SpeculatorNotLoadable

WEIGHTS_FILE = "medusa_lm_head.safetensors"
VOCAB_FILE = "draft_vocab.safetensors"


@dataclass(frozen=True, slots=True, kw_only=True)
class MedusaConfig:
    hidden_size: int
    num_heads: int
    num_layers: int = 1
    draft_vocab_size: int
    tied: bool = True
    # whether heads also read the last token, which was sampled from h and so is not determined by h
    token_input: bool = False
    prompt_tokens: bool = False  # whether heads also propose the tokens of a request's prompt (prompt_tokens.py)

    def __post_init__(self) -> None:
        if min(self.hidden_size, self.num_heads, self.num_layers, self.draft_vocab_size) < 1:
            raise ValueError(f"sizes must be at least 1, got {self}")


class MedusaHeads(nn.Module):
    """draft_vocab: [Vd] int64, token ids in ascending order."""

    draft_vocab: Tensor

    def __init__(self, config: MedusaConfig, draft_vocab: Tensor, lm_head: Tensor | None = None) -> None:
        """`lm_head`: [V, H], the target's lm_head, whose rows initialize untied heads. If it is None, untied heads are
        initialized with zeros.
        """
        super().__init__()
        if draft_vocab.shape != (config.draft_vocab_size,):
            raise ValueError(f"draft_vocab must be [{config.draft_vocab_size}], got {list(draft_vocab.shape)}")
        self.config = config
        H, K = config.hidden_size, config.num_heads
        self.weight = nn.Parameter(torch.zeros(config.num_layers, K, H, H))
        self.bias = nn.Parameter(torch.zeros(config.num_layers, K, H))
        self.register_buffer("draft_vocab", draft_vocab)
        self.token_weight = nn.Parameter(torch.zeros(K, H, H)) if config.token_input else None
        self.head: nn.Parameter | None = None
        if not config.tied:
            rows = torch.zeros(config.draft_vocab_size, H) if lm_head is None else lm_head[draft_vocab].float()
            self.head = nn.Parameter(rows.unsqueeze(0).repeat(K, 1, 1))  # [K, Vd, H]

    def features(self, hidden: Tensor, tokens: Tensor | None = None) -> Tensor:
        """hidden [R, H], tokens [R, H] from `token_features` (used only with `token_input`) -> [R, K, H]."""
        x = hidden.unsqueeze(1).expand(-1, self.config.num_heads, -1)  # [R, K, H]
        for layer, (weight, bias) in enumerate(zip(self.weight, self.bias, strict=True)):
            inner = torch.einsum("rkh,kgh->rkg", x, weight) + bias
            if layer == 0 and self.token_weight is not None:
                if tokens is None:
                    raise ValueError("heads with token_input need the last tokens' features")
                inner = inner + torch.einsum("rh,kgh->rkg", tokens, self.token_weight)
            x = x + functional.silu(inner)
        return x

    def output_heads(self, lm_head: Tensor) -> tuple[Tensor, ...]:
        """Returns a head [Vd, H] for each depth. lm_head: [Vd, H], the target's rows of the draft vocabulary."""
        return (lm_head,) * self.config.num_heads if self.head is None else self.head.unbind(0)

    def logits(self, hidden: Tensor, lm_head: Tensor, tokens: Tensor | None = None) -> Tensor:
        """hidden and tokens as in `features`, lm_head as in `output_heads` -> [R, K, Vd]."""
        x = self.features(hidden, tokens)
        return x @ lm_head.T if self.head is None else torch.einsum("rkh,kvh->rkv", x, self.head)

    def save(self, folder: Path, *, base_model: str) -> None:
        """Writes the three files into an existing folder; weights are stored in bfloat16."""
        tensors = {}
        for layer in range(self.config.num_layers):
            for head in range(self.config.num_heads):
                tensors[f"{head}.{layer}.linear.weight"] = self.weight[layer, head]
                tensors[f"{head}.{layer}.linear.bias"] = self.bias[layer, head]
        if self.token_weight is not None:
            for head in range(self.config.num_heads):
                tensors[f"{head}.0.token.weight"] = self.token_weight[head]
        if self.head is not None:
            for head in range(self.config.num_heads):
                tensors[f"{head}.{self.config.num_layers}.weight"] = self.head[head]
        stored = {name: tensor.detach().to(torch.bfloat16).contiguous() for name, tensor in tensors.items()}
        save_file(stored, folder / WEIGHTS_FILE)
        save_file({"draft_vocab": self.draft_vocab.contiguous()}, folder / VOCAB_FILE)
        values = {
            "base_model_name_or_path": base_model,
            "medusa_num_heads": self.config.num_heads,
            "medusa_num_layers": self.config.num_layers,
            "version": "2" if self.config.tied else "1",
            "slipstream": asdict(self.config),
        }
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "MedusaHeads":
        """Loads in float32. Raises: SpeculatorNotLoadable: files are missing, damaged or of another size."""
        try:
            config = MedusaConfig(**json.loads((folder / "config.json").read_text())["slipstream"])
            tensors = load_file(folder / WEIGHTS_FILE)
            heads = cls(config, load_file(folder / VOCAB_FILE)["draft_vocab"])
            with torch.no_grad():
                heads._read(tensors)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise SpeculatorNotLoadable(f"{folder} holds no Medusa heads: {error!r}") from error
        return heads

    def _read(self, tensors: dict[str, Tensor]) -> None:
        for head in range(self.config.num_heads):
            for layer in range(self.config.num_layers):
                self.weight[layer, head].copy_(tensors[f"{head}.{layer}.linear.weight"])
                self.bias[layer, head].copy_(tensors[f"{head}.{layer}.linear.bias"])
            if self.token_weight is not None:
                self.token_weight[head].copy_(tensors[f"{head}.0.token.weight"])
            if self.head is not None:
                self.head[head].copy_(tensors[f"{head}.{self.config.num_layers}.weight"])


def token_features(embeddings: Tensor) -> Tensor:
    """Scales rows of the target's embedding [R, H] to root mean square 1; returns float32."""
    rows = embeddings.float()
    return rows * torch.rsqrt(rows.square().mean(-1, keepdim=True) + 1e-12)
