"""Each part of `system_fingerprint` changes exactly when the thing that it describes changes."""

import json
import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from engine import digests
from engine.config import EngineConfig
from engine.digests import weights_sha256
from engine.fingerprint import NO_ADAPTER, PARTS, Fingerprint, UnknownFingerprint
from engine.load import load_engine
from tests.engine.lora.test_adapters import make_adapter
from tests.tiny_model import make_tiny_model
from workers.contracts import file_sha256
from workers.contracts import fingerprint as revision

# peft uses a deprecated name of transformers.
pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return make_tiny_model(tmp_path / "model", "llama")


def fingerprint_of(folder: Path, **config: str) -> Fingerprint:
    found = load_engine(folder, config=EngineConfig(max_seq_len=64, **config)).fingerprint()  # type: ignore[arg-type]
    assert found is not None
    return found


def other_weights(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    tensors["model.norm.weight"] += torch.finfo(torch.float32).eps
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def other_template(folder: Path) -> None:
    path = folder / "chat_template.jinja"
    path.write_text(path.read_text() + " ")


def other_tokenizer(folder: Path) -> None:
    values = json.loads((folder / "tokenizer.json").read_bytes())
    values["normalizer"] = {"type": "NFC"}
    (folder / "tokenizer.json").write_text(json.dumps(values))


def other_defaults(folder: Path) -> None:
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": 2, "temperature": 0.6}))


@pytest.mark.parametrize(
    ("change", "part"),
    [(other_weights, "weights"), (other_template, "template"), (other_tokenizer, "tokenizer"),
     (other_defaults, "sampling")],
)  # fmt: skip
def test_a_change_of_a_model_file_changes_only_the_part_for_this_file(
    folder: Path, change: Callable[[Path], None], part: str
) -> None:
    before = fingerprint_of(folder)
    change(folder)
    after = fingerprint_of(folder)
    assert [name for name in PARTS if getattr(before, name) != getattr(after, name)] == [part]


def test_dtype_and_format_of_the_weights_are_parts_of_the_fingerprint(folder: Path) -> None:
    published = fingerprint_of(folder)
    assert (published.dtype, published.format) == ("float32", "float32")
    assert fingerprint_of(folder, dtype="bfloat16") == replace(published, dtype="bfloat16", format="bfloat16")
    int8 = fingerprint_of(folder, weights="int8")
    assert int8 == replace(published, format=int8.format)
    assert int8.format == "int8"


def test_an_adapter_is_a_part_of_the_fingerprint_of_answers_that_use_it(folder: Path, tmp_path: Path) -> None:
    engine = load_engine(folder, config=EngineConfig(max_seq_len=64))
    make_adapter(folder, tmp_path / "a", ["q_proj"], rank=2, seed=1)
    make_adapter(folder, tmp_path / "b", ["q_proj"], rank=2, seed=2)
    engine.adapters.load("one", tmp_path / "a")
    engine.adapters.load("two", tmp_path / "b")
    engine.adapters.load("three", tmp_path / "a")
    plain, one, two, three = map(engine.fingerprint, (None, "one", "two", "three"))
    assert plain is not None
    assert one is not None
    assert plain.adapter == NO_ADAPTER
    assert one == replace(plain, adapter=one.adapter) == three
    assert two not in (plain, one)
    with pytest.raises(ValueError, match="not loaded"):
        engine.fingerprint("unknown")


def test_the_text_of_a_fingerprint_can_be_read_back(folder: Path) -> None:
    fingerprint = fingerprint_of(folder)
    text = str(fingerprint)
    assert Fingerprint.parse(text) == fingerprint
    for wrong in ("", "fp_44709d6fcb", text.replace("fp1", "fp2"), text + ".more", text.replace(fingerprint.dtype, "")):
        with pytest.raises(UnknownFingerprint):
            Fingerprint.parse(wrong)


def test_the_digest_of_the_weights_equals_the_models_revision_and_is_computed_once(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    read: list[str] = []

    def count(path: Path) -> str:
        read.append(path.name)
        return file_sha256(path)

    monkeypatch.setattr(digests, "file_sha256", count)
    monkeypatch.setattr(digests, "_SETTLED_NANOSECONDS", 0)
    files = [folder / "config.json", folder / "model.safetensors"]
    expected = revision(folder, files)

    assert [weights_sha256(folder, cache=tmp_path / "cache") for _ in range(3)] == [expected] * 3
    assert sorted(read) == ["config.json", "model.safetensors"]

    times = (folder / "model.safetensors").stat()
    with (folder / "model.safetensors").open("r+b") as file:  # with the old mtime below, only the ctime is new
        last = file.seek(-1, os.SEEK_END)
        byte = file.read(1)[0]
        file.seek(last)
        file.write(bytes([byte ^ 1]))
    os.utime(folder / "model.safetensors", ns=(times.st_atime_ns, times.st_mtime_ns))
    assert weights_sha256(folder, cache=tmp_path / "cache") == revision(folder, files) != expected
    assert read[2:] == ["model.safetensors"]


def test_the_digest_of_a_file_that_has_just_been_changed_is_not_stored(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(digests, "_SETTLED_NANOSECONDS", 10**18)
    weights_sha256(folder, cache=tmp_path / "cache")
    assert not (tmp_path / "cache").exists()


def test_an_unusable_digest_cache_does_not_change_the_digest(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "cache").write_text("a file where the folder should be")
    files = [folder / "config.json", folder / "model.safetensors"]
    assert weights_sha256(folder, cache=tmp_path / "cache") == revision(folder, files)
