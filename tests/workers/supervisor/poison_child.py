"""A fake child with two additional faults. If the first row has the content "die at once", the child dies before its
first event. If it has the content "kill the supervisor", the child kills its supervisor.
"""

import json
import os
import signal
import sys
from pathlib import Path

from tests.workers.supervisor import fake_child
from workers.contracts import BatchSpec, read_spec


def main() -> None:
    match read_spec(Path(sys.argv[-1])):
        case BatchSpec() as spec:
            first = json.loads(Path(spec.input_path).read_text().partition("\n")[0])
            match first["body"]["messages"][0]["content"]:
                case "die at once":
                    os.kill(os.getpid(), signal.SIGSEGV)
                case "kill the supervisor":
                    os.kill(os.getppid(), signal.SIGKILL)
    fake_child.main()


if __name__ == "__main__":
    main()
