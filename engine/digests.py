"""SHA-256 of a model's files. Digests are cached on disk, and a cached digest is valid until its file changes.

The cache's key holds the file's inode, size and times. A change of the contents always changes the time of the last
status change (ctime), which no program can set. Two changes within one tick of the clock give the same ctime, so the
digest of a file that was changed a moment ago is not stored.
"""

import hashlib
import json
import logging
import os
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from pathlib import Path

from kernels.cpu.library import cache_folder
from workers.contracts import file_sha256, fingerprint

logger = logging.getLogger(__name__)

_SETTLED_NANOSECONDS = 2 * 10**9  # a file that was changed less than this ago may change again unnoticed
_THREADS = 4


def weights_sha256(model_dir: Path, *, cache: Path | None = None) -> str:
    """Returns the revision of a model (`workers.contracts.fingerprint`) from its current files.

    cache: folder of the digests; None: in the user's cache folder.
    """
    files = [model_dir / "config.json", *sorted(model_dir.glob("*.safetensors"))]
    with ThreadPoolExecutor(_THREADS) as pool:  # hashing releases the interpreter's lock
        digests = dict(zip(files, pool.map(partial(_digest, cache or cache_folder("digests")), files), strict=True))
    return fingerprint(model_dir, files, digest=digests.__getitem__)


def _digest(cache: Path, path: Path) -> str:
    key = _key(path)
    entry = cache / f"{hashlib.sha256(json.dumps(key).encode()).hexdigest()[:20]}.json"
    if (stored := _stored(entry, key)) is not None:
        return stored
    digest = file_sha256(path)
    is_settled = path.stat().st_ctime_ns < time.time_ns() - _SETTLED_NANOSECONDS
    if is_settled and _key(path) == key:
        _store(entry, key, digest)
    return digest


def _key(path: Path) -> list[str | int]:
    status = path.stat()
    return [str(path.resolve()), status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns]


def _stored(entry: Path, key: list[str | int]) -> str | None:
    try:
        values = json.loads(entry.read_text())
    except (OSError, ValueError):
        return None
    return values["sha256"] if isinstance(values, dict) and values.get("key") == key else None


def _store(entry: Path, key: list[str | int], digest: str) -> None:
    try:
        entry.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.NamedTemporaryFile("w", dir=entry.parent, delete=False) as file:
            json.dump({"key": key, "sha256": digest}, file)
        os.replace(file.name, entry)  # atomic: engines that start together may both store the digest
    except OSError as error:
        logger.warning("the digest of %s cannot be stored: %s", key[0], error)
