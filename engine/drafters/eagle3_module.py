"""The EAGLE-3 module, used for training and serving: one decoder layer over the target's taps and its own output.

The taps are the target's intermediate hidden states.

    g_t   = fc(taps at position t)                                   with fc_norm, each tap is normalized first
    x_t   = [norm(emb(token t + 1)), norm(g_t)]                      concatenated, [2 H]; input of query, key and value
    r_t   = g_t + attention over x_0 .. x_t                          rotary position t
    o_t   = r_t + mlp(norm(r_t))
    logits of token t + 2 = lm_head(norm(o_t))                       over a draft vocabulary
    where the target has no taps yet, g_{t + 1} = o_t                with norm_output, g_{t + 1} = norm(o_t)

Parameters have the names of the `speculators` layout, so `state_dict()` is the content of the file. The target's id of
draft token i is i + d2t[i]; t2d marks the target's ids that can be drafted.

Shape letters: R rows, T taps, H and Ht the drafter's and the target's hidden size, D head size, Hq query heads, V and
Vd the target's and the draft vocabulary.

Source: Li et al. 2025, arXiv:2503.01840 (EAGLE-3); arXiv:2605.09992 (3.1: fc_norm, norm_output).
"""

import json
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor, nn

from engine.drafters.eagle3_config import Eagle3Config, Layout
from engine.drafters.modules import GatedMlp, Norm
from engine.errors import SpeculatorNotLoadable

WEIGHTS_FILE = "model.safetensors"
_OWN_PREFIX, _SPECFORGE_PREFIX = "layers.0.", "midlayer."


