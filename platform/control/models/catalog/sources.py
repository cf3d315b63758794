"""Where a model's files come from: a folder that every machine has, or S3, fetched once by each machine that needs it.

What a customer may name lies below one of `SLIPSTREAM_MODEL_ROOTS`. Names and sizes are looked at before a byte is
fetched, and everything else before anything loads it (`folder`).
"""

import secrets
import shutil
from pathlib import Path
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

from control.core.settings.config import get_config
from control.core.storage.backends import S3Storage
from control.models.catalog.folder import ModelFolder, UnusableModel, check_name, inspect_folder
from control.models.catalog.models import BaseModel

S3 = "s3://"


def is_allowed(source: str, *, organization_id: str) -> bool:
    """Links and `..` followed first."""
    roots = [root.strip() for root in get_config().model_roots.split(",") if root.strip()]
    return any(_is_below(source, root.replace("{organization}", organization_id)) for root in roots)


def _is_below(source: str, root: str) -> bool:
    if source.startswith(S3) or root.startswith(S3):
        parts = source.split("/")
        return not {"..", "."} & set(parts) and f"{source.rstrip('/')}/".startswith(f"{root.rstrip('/')}/")
    try:
        path = Path(source)
        return path.is_absolute() and path.resolve().is_relative_to(Path(root).resolve())
    except (OSError, ValueError):  # too long, a loop of links
        return False


def source_inspect(base_model: BaseModel) -> ModelFolder:
    """Raises: UnusableModel; ClientError, BotoCoreError: S3 fails, another try may help."""
    if not base_model.source.startswith(S3):
        return inspect_folder(Path(base_model.source).resolve())
    return _fetched(base_model)


def model_folder(base_model: BaseModel, *, may_fetch: bool = True) -> Path:
    """On this machine. Raises: UnusableModel: it is not here and cannot be got."""
    if not base_model.source.startswith(S3):
        path = Path(base_model.path)
        if not path.is_dir():
            raise UnusableModel("model_folder_missing", "this machine does not have the folder")
        if base_model.organization_id is not None:
            _check_unlinked(path)
        return path.resolve()
    kept = _kept_at(base_model)
    if kept.is_dir():
        return kept
    if not may_fetch:
        raise UnusableModel("model_folder_missing", "it could not be fetched from its source in S3")
    try:
        found = _fetched(base_model)
    except (ClientError, BotoCoreError) as error:
        raise UnusableModel("model_folder_missing", "its source in S3 cannot be read at the moment") from error
    if found.revision != base_model.revision:
        shutil.rmtree(found.path, ignore_errors=True)
        raise UnusableModel("model_changed", "its source in S3 holds other weights than were registered")
    return found.path


def _check_unlinked(path: Path) -> None:
    """A customer's folder may have become a link since it was checked, or hold one, to a model of somebody else.

    Raises: UnusableModel.
    """
    if path.resolve() != path or any(entry.is_symlink() for entry in path.iterdir()):
        raise UnusableModel("model_changed", "the folder has become, or holds, a symbolic link since it was registered")


def _fetched(base_model: BaseModel) -> ModelFolder:
    """Effects: the checked folder lies where `model_folder` looks for it, whole or not at all."""
    kept = _kept_at(base_model)
    draft = kept.with_name(f".{kept.name}.{secrets.token_hex(4)}")
    place = urlsplit(base_model.source)
    storage = S3Storage(get_config().model_copy(update={"s3_bucket": place.netloc}))
    prefix = place.path.strip("/")
    try:
        sizes = storage.sizes(prefix)
        for name in sizes:
            check_name(name)
        total, limit = sum(sizes.values()), get_config().max_model_bytes
        if total > limit:
            raise UnusableModel("model_too_large", f"a model has at most {limit:,} bytes, got {total:,}")
        for name in sizes:
            storage.get_file(f"{prefix}/{name}" if prefix else name, draft / name)
        found = inspect_folder(draft)
        shutil.rmtree(kept, ignore_errors=True)
        draft.rename(kept)
    except UnusableModel as error:
        raise UnusableModel(error.code, error.message.replace(str(draft), base_model.source)) from error
    finally:
        shutil.rmtree(draft, ignore_errors=True)
    return ModelFolder(path=kept, model_type=found.model_type, revision=found.revision)


def _kept_at(base_model: BaseModel) -> Path:
    return get_config().data_dir.resolve() / "models" / base_model.pk
