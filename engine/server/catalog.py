"""Resolves the field `model` of requests, which names the model of this process or one of its loaded adapters."""

import time
from typing import Any

from engine.fields import InvalidRequest
from engine.server.worker import Engine


class Catalog:
    def __init__(self, engine: Engine, model_name: str) -> None:
        self.model_name = model_name
        self._engine = engine
        self._created = int(time.time())

    def adapter_of(self, name: str) -> str | None:
        """Returns `name` if an adapter has this name; None if `name` is the model's name or empty.

        Raises: InvalidRequest: 404, the name is neither the model's nor an adapter's.
        """
        if name in ("", self.model_name):
            return None
        if name in self._engine.adapters.names:
            return name
        raise self._unknown(name)

    def fingerprint(self, adapter: str | None) -> str | None:
        """Returns `system_fingerprint` of answers with this adapter. Raises: InvalidRequest: 404, no such adapter."""
        try:
            fingerprint = self._engine.fingerprint(adapter)
        except ValueError as error:
            raise self._unknown(str(adapter)) from error
        return None if fingerprint is None else str(fingerprint)

    def describe(self, name: str) -> dict[str, Any]:
        """Returns OpenAI's model object with the additional fields of vLLM. Raises: InvalidRequest: 404."""
        adapter = self.adapter_of(name)
        return {
            "id": adapter or self.model_name,
            "object": "model",
            "created": self._created,
            "owned_by": "slipstream",
            "root": self.model_name,
            "parent": None if adapter is None else self.model_name,
            "max_model_len": self._engine.max_seq_len,
        }

    def listing(self) -> dict[str, Any]:
        names = (self.model_name, *self._engine.adapters.names)
        return {"object": "list", "data": [self.describe(name) for name in names]}

    def _unknown(self, name: str) -> InvalidRequest:
        message = f"the model {name[:100]!r} does not exist here; this server has {self.model_name!r}"
        return InvalidRequest(message, param="model", code="model_not_found", status=404)
