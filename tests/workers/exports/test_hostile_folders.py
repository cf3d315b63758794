"""The import refuses folders that are damaged, contain code or do not fit the target. The message names the reason."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from tests.tiny_model import make_tiny_model
from tests.workers.exports.speculators import refusal
from workers.exports.formats import formats_of, import_speculator
from workers.exports.target import Target
from workers.kinds import TRAINED_KINDS

PAIRS = [(kind, form) for kind in TRAINED_KINDS for form in formats_of(kind)]


def edit(folder: Path, **changes: Any) -> None:
    """Changes values of config.json. The value None removes a key."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


def _pickle(folder: Path) -> None:
    (folder / "pytorch_model.bin").write_bytes(b"\x80\x04")


def _code(folder: Path) -> None:
    (folder / "modeling_own.py").write_text("import os\n")


def _auto_map(folder: Path) -> None:
    edit(folder, auto_map={"AutoModel": "modeling_own.Model"})


def _link(folder: Path) -> None:
    (folder / "README.md").symlink_to("/etc/hostname")


def _no_weights(folder: Path) -> None:
    (folder / "model.safetensors").unlink()


def _truncated(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-1])


def _header_beyond_the_end(folder: Path) -> None:
    path = folder / "model.safetensors"
    path.write_bytes((1 << 40).to_bytes(8, "little") + path.read_bytes()[8:])


def _change_tensors(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def damage(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return damage


def _edit_layer_config(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    edit(folder, transformer_layer_config=values["transformer_layer_config"] | changes)


def _wrong_number_of_heads(folder: Path) -> None:
    _edit_layer_config(folder, num_attention_heads=8)


def _duplicate_tensors(folder: Path) -> None:
    shutil.copyfile(folder / "model.safetensors", folder / "other.safetensors")


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle": (_pickle, "pytorch_model.bin may not be part"),
    "code": (_code, "modeling_own.py may not be part"),
    "auto_map": (_auto_map, "auto_map"),
    "auto_map of a part": (lambda folder: _edit_layer_config(folder, auto_map={}), "refers to Python code (auto_map)"),
    "custom code of pipelines": (
        lambda folder: edit(folder, custom_pipelines={}),
        "refers to Python code (custom_pipelines)",
    ),
    "trust in remote code": (lambda folder: edit(folder, **{"trust_remote_code": True}), "(trust_remote_code)"),
    "code in another file": (
        lambda folder: void((folder / "tokenizer_config.json").write_text('{"auto_map": {}}')),
        "tokenizer_config.json refers to Python code",
    ),
    "a link": (_link, "README.md may not be part"),
    "a folder": (lambda folder: (folder / "model.safetensors.index.json").mkdir(), "may not be part"),
    "no weights": (_no_weights, "no *.safetensors"),
    "weights cut short": (_truncated, "is not a safetensors file"),
    "a header beyond the end": (_header_beyond_the_end, "the header cannot have"),
    "a tensor twice": (_duplicate_tensors, "is in two files"),
    "a tensor missing": (_change_tensors(lambda t: t.pop("fc.weight")), "fc.weight is missing"),
    "a tensor too many": (_change_tensors(lambda t: t.update(own=torch.ones(1))), "own is not part of a speculator"),
    "a tensor of another shape": (
        _change_tensors(lambda t: t.update({"norm.weight": torch.ones(63)})),
        "norm.weight must be [64], got [63]",
    ),
    "integers for weights": (
        _change_tensors(lambda t: t.update({"norm.weight": torch.ones(64, dtype=torch.int64)})),
        "norm.weight must be one of",
    ),
    "ids beyond the vocabulary": (
        _change_tensors(lambda t: t.update(d2t=torch.full((200,), 100))),
        "draft vocabulary must be ascending ids below 259",
    ),
    "sizes that the tensors do not have": (_wrong_number_of_heads, "must be"),
    "hidden state layers beyond the model": (
        lambda folder: edit(folder, eagle_aux_hidden_state_layer_ids=[1, 2, 5]),
        "tapped layers must be in 0..4",
    ),
    "an unknown kind": (lambda folder: edit(folder, speculators_model_type="eagle9"), "must be one of eagle3"),
    "a config that is not an object": (
        lambda folder: void((folder / "config.json").write_text("[]")),
        "must hold an object",
    ),
    "a deeply nested config": (
        lambda folder: void((folder / "config.json").write_text("[" * 100_000)),
        "is not JSON",
    ),
    "too many positions": (
        lambda folder: _edit_layer_config(folder, max_position_embeddings=1 << 40),
        "max_position_embeddings must be",
    ),
    "a size that is a string": (
        lambda folder: edit(folder, draft_vocab_size="many"),
        "draft_vocab_size must be a whole",
    ),
}


def void(_: object) -> None:
    """Ignores the result of an action."""


@pytest.mark.parametrize(("damage", "message"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_damaged_or_hostile_folder_is_refused_with_a_message_that_names_the_fault(
    damage: Callable[[Path], None],
    message: str,
    exported: Callable[[str, str], Path],
    import_folder: Callable[..., str],
    tmp_path: Path,
) -> None:
    folder = exported("eagle3", "speculators")
    damage(folder)

    assert message in refusal(import_folder, folder, "speculators")
    assert list((tmp_path / "imported").iterdir()) == []


@pytest.mark.parametrize(("kind", "form"), PAIRS)
def test_a_speculator_of_another_target_is_refused(
    kind: str, form: str, exported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder, out = exported(kind, form), tmp_path / "out"
    out.mkdir()
    other = make_tiny_model(tmp_path / "other", num_layers=4, hidden_size=32, vocab_size=512)

    assert refusal(lambda: import_speculator(folder, form, Target.read(other), out, provenance={}))


def test_too_many_heads_are_refused_before_they_are_allocated(
    exported: Callable[[str, str], Path], import_folder: Callable[..., str]
) -> None:
    folder = exported("medusa", "medusa")
    edit(folder, num_heads=1 << 20)

    assert "num_heads must be" in refusal(import_folder, folder, "medusa")
