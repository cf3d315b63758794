"""Hyperparameters of every kind: defaults, names, types and ranges."""

import pytest

from workers.exports.formats import formats_of
from workers.hyperparameters.fields import HyperparameterError
from workers.hyperparameters.kinds import as_values, read_hyperparameters
from workers.kinds import TRAINED_KINDS


@pytest.mark.parametrize("kind", TRAINED_KINDS)
def test_omitted_hyperparameters_have_defaults_and_the_result_of_as_values_can_be_read_back(kind: str) -> None:
    found = read_hyperparameters(kind, {"max_steps": 7, "learning_rate": 1})
    assert (found.loop.max_steps, found.loop.learning_rate, found.loop.max_seconds) == (7, 1, None)
    assert read_hyperparameters(kind, as_values(found)) == found
    assert "loop" not in as_values(found)


@pytest.mark.parametrize(
    ("kind", "values", "message"),
    [
        ("medusa", {"num_head": 4}, "got also num_head"),
        ("medusa", {"loop": {}}, "got also loop"),
        ("medusa", {"num_heads": 0}, r"num_heads must be in 1\.\.16, got 0"),
        ("medusa", {"num_heads": 2.5}, "num_heads must be int, got 2.5"),
        ("medusa", {"num_heads": True}, "num_heads must be int, got True"),
        ("medusa", {"learning_rate": "fast"}, "learning_rate must be float, got 'fast'"),
        ("medusa", {"learning_rate": 0}, "learning_rate must be in"),
        ("medusa", {"learning_rate": float("nan")}, "learning_rate must be in .*, got nan"),
        ("eagle3", {"num_heads": 4}, "got also num_heads"),
        ("eagle3", {"steps": 9}, r"steps must be in 1\.\.8, got 9"),
        ("eagle3", {"max_seconds": -1}, "max_seconds must be in"),
        ("eagle3", {"validation_fraction": 1.0}, r"validation_fraction must be in 0\.0\.\.0\.9, got 1\.0"),
        ("eagle3", {"precision": "int4"}, "precision must be one of auto, float32, bfloat16, got 'int4'"),
        ("mtp", {"step_decay": 1.5}, r"step_decay must be in 0\.0\.\.1\.0, got 1.5"),
        ("mtp", {"optimizer": "sgd"}, "optimizer must be one of adamw, muon, got 'sgd'"),
        ("block", {"block_size": 1, "sample_from_anchor": False}, "block_size must be at least 2"),
        ("draft_model", {"num_layers": -1}, "num_layers must be in"),
        ("turbo_lora", {"rank": 257}, r"rank must be in 1\.\.256, got 257"),
        ("medusa", {"export_as": "medusa"}, "export_as medusa: .* train with token_input false"),
        ("medusa", {"export_as": "lorax", "token_input": False, "num_layers": 2}, "export_as lorax: .* num_layers 1"),
        ("turbo_lora", {"export_as": "lorax"}, "export_as lorax: .* train with token_input false"),
        ("eagle3", {"export_as": "medusa"}, "eagle3 can be exported as speculators, specforge, not as medusa"),
        ("eagle3", {"export_as": "gguf"}, "export_as gguf: format must be one of speculators, "),
        ("eagle3", {"export_as": 1}, r"export_as must be str \| None, got 1"),
        ("psychic", {}, "kind must be one of auto, medusa, .*, got 'psychic'"),
    ],
)
def test_the_error_for_wrong_hyperparameters_says_what_is_allowed(
    kind: str, values: dict[str, object], message: str
) -> None:
    with pytest.raises(HyperparameterError, match=message):
        read_hyperparameters(kind, values)


def test_export_as_accepts_every_format_of_the_kind() -> None:
    heads = {"token_input": False}
    for kind in TRAINED_KINDS:
        for form in formats_of(kind):
            values = heads if form in ("medusa", "lorax") else {}
            assert read_hyperparameters(kind, {"export_as": form, **values}).loop.export_as == form
