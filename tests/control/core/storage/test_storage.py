"""Storage in a folder and in S3 behaves the same. The library moto simulates S3 in this process."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from moto import mock_aws
from pytest_django import Settings

from control.core.settings.config import get_config
from control.core.storage import backends as storage_module
from control.core.storage.backends import FolderStorage, InvalidKey, ObjectMissing, S3Storage, Storage, get_storage


@pytest.fixture(params=["folder", "s3"])
def storage(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Storage]:
    if request.param == "folder":
        yield FolderStorage(tmp_path / "storage")
        return
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        monkeypatch.setenv(name, "testing")
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    storage_module._s3_client.cache_clear()
    with mock_aws():
        s3 = S3Storage(get_config().model_copy(update={"s3_bucket": "bucket"}))
        s3._client.create_bucket(Bucket="bucket")
        yield s3
    storage_module._s3_client.cache_clear()


def make_tree(root: Path) -> Path:
    (root / "sub").mkdir(parents=True)
    (root / "a.txt").write_bytes(b"a")
    (root / "sub" / "b.bin").write_bytes(os.urandom(3_000_000))
    return root


def test_a_file_is_read_back_byte_for_byte_and_can_be_replaced(storage: Storage, tmp_path: Path) -> None:
    first, second = tmp_path / "first", tmp_path / "second"
    first.write_bytes(b"first")
    second.write_bytes(b"")
    storage.put_file("org/files/x", first)
    storage.put_file("org/files/x", first)
    with storage.open("org/files/x") as stream:
        assert (stream.read(2), stream.read()) == (b"fi", b"rst")

    storage.put_file("org/files/x", second)

    storage.get_file("org/files/x", tmp_path / "made" / "copy")
    assert (tmp_path / "made" / "copy").read_bytes() == b""


def test_a_folder_is_read_back_with_its_subfolders(storage: Storage, tmp_path: Path) -> None:
    tree = make_tree(tmp_path / "tree")
    storage.put_folder("org/spec", tree)
    storage.put_file("org/spec-2/other", tree / "a.txt")  # outside of the folder, although its key has the same prefix

    storage.get_folder("org/spec", tmp_path / "copy")

    files = sorted(path.relative_to(tmp_path / "copy") for path in (tmp_path / "copy").rglob("*") if path.is_file())
    assert files == [Path("a.txt"), Path("sub/b.bin")]
    assert (tmp_path / "copy/sub/b.bin").read_bytes() == (tree / "sub/b.bin").read_bytes()


def test_opening_a_missing_key_fails_and_deleting_it_does_not(storage: Storage, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    storage.put_file("x", tmp_path / "x")
    assert storage.exists("x")

    storage.delete("x")
    storage.delete("x")

    assert not storage.exists("x")
    with pytest.raises(ObjectMissing):
        storage.open("x")
    with pytest.raises(ObjectMissing):
        storage.get_file("x", tmp_path / "copy")
    with pytest.raises(ObjectMissing):
        storage.get_folder("none", tmp_path / "folder")


@pytest.mark.parametrize("key", ["", "/etc/passwd", "..", "a/../b", "../x", "a\\b", "a\0b"])
def test_a_key_that_leads_out_of_the_storage_is_refused(storage: Storage, key: str, tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"x")
    for use in (storage.open, storage.delete, storage.exists, lambda bad: storage.put_file(bad, tmp_path / "x")):
        with pytest.raises(InvalidKey):
            use(key)


def test_a_failed_put_keeps_the_previous_file(tmp_path: Path) -> None:
    storage = FolderStorage(tmp_path / "storage")
    (tmp_path / "x").write_bytes(b"old")
    storage.put_file("x", tmp_path / "x")

    with pytest.raises(OSError, match="Is a directory"):
        storage.put_file("x", tmp_path)

    with storage.open("x") as stream:
        assert stream.read() == b"old"
    assert [path.name for path in (tmp_path / "storage").rglob("*") if path.is_file()] == ["x"]


def test_the_settings_select_the_kind_of_storage(settings: Settings, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AWS_DEFAULT_REGION", "us-east-1")
    assert isinstance(get_storage(), FolderStorage)

    settings.SLIPSTREAM = get_config().model_copy(update={"s3_bucket": "bucket"})

    assert isinstance(get_storage(), S3Storage)
    storage_module._s3_client.cache_clear()
