"""A dense multi-token prediction module, used for training and serving, in the `mtp` layout of speculators.

    x_t = input_proj([RMSNorm(e(token t + 1)), RMSNorm(h_t)])         the two norms are concatenated
    o_t = RMSNorm(layer(x_0 .. x_t))
    logits of token t + 2 = lm_head o_t         with the target's lm_head
    where the target has no hidden state yet, o_t replaces h_{t + 1}

h_t is the target's hidden state after its final norm. The layer is a decoder layer of Llama, Qwen2 or Qwen3. DeepSeek's
module (engine/models/deepseek_mtp.py) differs only in its layer.

Shape letters: T positions, R rows, H hidden size, D head size, Hq and Hkv query and key heads, Vd draft vocabulary.

Source: DeepSeek-V3, arXiv:2412.19437; FastMTP, arXiv:2509.18362, which trains one module for several steps.
"""

import json
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import AutoConfig, PretrainedConfig

from engine.drafters.modules import GatedMlp, Norm
from engine.errors import ModelNotLoadable, SpeculatorNotLoadable
from engine.models.rotary import tables_of
from kernels.rope import rotate

WEIGHTS_FILE = "model.safetensors"
VOCAB_FILE = "draft_vocab.json"  # this file is not part of the `mtp` layout, so other engines use the whole vocabulary
_LAYER_TYPES = ("llama", "qwen2", "qwen3")
# tensors that are not loaded: the target's weights, and tensors computed from others
_IGNORED = ("embed_tokens.", "lm_head.", "verifier_lm_head.", "rotary_emb.")


@dataclass(frozen=True, slots=True, kw_only=True)
class MtpConfig:
    """transformer: the layer's configuration in config.json. num_steps: number of draft tokens in training."""

    transformer: dict[str, Any]
    num_steps: int
    dtype: torch.dtype = torch.bfloat16  # dtype of the stored weights
    verifier: dict[str, Any]  # speculators' description of the target: name_or_path, architectures

    @property
    def layer(self) -> PretrainedConfig:
        rest = {key: value for key, value in self.transformer.items() if key != "model_type"}
        return AutoConfig.for_model(self.transformer["model_type"], **rest)

    @classmethod
    def from_values(cls, values: dict[str, Any]) -> "MtpConfig":
        """`values`: the content of config.json. Raises: SpeculatorNotLoadable: it describes no MTP module."""
        try:
            if values["speculators_model_type"] != "mtp" or values.get("num_nextn_predict_layers", 1) != 1:
                raise ValueError("speculators_model_type must be mtp, with one layer")
            transformer, speculators = values["transformer_layer_config"], values["speculators_config"]
            if (kind := transformer["model_type"]) not in _LAYER_TYPES:
                raise ValueError(f"model_type must be one of {', '.join(_LAYER_TYPES)}, got {kind!r}")
            num_steps = speculators["proposal_methods"][0]["speculative_tokens"]
            config = cls(transformer=transformer, num_steps=num_steps, verifier=speculators.get("verifier", {}))
            if config.layer.hidden_act != "silu" or num_steps < 1:
                got = f"{config.layer.hidden_act!r} and {num_steps}"
                raise ValueError(f"hidden_act must be silu and speculative_tokens at least 1, got {got}")
        except (KeyError, IndexError, TypeError, ValueError) as error:
            raise SpeculatorNotLoadable(f"config.json describes no MTP module: {error!r}") from error
        return config

    def to_values(self) -> dict[str, Any]:
        proposal = {"proposal_type": "greedy", "speculative_tokens": self.num_steps}
        return {
            "speculators_model_type": "mtp",
            "architectures": ["MTPDraftModel"],
            "transformer_layer_config": self.transformer,
            "num_nextn_predict_layers": 1,
            "dtype": str(self.dtype).removeprefix("torch."),
            "speculators_config": {
                "algorithm": "mtp",
                "default_proposal_method": "greedy",
                "proposal_methods": [proposal | {"verifier_accept_k": 1, "accept_tolerance": 0.0}],
                "verifier": self.verifier,
            },
        }


