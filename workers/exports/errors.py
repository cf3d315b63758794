"""The error of exports and imports of speculators."""


class ExchangeError(ValueError):
    """A speculator cannot be exported or imported. `code` never changes, because API clients rely on it."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def unsupported(message: str) -> ExchangeError:
    """Returns the error for a valid speculator that the export format does not support."""
    return ExchangeError("speculator_not_exportable", message)


def invalid(message: str) -> ExchangeError:
    """Returns the error for a folder that is not in the expected format, or whose speculator does not fit the model."""
    return ExchangeError("speculator_invalid", message)
