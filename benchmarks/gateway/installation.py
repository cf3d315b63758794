"""Prepares the environment variables and the database of a measurement with two organizations."""

import os
from pathlib import Path

from benchmarks.gateway.server import ROOT

MODEL = "bench"


def variables(folder: Path, database_url: str | None) -> dict[str, str]:
    url = {} if database_url is None else {"SLIPSTREAM_DATABASE_URL": database_url}
    return url | {
        "SLIPSTREAM_DATA_DIR": str(folder),
        "SLIPSTREAM_REQUESTS_PER_MINUTE": "0",
        "SLIPSTREAM_MAX_OPEN_COMPLETIONS": "10000",
        "SLIPSTREAM_LOG_LEVEL": "WARNING",
        "DJANGO_SETTINGS_MODULE": "control.core.settings.embedded",
        "PYTHONPATH": os.pathsep.join((str(ROOT), str(ROOT / "platform"))),
    }


def fill(model_dir: Path, engine_port: int | None = None) -> list[str]:
    """Creates the tables, a model, and two organizations with a deployment each.

    Args: engine_port: port of the pretended engine that serves both deployments; None: a supervisor starts engines.

    Returns: the API keys of the two organizations.
    """
    from django.core.management import call_command

    from control.models.catalog.models import BaseModel
    from control.serving.deployments.models import Deployment, Replica
    from control.serving.deployments.services import deployment_create
    from control.tenants.administration.services import api_key_create, organization_create
    from control.tenants.row_security.scope import Across, across_tenants

    call_command("migrate", verbosity=0)
    tokens = []
    with across_tenants(Across.COMMAND):
        model = BaseModel.objects.create(name="pretended", path=str(model_dir), revision="0" * 64)
        for name in ("first", "second"):
            organization = organization_create(name=name)
            deployment = deployment_create(organization=organization, name=MODEL, base_model=model)
            if engine_port is not None:
                Deployment.objects.filter(pk=deployment.pk).update(state="ready")
                Replica.objects.create(
                    deployment=deployment, number=0, state="ready", host="127.0.0.1", port=engine_port, token="t"
                )
            tokens.append(api_key_create(organization=organization, name="bench")[1])
    return tokens
