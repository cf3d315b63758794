"""Exporting and importing a speculator does not change it. Speculators that a format does not support are refused."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.drafters.block_model import BlockModel
from engine.drafters.eagle3_module import Eagle3
from engine.drafters.medusa_heads import MedusaHeads
from engine.drafters.mtp_model import Mtp
from engine.load import load_drafter
from engine.lora.adapters import Adapters
from engine.models.base import Model
from tests.engine.tiny_speculators import make_block, transformer_values
from tests.workers.exports.speculators import LORA, VOCAB, refusal, write_eagle3, write_medusa, write_speculator
from workers.exports.__main__ import main
from workers.exports.artifact import Artifact
from workers.exports.errors import ExchangeError
from workers.exports.formats import FORMATS, export_speculator, formats_of
from workers.exports.target import Target
from workers.kinds import TRAINED_KINDS

PAIRS = [(kind, form) for kind in TRAINED_KINDS for form in formats_of(kind)]
# The fixture `exported` writes its speculator to the folder "own", and `import_folder` imports to "imported".


# Round trips


def test_every_trained_kind_has_a_format_and_every_format_has_a_kind() -> None:
    assert all(formats_of(kind) for kind in TRAINED_KINDS)
    assert {form for _, form in PAIRS} == set(FORMATS)


@pytest.mark.parametrize(("kind", "form"), PAIRS)
def test_an_exported_and_imported_speculator_is_unchanged_and_loads(
    kind: str,
    form: str,
    exported: Callable[[str, str], Path],
    import_folder: Callable[..., str],
    tmp_path: Path,
    model: Model,
    model_dir: Path,
) -> None:
    folder = exported(kind, form)

    assert import_folder(folder, form) == kind
    assert not {"report.json", "provenance.json"} & {path.name for path in folder.iterdir()}
    load_drafter(kind, model, tmp_path / "imported", model_dir=model_dir)
    before, after = (Artifact.read(tmp_path / name) for name in ("own", "imported"))
    if form == "lorax":  # the format has no draft vocabulary, so the import gets all tokens
        assert after.draft_vocab == list(range(259))
        after.tensors["draft_vocab"] = before.tensors["draft_vocab"]
    assert {n: (t.dtype, t.shape, b"".join(t.chunks())) for n, t in after.tensors.items()} == {
        n: (t.dtype, t.shape, b"".join(t.chunks())) for n, t in before.tensors.items()
    }
    assert json.loads((tmp_path / "imported" / "provenance.json").read_text()) == {
        "imported_from": form,
        "archive_sha256": "0" * 64,
    }


@pytest.mark.parametrize("form", ["speculators", "specforge"])
def test_exporting_and_importing_keeps_the_configuration_and_weights_of_eagle3(
    form: str, exported: Callable[[str, str], Path], import_folder: Callable[..., str], tmp_path: Path
) -> None:
    import_folder(exported("eagle3", form), form)

    before, after = (Eagle3.load(tmp_path / name) for name in ("own", "imported"))

    assert after.config == before.config
    tensors = zip(after.state_dict().values(), before.state_dict().values(), strict=True)
    assert all(torch.equal(imported, original) for imported, original in tensors)


def test_exporting_and_importing_keeps_the_configuration_of_a_block_drafter(
    exported: Callable[[str, str], Path], import_folder: Callable[..., str], tmp_path: Path
) -> None:
    import_folder(exported("block", "speculators"), "speculators")

    before, after = (BlockModel.load(tmp_path / name).config for name in ("own", "imported"))

    assert after.attention == before.attention
    assert (after.tap_layers, after.max_depth, after.markov_rank) == (before.tap_layers, 5, 8)


def test_a_lorax_export_of_turbo_lora_has_adapter_and_heads_in_one_file(exported: Callable[[str, str], Path]) -> None:
    folder = exported("turbo_lora", "lorax")

    assert {path.name for path in folder.iterdir()} == {
        "adapter_config.json",
        "adapter_model.safetensors",
        "config.json",
    }
    tensors = load_file(folder / "adapter_model.safetensors")
    assert {LORA.format("A"), LORA.format("B"), "2.0.linear.weight", "2.0.linear.bias"} < tensors.keys()
    assert json.loads((folder / "config.json").read_text()) == {
        "base_model_name_or_path": "a/model",
        "medusa_num_heads": 3,
        "medusa_num_layers": 1,
        "version": "2",
    }


def test_the_engine_loads_an_exported_and_imported_adapter(
    exported: Callable[[str, str], Path], import_folder: Callable[..., str], tmp_path: Path, model: Model
) -> None:
    import_folder(exported("turbo_lora", "lorax"), "lorax")

    adapters = Adapters(model)

    adapters.load("imported", tmp_path / "imported")
    assert adapters.names == ("imported",)


def test_the_lm_head_of_a_medusa_export_for_vllm_is_zero_outside_the_draft_vocabulary(
    exported: Callable[[str, str], Path], model: Model
) -> None:
    folder = exported("medusa", "medusa")

    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"][VOCAB], model.lm_head[VOCAB])
    is_outside = torch.ones(259, dtype=torch.bool).index_fill(0, VOCAB, False)
    assert not tensors["lm_head.weight"][is_outside].any()
    heads = MedusaHeads.load(folder.with_name("own"))
    assert torch.equal(tensors["blocks.2.layers.0.weight"].float(), heads.weight[0, 2])


def test_a_drafter_that_reads_the_output_of_the_last_layer_is_not_exported_to_sglang(
    model_dir: Path, target: Target, tmp_path: Path
) -> None:
    own, out = tmp_path / "own", tmp_path / "out"
    for folder in (own, out, tmp_path / "vllm"):
        folder.mkdir()
    write_eagle3(own, tap_layers=(1, 2, target.num_layers))

    with pytest.raises(ExchangeError, match="train it with export_as 'specforge'"):
        export_speculator(own, "specforge", target, out)
    export_speculator(own, "speculators", target, tmp_path / "vllm")

    assert list(out.iterdir()) == []
    config = json.loads((tmp_path / "vllm" / "config.json").read_text())
    assert config["eagle_aux_hidden_state_layer_ids"] == [1, 2, target.num_layers]


def test_a_specforge_export_lists_the_tap_layers_only_if_they_are_not_the_default(
    tmp_path: Path, target: Target
) -> None:
    written = {}
    for name, taps in {"default": (2, 2, 1), "own": (1, 2, 3)}.items():
        folder, out = tmp_path / name, tmp_path / f"{name}-out"
        folder.mkdir()
        out.mkdir()
        write_eagle3(folder, tap_layers=taps)
        export_speculator(folder, "specforge", target, out)
        written[name] = json.loads((out / "config.json").read_text()).get("eagle_config")

    assert written["default"] is None
    assert written["own"]["eagle_aux_hidden_state_layer_ids"] == [0, 1, 2]


@pytest.mark.parametrize("form", ["speculators", "specforge"])
def test_an_export_of_eagle3_does_not_mention_prompt_tokens(form: str, tmp_path: Path, target: Target) -> None:
    folder, out = tmp_path / "own", tmp_path / "out"
    folder.mkdir()
    out.mkdir()
    write_eagle3(folder, prompt_tokens=True)
    assert json.loads((folder / "config.json").read_text())["prompt_tokens"] is True
    export_speculator(folder, form, target, out)
    assert "prompt_tokens" not in json.loads((out / "config.json").read_text())


def test_a_block_export_for_vllm_is_marked_as_non_causal(exported: Callable[[str, str], Path]) -> None:
    assert json.loads((exported("block", "speculators") / "config.json").read_text())["sliding_window_non_causal"]


@pytest.mark.parametrize("kind", ["eagle3", "block", "mtp"])
def test_artifact_tensors_have_the_names_and_shapes_that_the_engine_loads(
    kind: str, tmp_path: Path, model_dir: Path
) -> None:
    modules: dict[str, Any] = {"eagle3": Eagle3, "block": BlockModel, "mtp": Mtp}
    folder = write_speculator(kind, tmp_path / "own", model_dir)
    artifact = Artifact.read(folder)

    artifact.check(Target.read(model_dir))

    named = modules[kind].load(folder).state_dict()
    assert named.keys() - {"draft_vocab"} <= artifact.tensors.keys()
    for name in named.keys() & artifact.tensors.keys():
        assert artifact.tensors[name].shape == tuple(named[name].shape)


# Exports that are refused


@pytest.mark.parametrize(
    ("changes", "form", "advice"),
    [
        ({"token_input": True}, "medusa", "token_input false"),
        ({"token_input": True}, "lorax", "token_input false"),
        ({"tied": False}, "medusa", "tied true"),
        ({"tied": False}, "lorax", "tied true"),
        ({"num_layers": 2}, "lorax", "num_layers 1"),
    ],
)
def test_heads_that_a_format_cannot_represent_are_refused_with_advice(
    changes: dict[str, Any], form: str, advice: str, tmp_path: Path, target: Target
) -> None:
    write_medusa(tmp_path, **changes)

    assert advice in refusal(export_speculator, tmp_path, form, target, tmp_path / "out")


def test_a_kind_that_a_format_cannot_represent_is_refused(tmp_path: Path, target: Target) -> None:
    write_eagle3(tmp_path)

    message = refusal(export_speculator, tmp_path, "lorax", target, tmp_path)

    assert message == "eagle3 can be exported as speculators, specforge, not as lorax"


def test_an_unknown_format_is_refused(tmp_path: Path, target: Target) -> None:
    write_eagle3(tmp_path)

    assert refusal(export_speculator, tmp_path, "gguf", target, tmp_path).startswith("format must be one of")


# Import


def test_a_dflash_drafter_of_specforge_is_imported_as_a_block_drafter(
    import_folder: Callable[..., str], tmp_path: Path, model: Model
) -> None:
    folder = tmp_path / "dflash"
    folder.mkdir()
    block = make_block()
    save_file(dict(block.state_dict()), folder / "model.safetensors")
    dflash = {"mask_token_id": 7, "target_layer_ids": [0, 1]}
    values = transformer_values() | {"architectures": ["DFlashDraftModel"], "block_size": 5, "dflash_config": dflash}
    (folder / "config.json").write_text(json.dumps(values))

    assert import_folder(folder, "specforge") == "block"

    served = BlockModel.load(tmp_path / "imported").config
    assert (served.tap_layers, served.sample_from_anchor, served.block_size) == ((1, 2), False, 5)
    load_drafter("block", model, tmp_path / "imported")


# The command


def test_the_command_exports_imports_and_reports_refusals(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write_speculator("eagle3", tmp_path / "own", model_dir)
    there, back = str(tmp_path / "there"), str(tmp_path / "back")

    assert main(["export", str(own), there, "--format", "specforge", "--model", str(model_dir)]) == 0
    assert main(["import", there, back, "--format", "specforge", "--model", str(model_dir)]) == 0
    assert "kind eagle3" in capsys.readouterr().out
    # Of the next two exports, the first is refused because its folder exists, the second because of the kind.
    assert main(["export", str(own), there, "--format", "specforge", "--model", str(model_dir)]) == 2
    assert main(["export", str(own), f"{there}2", "--format", "lorax", "--model", str(model_dir)]) == 2
    assert "not as lorax" in capsys.readouterr().err
    assert not Path(f"{there}2").exists()
