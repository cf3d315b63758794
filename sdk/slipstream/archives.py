"""Offline verification of a speculator's archive, which has its weights, recipe, report and certificate.

    statement = verify_archive(Path("heads-v1-archive.zip"), Path("slipstream.pem").read_text())

Nothing is unpacked and nothing in the archive is executed.
"""

import hashlib
import json
import struct
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from slipstream.certificates import ARCHIVE_FORMAT, verify
from slipstream.errors import CertificateError

_MANIFEST, _CERTIFICATE, _REPORT, _WEIGHTS = "manifest.json", "certificate.json", "report.json", "speculator/"
_MAX_JSON_BYTES = 4 << 20  # parsed values need up to 30 times as much memory
_COPY_BYTES = 1 << 20


def verify_archive(path: Path, public_key: str | bytes) -> dict[str, Any]:
    """Return the statement of the archive's certificate. Also check its `result`.

    Checks that the service signed the list of files and the certificate, that the archive has exactly the listed files,
    and that the certificate concerns the weights, the evaluation and the report of the archive.

    Args: public_key: PEM.

    Raises: CertificateError: one of these checks failed, or the file is no archive of a speculator.
    """
    try:
        with zipfile.ZipFile(path) as archive:
            return _verify(archive, public_key)
    except (zipfile.BadZipFile, RuntimeError, EOFError, ValueError, OverflowError, struct.error) as error:
        raise CertificateError(f"the archive cannot be read: {error}") from error


def _verify(archive: zipfile.ZipFile, public_key: str | bytes) -> dict[str, Any]:
    if any(entry.compress_type != zipfile.ZIP_STORED for entry in archive.infolist()):
        # The service does not compress archives, and a few compressed bytes can fill the memory of this machine.
        raise CertificateError("the archive was packed again: its files must not be compressed")
    manifest = verify(_json(archive, _MANIFEST), public_key, kind=ARCHIVE_FORMAT)
    statement = verify(_json(archive, _CERTIFICATE), public_key)
    listed = manifest["files"]
    names = [entry.filename for entry in archive.infolist()]
    if sorted(names) != sorted([*listed, _MANIFEST]):
        different = ", ".join(sorted({*names} ^ {*listed, _MANIFEST})) or "a name occurs twice"
        raise CertificateError(f"the archive does not have the files that its manifest lists: {different}")
    digests = {name: _sha256(archive, name) for name in listed}
    if changed := [name for name in listed if digests[name] != listed[name]]:
        raise CertificateError(f"{', '.join(changed)} was modified after the archive was made")
    weights = _fingerprint({name: digest for name, digest in digests.items() if name.startswith(_WEIGHTS)})
    if weights != statement["speculator"]["sha256"]:
        raise CertificateError("the certificate was issued for other weights than those in the archive")
    if statement["evaluation_id"] != manifest["evaluation_id"]:
        raise CertificateError("the certificate and the manifest belong to different evaluations")
    report = statement.get("report_sha256")  # certificates of earlier releases do not have it
    if report is not None and report != digests.get(_REPORT):
        raise CertificateError("the certificate was issued for another report than that in the archive")
    return statement


def _json(archive: zipfile.ZipFile, name: str) -> Mapping[str, Any]:
    try:
        entry = archive.getinfo(name)
        if entry.file_size > _MAX_JSON_BYTES:
            raise CertificateError(f"{name} has {entry.file_size:,} bytes, which is too much")
        value = json.loads(archive.read(entry))
    except (KeyError, ValueError) as error:
        raise CertificateError(f"the archive has no readable {name}: {error}") from error
    if not isinstance(value, dict):
        raise CertificateError(f"{name} must contain an object")
    return value


def _sha256(archive: zipfile.ZipFile, name: str) -> str:
    digest = hashlib.sha256()
    with archive.open(name) as content:
        while chunk := content.read(_COPY_BYTES):
            digest.update(chunk)
    return digest.hexdigest()


def _fingerprint(digests: Mapping[str, str]) -> str:
    """The SHA-256 of a folder: that of a line with path, NUL and SHA-256 for each file, in the order of the paths."""
    whole = hashlib.sha256()
    for name in sorted(digests, key=lambda name: name.split("/")):
        whole.update(f"{name.removeprefix(_WEIGHTS)}\0{digests[name]}\n".encode())
    return whole.hexdigest()
