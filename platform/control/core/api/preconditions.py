"""ETag and If-Match: a change is refused if somebody else has changed the object since the client read it.

    @operation("deployments.retrieve", ..., tagged_by=DeploymentUpdateInput)      the response has an ETag
    @operation("deployments.update", ..., tagged_by=DeploymentUpdateInput)        the request may have If-Match

The tag is a hash of those members of the response that the request `tagged_by` can change. It therefore does not change
with the object's state, and two equal objects have the same tag. A view with such operations has `get`, and `lock`,
which locks the object's row until the transaction ends.
"""

import json
from collections.abc import Iterator
from contextlib import contextmanager
from hashlib import sha256
from typing import Any, Protocol

from django.db import transaction
from rest_framework.request import Request
from rest_framework.response import Response

from control.core.api.errors import ApiError
from control.core.api.schemas import RequestModel, ResponseModel


class TaggedView(Protocol):
    def lock(self, **ids: str) -> None: ...

    def get(self, request: Request, **ids: str) -> Response: ...


def etag_of(shown: ResponseModel, tagged_by: type[RequestModel]) -> str:
    values = shown.model_dump(mode="json", include=set(tagged_by.model_fields))
    return f'"{sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()[:32]}"'


@contextmanager
def only_if_match(view: TaggedView, request: Request, ids: dict[str, Any]) -> Iterator[None]:
    """Runs a change in the block. With `If-Match`, the object is locked from the comparison to the end of the change.

    Raises: ApiError: 412, none of the tags in `If-Match` equals the object's current tag.
    """
    wanted = request.headers.get("If-Match")
    if wanted is None:
        yield
        return
    with transaction.atomic():
        view.lock(**ids)
        # A proxy that compresses responses marks their tags as weak, although the object is the same.
        tags = {tag.strip().removeprefix("W/") for tag in wanted.split(",")}
        if not tags & {"*", view.get(request, **ids)["ETag"]}:
            message = "The object is no longer the one that If-Match names. Read it again, and repeat the change."
            raise ApiError(412, message, "object_changed", "If-Match")
        yield
