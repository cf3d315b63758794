"""Creates what a new installation needs: an organization, an administrator and an API key."""

import json
import os
import secrets
from dataclasses import asdict, dataclass
from pathlib import Path

from django.db import transaction

from control.tenants.accounts.models import Member, Organization, User
from control.tenants.administration.services import api_key_create, member_add, organization_create

ADMINISTRATOR = "admin"


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    api_key: str | None  # None: an earlier start created the key, and the file with it has been deleted
    admin_password: str | None  # None except at the first start, because only its hash is stored


def first_start(credentials_path: Path) -> Credentials:
    """Creates organization, administrator and key, unless there is an organization already.

    Writes the key to a file that only the file's owner can read.
    """
    if Organization.objects.exists():
        return Credentials(api_key=_stored_key(credentials_path), admin_password=None)
    password = secrets.token_urlsafe(12)
    with transaction.atomic():
        organization = organization_create(name="default")
        user = User.objects.create_superuser(ADMINISTRATOR, password=password)
        member_add(organization=organization, user=user, role=Member.Role.OWNER)
        _, token = api_key_create(organization=organization, name="first key")
        write_private_json(credentials_path, {"api_key": token})
    return Credentials(api_key=token, admin_password=password)


def _stored_key(path: Path) -> str | None:
    return json.loads(path.read_text()).get("api_key") if path.exists() else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ready:
    """The content of `ready.json` in the data folder, a file that exists while the stack serves requests.

    A killed stack leaves the file behind, so a reader must check that the process `pid` is alive.
    """

    pid: int
    url: str
    admin_url: str
    api_key: str | None

    def write(self, path: Path) -> None:
        write_private_json(path, {name: value for name, value in asdict(self).items() if value is not None})


def write_private_json(path: Path, values: dict[str, object]) -> None:
    """Writes a file atomically. Other users can never read the file, not even while it is written."""
    partial = path.with_name(f".{path.name}.{os.getpid()}")
    partial.unlink(missing_ok=True)
    partial.touch(mode=0o600)
    partial.write_text(json.dumps(values, indent=2) + "\n")
    partial.replace(path)
