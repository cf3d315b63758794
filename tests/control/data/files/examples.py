"""Example objects and request bodies of files, for the tests that cover all routes."""

from control.data.files.models import File
from tests.control.factories import chat_row, make_file
from tests.control.world import FORM, Bodies, Ids, World


def file(world: World) -> File:
    return make_file(world.organization, [chat_row(f"row-{number}") for number in range(20)])


IDS: Ids = {
    "file_id": lambda world: world.file.pk,
}
BODIES: Bodies = {
    "POST /v1/files": FORM,
}