class Eagle3Attention(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        query, keys = config.num_heads * config.head_dim, config.num_kv_heads * config.head_dim
        self.q_proj = nn.Linear(2 * config.hidden_size, query, bias=False)
        self.k_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.v_proj = nn.Linear(2 * config.hidden_size, keys, bias=False)
        self.o_proj = nn.Linear(query, config.hidden_size, bias=False)


class Eagle3Layer(nn.Module):
    def __init__(self, config: Eagle3Config) -> None:
        super().__init__()
        self.input_layernorm = Norm(config.hidden_size, eps=config.norm_eps)
        self.hidden_norm = Norm(config.hidden_size, eps=config.norm_eps)
        self.post_attention_layernorm = Norm(config.hidden_size, eps=config.norm_eps)
        self.self_attn = Eagle3Attention(config)
        self.mlp = GatedMlp(config.hidden_size, config.intermediate_size)


class Eagle3(nn.Module):
    """embed_tokens: the drafter's own embedding [V, H]; None if the drafter uses the target's embedding."""

    d2t: Tensor  # [Vd] int64
    t2d: Tensor  # [V] bool

    def __init__(self, config: Eagle3Config, draft_vocab: Tensor, *, own_embedding: bool = False) -> None:
        """draft_vocab: [Vd] int64, the target's ids of the draft tokens, ascending."""
        super().__init__()
        if draft_vocab.shape != (config.draft_vocab_size,):
            raise ValueError(f"draft_vocab must be [{config.draft_vocab_size}], got {list(draft_vocab.shape)}")
        self.config = config
        H, Ht, eps = config.hidden_size, config.target_hidden_size, config.norm_eps
        self.fc = nn.Linear(config.num_taps * Ht, H, bias=False)
        self.layers = nn.ModuleList([Eagle3Layer(config)])
        self.norm = Norm(H, eps=eps)
        self.lm_head = nn.Linear(H, config.draft_vocab_size, bias=False)
        self.embed_tokens = nn.Embedding(config.vocab_size, H) if own_embedding else None
        self.input_norm = Norm(config.num_taps * Ht, eps=eps) if config.norm_before_fc else None
        norms = [Norm(Ht, eps=eps) for _ in range(config.num_taps)]
        self.fc_norm = nn.ModuleList(norms) if config.fc_norm else None
        self.register_buffer("d2t", draft_vocab - torch.arange(config.draft_vocab_size))
        self.register_buffer("t2d", torch.zeros(config.vocab_size, dtype=torch.bool).scatter_(0, draft_vocab, True))

    @property
    def layer(self) -> Eagle3Layer:
        layer = self.layers[0]
        assert isinstance(layer, Eagle3Layer)
        return layer

    @property
    def draft_vocab(self) -> Tensor:
        """[Vd] int64: the target's id of each draft token."""
        return self.d2t + torch.arange(self.d2t.shape[0], device=self.d2t.device)

    def fuse(self, taps: Tensor) -> Tensor:
        """taps [R, T, Ht] float32 -> g [R, H]."""
        if self.fc_norm is not None:
            taps = torch.stack([norm(tap) for norm, tap in zip(self.fc_norm, taps.unbind(1), strict=True)], dim=1)
        flat = taps.flatten(1)
        out: Tensor = self.fc(flat if self.input_norm is None else self.input_norm(flat))
        return out.float()

    def read(self, g: Tensor, embeddings: Tensor) -> tuple[Tensor, Tensor]:
        """g, embeddings [R, H] float32 -> initial residual [R, H] and attention input [R, 2 H]."""
        normed = self.layer.hidden_norm(g)
        x = torch.cat([self.layer.input_layernorm(embeddings), normed], dim=-1)
        return normed if self.config.norm_before_residual else g, x

    def finish(self, residual: Tensor, attended: Tensor) -> Tensor:
        """residual [R, H], attended [R, Hq D] -> o [R, H]."""
        residual = residual + self.layer.self_attn.o_proj(attended)
        out: Tensor = residual + self.layer.mlp(self.layer.post_attention_layernorm(residual))
        return out

    def split(self, out: Tensor) -> tuple[Tensor, Tensor]:
        """o [R, H] -> the input of lm_head and the input of the next step, [R, H] each."""
        normed = self.norm(out)
        return normed, normed if self.config.norm_output else out

    def save(
        self, folder: Path, *, base_model: str, layout: Layout = "speculators", dtype: torch.dtype = torch.bfloat16
    ) -> None:
        """Writes weights, in `dtype`, and config.json into an existing folder."""
        tensors = {}
        for name, tensor in self.state_dict().items():
            renamed = name.replace(_OWN_PREFIX, _SPECFORGE_PREFIX) if layout == "specforge" else name
            tensors[renamed] = (tensor.to(dtype) if tensor.is_floating_point() else tensor).contiguous()
        save_file(tensors, folder / WEIGHTS_FILE, metadata={"format": "pt"})
        values = self.config.to_values(layout, base_model=base_model, depth=5)
        (folder / "config.json").write_text(json.dumps(values, indent=2) + "\n")

    @classmethod
    def load(cls, folder: Path) -> "Eagle3":
        """Loads either layout in float32. Raises: SpeculatorNotLoadable: files are missing or damaged."""
        try:
            config = Eagle3Config.from_values(json.loads((folder / "config.json").read_text()))
            tensors = load_file(folder / WEIGHTS_FILE)
            named = {name.replace(_SPECFORGE_PREFIX, _OWN_PREFIX): tensor for name, tensor in tensors.items()}
            if "d2t" not in named and config.draft_vocab_size == config.vocab_size:
                named["d2t"] = torch.zeros(config.vocab_size, dtype=torch.int64)
            vocab = named["d2t"].long() + torch.arange(config.draft_vocab_size)
            module = cls(config, vocab, own_embedding="embed_tokens.weight" in named)
            named.setdefault("t2d", module.t2d)
            module.load_state_dict(named)
        except (OSError, ValueError, KeyError, TypeError, RuntimeError) as error:
            raise SpeculatorNotLoadable(f"{folder} holds no EAGLE-3 drafter: {error!r}") from error
        return module.float()
