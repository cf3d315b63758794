"""Every operation of docs/openapi.yaml has a method of the client, which sends the operation's request.

The test calls every method of every resource of the client with arguments made from its signature.
"""

import inspect
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import httpx2
import pytest
import yaml

from slipstream import APIError, Client
from slipstream.http import Resource

METHODS = ("get", "post", "patch", "put", "delete")
DOCUMENT = yaml.safe_load((Path(__file__).parents[2] / "docs" / "openapi.yaml").read_text(encoding="utf-8"))
ROUTES = {
    operation["operationId"]: (method.upper(), path)
    for path, operations in DOCUMENT["paths"].items()
    for method, operation in operations.items()
    if method in METHODS
}
VALUES: dict[Any, Any] = {str: "text", int: 1, float: 1.0, bytes: b"x"}  # by the type of a required argument


def resources_of(parent: object) -> Iterator[Resource[Any]]:
    """Yields the resources of a client, and the resources within resources, such as `fine_tuning.jobs`."""
    names = vars(parent) if isinstance(parent, Client) else vars(type(parent))
    for found in (getattr(parent, name) for name in names if not name.startswith("_")):
        if isinstance(found, Resource):
            yield found
            yield from resources_of(found)


def methods_of(client: Client) -> Iterator[Callable[..., Any]]:
    for resource in resources_of(client):
        for name, found in vars(type(resource)).items():
            if not name.startswith("_") and not isinstance(found, property):
                yield getattr(resource, name)


def arguments_of(method: Callable[..., Any], file: Path) -> tuple[list[Any], dict[str, Any]]:
    """Returns arguments for the required parameters. Positional strings are ids and get the values x1, x2 and so on."""
    positional: list[Any] = []
    keywords: dict[str, Any] = {}
    for name, parameter in inspect.signature(method).parameters.items():
        is_required = parameter.default is parameter.empty and parameter.kind is not parameter.VAR_KEYWORD
        if name == "self" or not is_required:
            continue
        types = get_args(parameter.annotation) or (parameter.annotation,)
        if parameter.kind is parameter.KEYWORD_ONLY:
            keywords[name] = next((VALUES[type_] for type_ in types if type_ in VALUES), [])
        elif Path in types:
            positional.append(file)
        else:
            positional.append(f"x{len(positional) + 1}" if str in types else VALUES.get(types[0], []))
    return positional, keywords


@pytest.fixture(scope="module")
def requested(tmp_path_factory: pytest.TempPathFactory) -> set[tuple[str, str]]:
    """Returns the HTTP method and path of the first request that each method of the client sends."""
    requests: set[tuple[str, str]] = set()

    def refuse(request: httpx2.Request) -> httpx2.Response:
        requests.add((request.method, request.url.path))
        return httpx2.Response(418)

    folder = tmp_path_factory.mktemp("files")
    for name in ("upload.jsonl", "adapter_config.json"):
        (folder / name).write_text("{}")
    with Client("http://api.test/v1", "sk_live_secret", transport=httpx2.MockTransport(refuse)) as client:
        for method in methods_of(client):
            file = folder if "folder" in inspect.signature(method).parameters else folder / "upload.jsonl"
            positional, keywords = arguments_of(method, file)
            with pytest.raises(APIError):
                next(method(*positional, **keywords))  # an iterator sends its request at `next`, others at the call
    return requests


@pytest.mark.parametrize("operation", ROUTES)
def test_each_operation_has_a_method_that_sends_its_request(operation: str, requested: set[tuple[str, str]]) -> None:
    method, path = ROUTES[operation]
    numbers = iter(range(1, 9))
    assert (method, re.sub(r"\{\w+\}", lambda _: f"x{next(numbers)}", path)) in requested