class MtpAttention(nn.Module):
    q_norm: nn.RMSNorm | None
    k_norm: nn.RMSNorm | None

    def __init__(self, layer: PretrainedConfig) -> None:
        super().__init__()
        self.num_heads, self.num_kv_heads = layer.num_attention_heads, layer.num_key_value_heads
        self.head_dim: int = getattr(layer, "head_dim", None) or layer.hidden_size // self.num_heads
        H, queries, keys = layer.hidden_size, self.num_heads * self.head_dim, self.num_kv_heads * self.head_dim
        bias = getattr(layer, "attention_bias", False)
        self.q_proj = nn.Linear(H, queries, bias=bias or layer.model_type == "qwen2")
        self.k_proj = nn.Linear(H, keys, bias=bias or layer.model_type == "qwen2")
        self.v_proj = nn.Linear(H, keys, bias=bias or layer.model_type == "qwen2")
        self.o_proj = nn.Linear(queries, H, bias=bias)
        normed = layer.model_type == "qwen3"
        self.q_norm = Norm(self.head_dim, eps=layer.rms_norm_eps) if normed else None
        self.k_norm = Norm(self.head_dim, eps=layer.rms_norm_eps) if normed else None

    def forward(self, x: Tensor, cosines: Tensor, sines: Tensor, visible: Tensor) -> Tensor:
        """x [T, H]; cosines, sines [T, D / 2]; visible [T, T] bool -> [T, H]."""
        query = rotate(self.query(x), cosines, sines)
        keys, values = self.keys_values(x)
        keys = rotate(keys, cosines, sines)
        group = self.num_heads // self.num_kv_heads
        keys, values = keys.repeat_interleave(group, dim=1), values.repeat_interleave(group, dim=1)
        mixed = functional.scaled_dot_product_attention(
            query.transpose(0, 1), keys.transpose(0, 1), values.transpose(0, 1), attn_mask=visible
        )  # [heads, T, D]
        out: Tensor = self.o_proj(mixed.transpose(0, 1).flatten(1))
        return out

    def query(self, x: Tensor) -> Tensor:
        """x [R, H] -> [R, Hq, D], not rotated."""
        query: Tensor = self.q_proj(x).unflatten(-1, (-1, self.head_dim))
        return query if self.q_norm is None else self.q_norm(query)

    def keys_values(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """x [R, H] -> [R, Hkv, D] each, keys not rotated."""
        keys = self.k_proj(x).unflatten(-1, (-1, self.head_dim))
        return keys if self.k_norm is None else self.k_norm(keys), self.v_proj(x).unflatten(-1, (-1, self.head_dim))


class MtpLayer(nn.Module):
    def __init__(self, layer: PretrainedConfig) -> None:
        super().__init__()
        H, eps = layer.hidden_size, layer.rms_norm_eps
        self.token_layernorm, self.hidden_layernorm = Norm(H, eps=eps), Norm(H, eps=eps)
        self.input_proj = nn.Linear(2 * H, H, bias=False)
        self.input_layernorm = Norm(H, eps=eps)
        self.self_attn = MtpAttention(layer)
        self.post_attention_layernorm = Norm(H, eps=eps)
        self.mlp = GatedMlp(H, layer.intermediate_size, bias=getattr(layer, "mlp_bias", False))
        self.final_layernorm = Norm(H, eps=eps)

    def forward(self, hidden: Tensor, embeddings: Tensor, cosines: Tensor, sines: Tensor, visible: Tensor) -> Tensor:
        x = self.read(hidden, embeddings)
        return self.finish(x, self.self_attn(self.input_layernorm(x), cosines, sines, visible))

    def read(self, hidden: Tensor, embeddings: Tensor) -> Tensor:
        """hidden, embeddings [R, H] -> x, the layer's input [R, H]."""
        x: Tensor = self.input_proj(torch.cat([self.token_layernorm(embeddings), self.hidden_layernorm(hidden)], -1))
        return x

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """residual [R, H], attended [R, H] after o_proj -> o [R, H]."""
        x = residual + attended
        out: Tensor = self.final_layernorm(x + self.mlp(self.post_attention_layernorm(x)))
        return out


class Mtp(nn.Module):
    """Parameters have the names of the `mtp` layout, so `state_dict()` is the content of the file.

    draft_vocab: [Vd] int64, ascending ids of the tokens that the module may propose; None: all tokens.
    """

    draft_vocab: Tensor | None

    def __init__(self, config: MtpConfig, draft_vocab: Tensor | None = None) -> None:
        super().__init__()
        self.config = config
        self.register_buffer("draft_vocab", draft_vocab, persistent=False)
        self.mtp_layers = nn.ModuleList([MtpLayer(config.layer)])

    @property
    def layer(self) -> MtpLayer:
        (layer,) = self.mtp_layers
        assert isinstance(layer, MtpLayer)
        return layer

    def rotary_tables(self, max_positions: int) -> tuple[Tensor, Tensor]:
        """Returns cosines and sines. Raises: ModelNotLoadable: the rotary scaling depends on the sequence's length."""
        return tables_of(self.config.layer, self.layer.self_attn.head_dim, max_positions)

    def forward(self, hidden: Tensor, embeddings: Tensor, positions: Tensor, visible: Tensor) -> Tensor:
        """Runs one step over T positions and returns o_t of each.

        Args:
            hidden: [T, H]. The target's hidden states, or the output of the previous step.
            embeddings: [T, H]. In the first step, the embedding of the token after each position; each further step
                reads tokens one position later.
            positions: [T] int64.
            visible: [T, T] bool. Whether a row attends to a position. A row attends to the positions of its text up to
                its own position.

        Returns: [T, H] after the final norm.
        """
        cosines, sines = self.rotary_tables(int(positions.max()) + 1)
        angles = cosines.to(hidden.device)[positions], sines.to(hidden.device)[positions]
        out: Tensor = self.layer(hidden, embeddings, *angles, visible)
        return out

    def save(self, folder: Path) -> None:
        """Writes config.json and weights into an existing folder."""
        tensors = {k: v.detach().to(self.config.dtype).contiguous() for k, v in self.state_dict().items()}
        save_file(tensors, folder / WEIGHTS_FILE)
        (folder / "config.json").write_text(json.dumps(self.config.to_values(), indent=2) + "\n")
        if self.draft_vocab is not None:
            (folder / VOCAB_FILE).write_text(json.dumps(self.draft_vocab.tolist()) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Mtp":
        """Loads in float32. Raises: SpeculatorNotLoadable: files are missing, damaged, or of another drafter."""
        try:
            config = MtpConfig.from_values(json.loads((folder / "config.json").read_text()))
            tensors = {
                name: tensor
                for path in sorted(folder.glob("*.safetensors"))
                for name, tensor in load_file(path).items()
                if not name.startswith(_IGNORED)
            }
            vocab = None
            if (folder / VOCAB_FILE).exists():
                vocab = torch.tensor(json.loads((folder / VOCAB_FILE).read_text()), dtype=torch.int64)
            module = cls(replace(config, dtype=tensors["mtp_layers.0.input_proj.weight"].dtype), vocab)
            module.rotary_tables(1)
            module.load_state_dict(tensors)
        except (OSError, ValueError, KeyError, RuntimeError, TypeError, SafetensorError, ModelNotLoadable) as error:
            raise SpeculatorNotLoadable(f"{folder} holds no MTP module: {error}") from error
        return module
