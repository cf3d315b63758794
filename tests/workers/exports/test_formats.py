"""What leaves in another engine's form comes back as it was, and nothing comes in that could not be served."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine.adapters import Adapters
from engine.drafters.block_model import BlockModel
from engine.drafters.eagle3_module import Eagle3
from engine.drafters.medusa_heads import MedusaHeads
from engine.drafters.mtp_model import Mtp
from engine.load import load_drafter, load_model
from engine.models.base import Model
from tests.engine.tiny_speculators import make_block, transformer_values
from tests.tiny_model import make_tiny_model
from tests.workers.exports.speculators import LORA, VOCAB, write_eagle3, write_medusa, write_speculator
from workers.exports.__main__ import main
from workers.exports.artifact import KINDS, Artifact
from workers.exports.errors import ExchangeError
from workers.exports.formats import FORMATS, export_speculator, formats_of, import_speculator
from workers.exports.target import Target
from workers.hyperparameters.kinds import KINDS as TRAINED_KINDS

PAIRS = [(kind, form) for kind in KINDS for form in formats_of(kind)]


@pytest.fixture(scope="module")
def model_dir(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_tiny_model(tmp_path_factory.mktemp("model"), num_layers=4, dtype=torch.bfloat16)


@pytest.fixture(scope="module")
def model(model_dir: Path) -> Model:
    return load_model(model_dir)


@pytest.fixture
def target(model_dir: Path) -> Target:
    return Target.read(model_dir, name="a/model")


@pytest.fixture
def exported(tmp_path: Path, model_dir: Path, target: Target) -> Callable[[str, str], Path]:
    def make(kind: str, form: str) -> Path:
        out = tmp_path / "exported"
        out.mkdir()
        export_speculator(write_speculator(kind, tmp_path / "own", model_dir), form, target, out)
        return out

    return make


@pytest.fixture
def take_in(tmp_path: Path, target: Target) -> Callable[..., str]:
    def run(folder: Path, form: str) -> str:
        out = tmp_path / "imported"
        out.mkdir()
        return import_speculator(folder, form, target, out, provenance={"archive_sha256": "0" * 64})

    return run


def refusal(action: Callable[..., object], *arguments: object) -> str:
    with pytest.raises(ExchangeError) as refused:
        action(*arguments)
    return refused.value.message


def edit(folder: Path, **changes: Any) -> None:
    """Of config.json; `None` takes a key away."""
    path = folder / "config.json"
    values = json.loads(path.read_text()) | changes
    path.write_text(json.dumps({name: value for name, value in values.items() if value is not None}))


# What leaves and comes back


def test_every_kind_that_is_trained_can_leave_and_every_format_is_used() -> None:
    assert set(KINDS) == set(TRAINED_KINDS)
    assert all(formats_of(kind) for kind in KINDS)
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
    modules = {"eagle3": Eagle3, "block": BlockModel, "mtp": Mtp}
    folder = write_speculator(kind, tmp_path / "own", model_dir)
    artifact = Artifact.read(folder)

    artifact.check(Target.read(model_dir))

    named = modules[kind].load(folder).state_dict()
    assert named.keys() - {"draft_vocab"} <= artifact.tensors.keys()
    for name in named.keys() & artifact.tensors.keys():
        assert artifact.tensors[name].shape == tuple(named[name].shape)


# What is refused on its way out


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


# What is refused on its way in


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


def _tensors_changed(change: Callable[[dict[str, torch.Tensor]], object]) -> Callable[[Path], None]:
    def run(folder: Path) -> None:
        tensors = load_file(folder / "model.safetensors")
        change(tensors)
        save_file(tensors, folder / "model.safetensors")

    return run


def _layer(folder: Path, **changes: Any) -> None:
    values = json.loads((folder / "config.json").read_text())
    edit(folder, transformer_layer_config=values["transformer_layer_config"] | changes)


def _other_sizes(folder: Path) -> None:
    _layer(folder, num_attention_heads=8)


def _twice(folder: Path) -> None:
    shutil.copyfile(folder / "model.safetensors", folder / "other.safetensors")


HOSTILE: dict[str, tuple[Callable[[Path], None], str]] = {
    "a pickle": (_pickle, "pytorch_model.bin may not be part"),
    "code": (_code, "modeling_own.py may not be part"),
    "auto_map": (_auto_map, "auto_map"),
    "a link": (_link, "README.md may not be part"),
    "a folder": (lambda folder: (folder / "model.safetensors.index.json").mkdir(), "may not be part"),
    "no weights": (_no_weights, "no *.safetensors"),
    "weights cut short": (_truncated, "is not a safetensors file"),
    "a header beyond the end": (_header_beyond_the_end, "the header cannot have"),
    "a tensor twice": (_twice, "is in two files"),
    "a tensor missing": (_tensors_changed(lambda t: t.pop("fc.weight")), "fc.weight is missing"),
    "a tensor too many": (_tensors_changed(lambda t: t.update(own=torch.ones(1))), "own belongs to no speculator"),
    "a tensor of another shape": (
        _tensors_changed(lambda t: t.update({"norm.weight": torch.ones(63)})),
        "norm.weight must be [64], got [63]",
    ),
    "integers for weights": (
        _tensors_changed(lambda t: t.update({"norm.weight": torch.ones(64, dtype=torch.int64)})),
        "norm.weight must be one of",
    ),
    "ids beyond the vocabulary": (
        _tensors_changed(lambda t: t.update(d2t=torch.full((200,), 100))),
        "draft vocabulary must be ascending ids below 259",
    ),
    "sizes that the tensors do not have": (_other_sizes, "must be"),
    "taps beyond the model": (
        lambda folder: edit(folder, eagle_aux_hidden_state_layer_ids=[1, 2, 5]),
        "tapped layers must be in 0..4",
    ),
    "a kind that is none": (lambda folder: edit(folder, speculators_model_type="eagle9"), "must be one of eagle3"),
    "no object": (lambda folder: void((folder / "config.json").write_text("[]")), "must hold an object"),
    "a config as deep as a well": (
        lambda folder: void((folder / "config.json").write_text("[" * 100_000)),
        "is not JSON",
    ),
    "more positions than a table has room for": (
        lambda folder: _layer(folder, max_position_embeddings=1 << 40),
        "max_position_embeddings must be",
    ),
    "a size that is a word": (lambda folder: edit(folder, draft_vocab_size="many"), "draft_vocab_size must be a whole"),
}


def void(_: object) -> None:
    """For actions whose result nobody wants."""


@pytest.mark.parametrize(("damage", "said"), HOSTILE.values(), ids=HOSTILE.keys())
def test_a_folder_that_could_not_be_served_is_refused_by_name(
    damage: Callable[[Path], None],
    said: str,
    exported: Callable[[str, str], Path],
    take_in: Callable[..., str],
    tmp_path: Path,
) -> None:
    folder = exported("eagle3", "speculators")
    damage(folder)

    assert said in refusal(take_in, folder, "speculators")
    assert list((tmp_path / "imported").iterdir()) == []


@pytest.mark.parametrize(("kind", "form"), PAIRS)
def test_a_speculator_of_another_model_is_refused(
    kind: str, form: str, exported: Callable[[str, str], Path], tmp_path: Path
) -> None:
    folder, out = exported(kind, form), tmp_path / "out"
    out.mkdir()
    other = make_tiny_model(tmp_path / "other", num_layers=4, hidden_size=32, vocab_size=512)

    assert refusal(lambda: import_speculator(folder, form, Target.read(other), out, provenance={}))


def test_heads_are_counted_before_they_are_built(
    exported: Callable[[str, str], Path], take_in: Callable[..., str]
) -> None:
    folder = exported("medusa", "medusa")
    edit(folder, num_heads=1 << 20)

    assert "num_heads must be" in refusal(take_in, folder, "medusa")


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
