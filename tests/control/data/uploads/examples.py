"""Example objects and request bodies of uploads, for the tests that cover all routes."""

from control.data.uploads.models import Upload
from control.data.uploads.services import upload_create
from tests.control.world import FORM, NO_BODY, Bodies, Body, Ids, World


def upload(world: World) -> Upload:
    return upload_create(
        organization=world.organization, filename="u", purpose="batch", mime_type="text/plain", size_bytes=4
    )


IDS: Ids = {
    "upload_id": lambda world: world.upload.pk,
}
BODIES: Bodies = {
    "POST /v1/uploads": Body(
        lambda world: {"bytes": 4, "filename": "f", "mime_type": "text/plain", "purpose": "batch"}
    ),
    "POST /v1/uploads/{upload_id}/parts": FORM,
    "POST /v1/uploads/{upload_id}/complete": Body(lambda world: {"part_ids": ["part_1"]}),
    "POST /v1/uploads/{upload_id}/cancel": NO_BODY,
}
