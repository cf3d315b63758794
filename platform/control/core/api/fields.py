"""Base classes for serializers of request bodies."""

from collections.abc import Iterable
from typing import Any

from rest_framework import serializers

from control.core.api.errors import ApiError


class Choice(serializers.ChoiceField):
    """A choice whose error message lists the allowed values."""

    def __init__(self, choices: Iterable[Any], **kwargs: Any) -> None:
        super().__init__(list(choices), **kwargs)
        names = ", ".join(str(name) for name in self.choices)
        self.error_messages["invalid_choice"] = f"must be one of {names}, got {{input!a:.60}}"


class BodyInput(serializers.Serializer[dict[str, Any]]):
    """Unknown keys are an error: a misspelt `speculator_id` must not start an endpoint without its speculator."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """Raises: ApiError: 400, naming the first unknown key."""
        if isinstance(data, dict) and (unknown := next((key for key in data if key not in self.fields), None)):
            raise ApiError(400, f"Unknown parameter: {unknown[:80]!r}.", "unknown_parameter", unknown[:80])
        values: dict[str, Any] = super().to_internal_value(data)
        return values
