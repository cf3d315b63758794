"""Checks the hyperparameters of a request."""

from collections.abc import Mapping
from typing import Any

from control.core.api.errors import ApiError
from workers.hyperparameters.fields import HyperparameterError
from workers.hyperparameters.kinds import read_hyperparameters


def hyperparameters_check(kind: str, values: Mapping[str, Any], *, param: str, kind_param: str) -> None:
    """Args: param: the parameter whose members are the hyperparameters. kind_param: the parameter that names the kind.

    Raises: ApiError: 400, the kind or a hyperparameter is unknown, or a value has a wrong type or range.
    """
    try:
        read_hyperparameters(kind, values)
    except HyperparameterError as error:
        code = "invalid_value" if error.known else "unknown_parameter"
        name = kind_param if error.name == "kind" else f"{param}.{error.name[:80]}"
        raise ApiError(400, f"{name}: {error}", code, name) from None
