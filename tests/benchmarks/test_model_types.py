"""The table of served model types (workers/model_types.py) agrees with what the engine does with tiny models."""

import pytest
from transformers.models.auto.modeling_auto import MODEL_FOR_CAUSAL_LM_MAPPING_NAMES

from benchmarks.models.types import TABLE, text_of, verdict
from engine.config import MODEL_TYPES
from workers.model_types import VERDICTS


@pytest.mark.parametrize("model_type", ["glm4", "smollm3", "olmo2", "qwen3_moe", "bloom", "mamba", "gemma2"])
def test_the_table_is_current_for_a_sample_of_types(model_type: str) -> None:
    assert verdict(model_type) == VERDICTS[model_type]


def test_the_table_has_every_causal_model_of_transformers_and_all_decoders_of_the_engine() -> None:
    assert VERDICTS.keys() >= set(MODEL_FOR_CAUSAL_LM_MAPPING_NAMES)
    assert [model_type for model_type in MODEL_TYPES if VERDICTS[model_type] is not None] == []


def test_the_table_has_been_written_by_the_command() -> None:
    body = text_of(VERDICTS).partition("VERDICTS")[2]
    assert TABLE.read_text().endswith(body)


def test_the_verdict_on_a_type_without_a_tiny_model_gives_the_reason() -> None:
    assert str(verdict("no such type")).startswith("no tiny model can be made: ")
