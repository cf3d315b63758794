"""Writes a causal model of a few thousand weights, with a byte-level tokenizer, to files in less than a second.

The weights are random but larger than usual, so that the distribution of the next token is far from uniform: greedy
answers differ from prompt to prompt, and rounding does not change which token is the likeliest.
"""

from pathlib import Path
from typing import Any

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers
from transformers import PretrainedConfig, PreTrainedTokenizerFast

SPECIAL_TOKENS = ("<|endoftext|>", "<|start|>", "<|end|>")  # Qwen's tokenizer requires the first name
CHAT_TEMPLATE = (
    "{% for message in messages %}<|start|>{{ message['role'] }}\n{{ message['content'] }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|start|>assistant\n{% endif %}"
)


def make_tiny_model(
    directory: Path,
    architecture: str = "llama",
    *,
    seed: int = 0,
    num_layers: int = 2,
    hidden_size: int = 64,
    max_position_embeddings: int = 1024,
    tie_word_embeddings: bool = False,
    dtype: torch.dtype = torch.float32,
    **overrides: Any,
) -> Path:
    """Writes config, weights, tokenizer and chat template into `directory`, and returns the directory.

    The same arguments give the same bytes. The model rarely generates its end-of-sequence token, `<|end|>`.

    Args:
        architecture: a model_type of transformers.
        overrides: values that replace those of the model's configuration.
    """
    directory.mkdir(parents=True, exist_ok=True)
    _byte_tokenizer().save_pretrained(directory)
    sizes = {"num_hidden_layers": num_layers, "max_position_embeddings": max_position_embeddings}
    config = tiny_config(
        architecture, hidden_size=hidden_size, tie_word_embeddings=tie_word_embeddings, **(sizes | overrides)
    )
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = transformers.AutoModelForCausalLM.from_config(config)
        if architecture == "deepseek_v3":  # its initial norm weights and routing corrections are all equal
            for tensor in (*model.parameters(), *(b for name, b in model.named_buffers() if "correction" in name)):
                if tensor.dim() == 1:
                    tensor.data += 0.3 * torch.randn_like(tensor)
        if architecture == "gpt_oss":  # the biases of its experts are zero, and its sinks are small
            for name, tensor in model.named_parameters():
                if name.endswith(("sinks", "bias")):
                    tensor.data += 0.5 * torch.randn_like(tensor)
    model.to(dtype).save_pretrained(directory)
    return directory


def tiny_config(architecture: str, *, hidden_size: int = 64, **overrides: Any) -> PretrainedConfig:
    """Returns the configuration of a tiny model."""
    tokenizer = _byte_tokenizer()
    extra = _deepseek_sizes(hidden_size) if architecture == "deepseek_v3" else {"num_key_value_heads": 2}
    sizes = {
        "vocab_size": len(tokenizer),
        "hidden_size": hidden_size,
        "intermediate_size": 2 * hidden_size,
        "num_hidden_layers": 2,
        "num_attention_heads": 4,
        "head_dim": hidden_size // 4,
        "max_position_embeddings": 1024,
        "initializer_range": 0.1,
        "bos_token_id": None,
        "eos_token_id": tokenizer.eos_token_id,
        "pad_token_id": tokenizer.pad_token_id,
    }
    config: PretrainedConfig = transformers.AutoConfig.for_model(architecture, **(sizes | extra | overrides))
    return config


def train_tiny_model(directory: Path, text: str, *, num_steps: int = 60) -> Path:
    """Trains the model until it predicts `text` well, in a few seconds, and returns the directory."""
    model = transformers.AutoModelForCausalLM.from_pretrained(directory)
    ids = torch.tensor([transformers.AutoTokenizer.from_pretrained(directory).encode(text)])
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    for _ in range(num_steps):
        optimizer.zero_grad()
        model(ids, labels=ids).loss.backward()
        optimizer.step()
    model.save_pretrained(directory)
    return directory


def _deepseek_sizes(hidden_size: int) -> dict[str, int]:
    """Returns the sizes of a model whose first layer is dense and whose other layers have 8 experts in 4 groups.

    Each token uses 3 experts, from 2 groups. All widths differ, so that code that confuses two of them fails.
    """
    heads = {"q_lora_rank": 48, "kv_lora_rank": 32, "qk_nope_head_dim": 24, "qk_rope_head_dim": 16, "v_head_dim": 20}
    experts = {"n_routed_experts": 8, "n_group": 4, "topk_group": 2, "num_experts_per_tok": 3, "n_shared_experts": 2}
    return heads | experts | {"moe_intermediate_size": hidden_size // 2, "first_k_dense_replace": 1}


def _byte_tokenizer() -> PreTrainedTokenizerFast:
    """Returns a tokenizer with a token for each byte and three special tokens.

    It has no merges, so a text has exactly one encoding.
    """
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: index for index, token in enumerate([*SPECIAL_TOKENS, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    core.decoder = decoders.ByteLevel()
    pad, _, end = SPECIAL_TOKENS
    return PreTrainedTokenizerFast(
        tokenizer_object=core,
        pad_token=pad,
        eos_token=end,
        additional_special_tokens=list(SPECIAL_TOKENS[1:2]),
        chat_template=CHAT_TEMPLATE,
        clean_up_tokenization_spaces=False,
    )
