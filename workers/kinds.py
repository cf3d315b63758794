"""The kinds of speculators that can be trained, by name. Standard library only: the API imports this module.

The parts of a kind are found from its name:

    engine/kinds.py                    the drafter, its graph decoding and the trainer
    workers/hyperparameters/NAME.py    the class NameHyperparameters
    workers/exports/kinds/NAME.py      KIND: how an artifact of this kind is recognised, checked and written
    workers/exports/FORMAT.py          KINDS: the kinds that this format can hold; speculators.py derives them from KIND
"""

TRAINED_KINDS = ("medusa", "turbo_lora", "eagle3", "mtp", "block", "draft_model")

AUTO = "auto"  # a request may name it instead of a kind: each candidate kind is trained, and the fastest is kept
AUTO_CANDIDATES = ("medusa", "eagle3")  # the kinds with the highest acceptance lengths (benchmarks/results/training)
REQUESTED_KINDS = (AUTO, *TRAINED_KINDS)

# Fine-tuning is not a kind of speculator: it trains a LoRA adapter on labels. A training job names it as its method.
LORA = "lora"
FINE_TUNED_MODEL_TYPES = ("llama", "mistral", "qwen2", "qwen3")  # model types with a dense decoder (engine/config.py)

# Kinds whose speculator contains a LoRA adapter that every answer uses, so that answers differ from the model's.
OUTPUT_CHANGING_KINDS = ("turbo_lora",)
MODEL, MODEL_AND_ADAPTER = "model", "model_and_adapter"  # what the answers of an evaluation are compared with


def served_drafter(kind: str, *, with_suffix_decoding: bool) -> str:
    """Returns the name of the drafter with which a speculator of this kind is served.

    Suffix decoding proposes tokens by copying text from the request and from past answers.
    """
    return f"{kind}+suffix" if with_suffix_decoding else kind


def class_prefix(kind: str) -> str:
    """Returns the kind's name as the beginning of a class name: TurboLora for turbo_lora."""
    return "".join(word.capitalize() for word in kind.split("_"))
