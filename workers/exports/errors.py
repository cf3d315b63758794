"""Why a speculator cannot leave, or a folder cannot come in."""


class ExchangeError(ValueError):
    """`code` is permanent, the message says what was found and what would do."""

    def __init__(self, code: str, message: str) -> None:
        super().__init__(message)
        self.code = code
        self.message = message


def unsupported(message: str) -> ExchangeError:
    """The speculator is sound, but the other side has no place for what it is."""
    return ExchangeError("speculator_not_exportable", message)


def invalid(message: str) -> ExchangeError:
    """What was given is no speculator of the format, or none that this model can have."""
    return ExchangeError("speculator_invalid", message)
