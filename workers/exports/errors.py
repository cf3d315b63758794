"""Errors of exporting a speculator or importing a folder."""


class ExchangeError(ValueError):
    """`code` is permanent; the message names what was found and what is allowed."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def unsupported(message: str) -> ExchangeError:
    """Returns the error for a valid speculator that the format cannot hold."""
    return ExchangeError("speculator_not_exportable", message)


def invalid(message: str) -> ExchangeError:
    """Returns the error for a folder that does not have the format or does not fit the model."""
    return ExchangeError("speculator_invalid", message)
