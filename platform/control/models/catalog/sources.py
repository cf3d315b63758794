"""Fetches models from their source: a folder that exists on every machine, or a prefix in S3.

Each machine copies a model from S3 once. A customer's source must lie below one of `SLIPSTREAM_MODEL_ROOTS`. File names
and sizes are checked before anything is fetched, and `folder.py` checks the contents before anything loads them.
"""

import shutil
from dataclasses import replace
from pathlib import Path
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from control.core.settings.config import get_config
from control.core.storage.backends import S3Storage
from control.models.catalog.cache import (
    complete_copy,
    copy_folder,
    delete_copy,
    model_copies_limit,
    only_fetcher,
    partial_folder,
    use_copy,
)
from control.models.catalog.folder import ModelFolder, UnusableModel, check_name, inspect_folder
from control.models.catalog.models import BaseModel

S3 = "s3://"


def is_allowed(source: str, *, organization_id: str) -> bool:
    """Returns whether the organization may register a model from this source.

    Symbolic links and `..` are resolved before the source is compared with the allowed roots.
    """
    roots = [root.strip() for root in get_config().model_roots.split(",") if root.strip()]
    return any(_is_below(source, root.replace("{organization}", organization_id)) for root in roots)


def _is_below(source: str, root: str) -> bool:
    if source.startswith(S3) or root.startswith(S3):
        parts = source.split("/")
        return not {"..", "."} & set(parts) and f"{source.rstrip('/')}/".startswith(f"{root.rstrip('/')}/")
    try:
        path = Path(source)
        return path.is_absolute() and path.resolve().is_relative_to(Path(root).resolve())
    except (OSError, ValueError):  # for example, the path is too long, or symbolic links form a loop
        return False


def source_inspect(base_model: BaseModel) -> ModelFolder:
    """Checks the model at its source. A model in S3 is fetched first.

    Raises: UnusableModel: the model is refused; ClientError, BotoCoreError: S3 cannot be read, and a retry may help.
    """
    if base_model.source.startswith(S3):
        copy = copy_folder(get_config(), base_model.pk)
        with use_copy(copy), only_fetcher(copy):
            return _fetch(base_model, revision=None)
    path = Path(base_model.source).resolve()
    try:
        return inspect_folder(path)
    except UnusableModel as error:  # the customer may see the folder that the request named, not where its links lead
        raise UnusableModel(error.code, error.message.replace(str(path), base_model.source)) from error


def model_folder(base_model: BaseModel, *, may_fetch: bool = True) -> Path:
    """Returns the model's folder on this machine. Fetches a model from S3 if necessary and allowed.

    Raises: UnusableModel: the folder is missing and was not fetched, or it can no longer be trusted.
    """
    if not base_model.source.startswith(S3):
        path = Path(base_model.path)
        if not path.is_dir():
            raise UnusableModel("model_folder_missing", "this machine does not have the folder")
        if base_model.organization_id is not None:
            _check_unlinked(path)
        return path.resolve()
    copy = copy_folder(get_config(), base_model.pk)
    with use_copy(copy):
        if copy.is_dir():
            return copy
        if not may_fetch:
            raise UnusableModel("model_folder_missing", "the model could not be fetched from its source in S3")
        try:
            with only_fetcher(copy) as is_missing:
                return _fetch(base_model, revision=base_model.revision).path if is_missing else copy
        except (ClientError, BotoCoreError) as error:
            message = "the model's source in S3 cannot be read at the moment"
            raise UnusableModel("model_folder_missing", message) from error


def _check_unlinked(path: Path) -> None:
    """Refuses symbolic links. The customer may have added a link to another organization's model after the check.

    Raises: UnusableModel.
    """
    if path.resolve() != path or any(entry.is_symlink() for entry in path.iterdir()):
        raise UnusableModel("model_changed", "the folder has become, or holds, a symbolic link since it was registered")


def _fetch(base_model: BaseModel, *, revision: str | None) -> ModelFolder:
    """Fetches and checks the model. The caller must have called `use_copy` and hold the lock of `only_fetcher`.

    Args: revision: the expected revision. If a copy exists already, it stays. With None, any revision is accepted and
        replaces an existing copy.
    Effects: the copy is complete or absent, never partial.
    """
    copy = copy_folder(get_config(), base_model.pk)
    partial = partial_folder(copy)
    url = urlsplit(base_model.source)
    storage = S3Storage(get_config().model_copy(update={"s3_bucket": url.netloc}))
    prefix = url.path.strip("/")
    try:
        sizes = storage.sizes(prefix)
        for name in sizes:
            check_name(name)
        total, limit = sum(sizes.values()), get_config().max_model_bytes
        if total > limit:
            raise UnusableModel("model_too_large", f"a model has at most {limit:,} bytes, got {total:,}")
        model_copies_limit(get_config(), reserved_bytes=total)
        for name in sizes:
            storage.get_file(f"{prefix}/{name}" if prefix else name, partial / name)
        folder = inspect_folder(partial)
        if revision is None:
            delete_copy(copy)
        elif folder.revision != revision:
            raise UnusableModel("model_changed", "the model's source in S3 holds other weights than were registered")
        complete_copy(partial, copy)
    except UnusableModel as error:
        raise UnusableModel(error.code, error.message.replace(str(partial), base_model.source)) from error
    finally:
        shutil.rmtree(partial, ignore_errors=True)
    return replace(folder, path=copy)
