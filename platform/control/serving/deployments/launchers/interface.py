"""What the supervisor needs of a launcher: a way to run the engines of replicas.

A launcher writes no rows: the supervisor passes a replica's row, and a function that records the start of its engine.
No method waits for an engine, another machine or storage, because the supervisor's `tick` calls them all.
"""

from collections.abc import Callable, Collection
from dataclasses import dataclass
from typing import Protocol

from control.serving.deployments.models import Replica

# Records a started engine. Its arguments are the values of the fields in `observations.NO_PROCESS`, apart from
# `num_open`, and optionally `device_kind` and `hour_nanousd` of a leased device. Returns False if the replica or its
# claim has changed meanwhile; the launcher must then end the engine.
Record = Callable[..., bool]


class LaunchError(Exception):
    """No engine could be started for the replica. The message gives the reason.

    Args: code: the code of the replica's error.
    """

    def __init__(self, message: str, *, code: str = "launch_failed") -> None:
        super().__init__(message)
        self.code = code


class DeviceWait(Exception):
    """No device is free for the replica, which therefore waits. The message gives the reason.

    Args: code: the code in the replica's `blocked`.
    """

    def __init__(self, message: str, *, code: str) -> None:
        super().__init__(message)
        self.code = code


class AlreadyRunning(LaunchError):
    """The replica already has an engine, perhaps one that no row records because its supervisor died."""


@dataclass(frozen=True, slots=True)
class Ended:
    """The end of a replica's engine, with the reason as far as it is known."""

    code: str  # the code of the replica's error
    message: str


class Launcher(Protocol):
    name: str  # as in `Replica.launcher`
    drains_with_supervisor: bool  # whether a supervisor that drains its endpoints when it stops also ends these engines

    def ensure(self, replica: Replica, record: Record) -> bool:
        """Starts the engine of the deployment's current generation, or adopts one that no row records.

        The supervisor calls this at every tick until the engine has been recorded or an error was raised.

        Returns: whether an engine was recorded. Raises: LaunchError; DeviceWait.
        """

    def observe(self, replica: Replica) -> Ended | None:
        """Returns None while the recorded engine runs, and also while its state is unknown."""

    def drain(self, replica: Replica) -> None:
        """Asks the recorded engine to answer its open requests and then to end."""

    def delete(self, replica: Replica) -> None:
        """Ends the recorded engine at once."""

    def logs(self, replica: Replica) -> str:
        """Returns the end of the log of the replica's latest engine; empty if it is not known here."""

    def retain(self, held: Collection[Replica]) -> None:
        """Drops the launcher's data about replicas that the supervisor no longer holds, that is, are not in `held`."""

    def kill_strays(self) -> None:
        """Ends engines that no replica's row records. A killed supervisor may have left them.

        Engines of replicas that other supervisors hold are spared, because these supervisors may be about to record
        the engines.
        """

    def tidy(self) -> None:
        """Deletes files that no deployment uses any more. The supervisor calls this every minute or so."""

    def close(self) -> None:
        """Stops the launcher's threads and connections; the engines continue."""
