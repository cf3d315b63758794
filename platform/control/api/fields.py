"""What a request's body may say: the base of its serializers."""

from typing import Any

from rest_framework import serializers

from control.api.errors import ApiError


class BodyInput(serializers.Serializer[dict[str, Any]]):
    """Unknown keys are an error: a misspelt `speculator_id` must not start an endpoint without its speculator."""

    def to_internal_value(self, data: Any) -> dict[str, Any]:
        """Raises: ApiError: 400, naming the first unknown key."""
        if isinstance(data, dict) and (unknown := next((key for key in data if key not in self.fields), None)):
            raise ApiError(400, f"Unknown parameter: {unknown[:80]!r}.", "unknown_parameter", unknown[:80])
        values: dict[str, Any] = super().to_internal_value(data)
        return values
