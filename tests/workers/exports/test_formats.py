"""An exported speculator is unchanged after import, and a speculator that cannot be served is not imported."""

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
from workers.exports.formats import FORMATS, export_speculator, formats_of
from workers.exports.target import Target
from workers.kinds import TRAINED_KINDS

PAIRS = [(kind, form) for kind in TRAINED_KINDS for form in formats_of(kind)]


# Round trips


def test_every_kind_that_is_trained_can_leave_and_every_format_is_used() -> None:
    assert all(formats_of(kind) for kind in TRAINED_KINDS)
    assert {form for _, form in PAIRS} == set(FORMATS)


@pytest.mark.parametrize(("kind", "form"), PAIRS)
def test_what_comes_back_is_what_left_and_is_served(
    kind: str,
    form: str,
    exported: Callable[[str, str], Path],
    take_in: Callable[..., str],
    tmp_path: Path,
    model: Model,
    model_dir: Path,
) -> None:
    folder = exported(kind, form)

    assert take_in(folder, form) == kind
    assert not {"report.json", "provenance.json"} & {path.name for path in folder.iterdir()}
    load_drafter(kind, model, tmp_path / "imported", model_dir=model_dir)
    before, after = (Artifact.read(tmp_path / name) for name in ("own", "imported"))
    if form == "lorax":  # which knows no draft vocabulary
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
def test_a_round_trip_keeps_everything_that_eagle3_computes_with(
    form: str, exported: Callable[[str, str], Path], take_in: Callable[..., str], tmp_path: Path
) -> None:
    take_in(exported("eagle3", form), form)

    before, after = (Eagle3.load(tmp_path / name) for name in ("own", "imported"))

    assert after.config == before.config
    tensors = zip(after.state_dict().values(), before.state_dict().values(), strict=True)
    assert all(torch.equal(one, other) for one, other in tensors)


def test_a_block_drafter_keeps_its_configuration(
    exported: Callable[[str, str], Path], take_in: Callable[..., str], tmp_path: Path
) -> None:
    take_in(exported("block", "speculators"), "speculators")

    before, after = (BlockModel.load(tmp_path / name).config for name in ("own", "imported"))

    assert after.attention == before.attention
    assert (after.tap_layers, after.max_depth, after.markov_rank) == (before.tap_layers, 5, 8)


def test_adapter_and_heads_lie_in_one_file_for_lorax(exported: Callable[[str, str], Path]) -> None:
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


def test_an_adapter_that_came_back_is_served(
    exported: Callable[[str, str], Path], take_in: Callable[..., str], tmp_path: Path, model: Model
) -> None:
    take_in(exported("turbo_lora", "lorax"), "lorax")

    adapters = Adapters(model.config, model.dtype, model.device, supported=True)

    adapters.load("pair", tmp_path / "imported")
    assert adapters.names == ("pair",)


def test_vllms_medusa_carries_the_models_rows_of_what_it_proposes(
    exported: Callable[[str, str], Path], model: Model
) -> None:
    folder = exported("medusa", "medusa")

    tensors = load_file(folder / "model.safetensors")
    assert torch.equal(tensors["lm_head.weight"][VOCAB], model.lm_head[VOCAB])
    others = torch.ones(259, dtype=torch.bool).index_fill(0, VOCAB, False)
    assert not tensors["lm_head.weight"][others].any()
    heads = MedusaHeads.load(folder.with_name("own"))
    assert torch.equal(tensors["blocks.2.layers.0.weight"].float(), heads.weight[0, 2])


def test_default_taps_are_not_written_for_sglang_and_others_by_the_layer_they_leave(
    tmp_path: Path, target: Target
) -> None:
    written = {}
    for name, taps in {"default": (2, 2, 1), "own": (1, 3, 4)}.items():
        folder, out = tmp_path / name, tmp_path / f"{name}-out"
        folder.mkdir()
        out.mkdir()
        write_eagle3(folder, tap_layers=taps)
        export_speculator(folder, "specforge", target, out)
        written[name] = json.loads((out / "config.json").read_text()).get("eagle_config")

    assert written["default"] is None
    assert written["own"]["eagle_aux_hidden_state_layer_ids"] == [0, 2, 3]


def test_a_block_is_marked_as_it_attends_for_vllm(exported: Callable[[str, str], Path]) -> None:
    assert json.loads((exported("block", "speculators") / "config.json").read_text())["sliding_window_non_causal"]


@pytest.mark.parametrize("kind", ["eagle3", "block", "mtp"])
def test_the_shapes_are_those_of_the_engines_modules(kind: str, tmp_path: Path, model_dir: Path) -> None:
    modules: dict[str, Any] = {"eagle3": Eagle3, "block": BlockModel, "mtp": Mtp}
    folder = write_speculator(kind, tmp_path / "own", model_dir)
    artifact = Artifact.read(folder)

    artifact.check(Target.read(model_dir))

    named = modules[kind].load(folder).state_dict()
    assert named.keys() - {"draft_vocab"} <= artifact.tensors.keys()
    for name in named.keys() & artifact.tensors.keys():
        assert artifact.tensors[name].shape == tuple(named[name].shape)


# Refused exports


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
def test_heads_that_a_format_has_no_place_for_are_refused_with_what_would_do(
    changes: dict[str, Any], form: str, advice: str, tmp_path: Path, target: Target
) -> None:
    write_medusa(tmp_path, **changes)

    assert advice in refusal(export_speculator, tmp_path, form, target, tmp_path / "out")


def test_a_kind_without_a_place_in_the_format_is_refused(tmp_path: Path, target: Target) -> None:
    write_eagle3(tmp_path)

    message = refusal(export_speculator, tmp_path, "lorax", target, tmp_path)

    assert message == "eagle3 can be exported as speculators, specforge, not as lorax"


def test_an_unknown_format_is_refused(tmp_path: Path, target: Target) -> None:
    write_eagle3(tmp_path)

    assert refusal(export_speculator, tmp_path, "gguf", target, tmp_path).startswith("format must be one of")


def test_specforges_block_drafter_comes_in_as_ours(take_in: Callable[..., str], tmp_path: Path, model: Model) -> None:
    folder = tmp_path / "dflash"
    folder.mkdir()
    block = make_block()
    save_file(dict(block.state_dict()), folder / "model.safetensors")
    own = {"mask_token_id": 7, "target_layer_ids": [0, 1]}
    values = transformer_values() | {"architectures": ["DFlashDraftModel"], "block_size": 5, "dflash_config": own}
    (folder / "config.json").write_text(json.dumps(values))

    assert take_in(folder, "specforge") == "block"

    served = BlockModel.load(tmp_path / "imported").config
    assert (served.tap_layers, served.sample_from_anchor, served.block_size) == ((1, 2), False, 5)
    load_drafter("block", model, tmp_path / "imported")


# The command


def test_the_command_goes_both_ways_and_says_what_it_refuses(
    tmp_path: Path, model_dir: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = write_speculator("eagle3", tmp_path / "own", model_dir)
    there, back = str(tmp_path / "there"), str(tmp_path / "back")

    assert main(["export", str(own), there, "--format", "specforge", "--model", str(model_dir)]) == 0
    assert main(["import", there, back, "--format", "specforge", "--model", str(model_dir)]) == 0
    assert "kind eagle3" in capsys.readouterr().out
    assert main(["export", str(own), there, "--format", "specforge", "--model", str(model_dir)]) == 2
    assert main(["export", str(own), f"{there}2", "--format", "lorax", "--model", str(model_dir)]) == 2
    assert "not as lorax" in capsys.readouterr().err
    assert not Path(f"{there}2").exists()
