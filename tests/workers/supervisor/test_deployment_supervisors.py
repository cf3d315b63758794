"""Three real supervisors of deployments share one database, while they and their engines are killed with SIGKILL."""

import os
import random
import signal
import subprocess
import sys
from collections import defaultdict
from functools import partial
from pathlib import Path

import pytest

from control.serving.deployments.launchers.processes import NAME_VARIABLE, ProcessIdentity, endpoint_processes
from control.serving.deployments.models import Deployment, Replica
from control.serving.deployments.services import deployment_create, deployment_stop
from tests.workers.supervisor.live import ROOT, LiveStack, kill_9

NUM_DEPLOYMENTS, NUM_KILLS, SEED = 12, 4, 7
SECONDS = 90.0  # far more than the 15 s of a lease, because the machine may be busy


def start_supervisor(stack: LiveStack) -> subprocess.Popen[bytes]:
    environment = {**stack.environment, "DJANGO_SETTINGS_MODULE": "tests.workers.supervisor.engine_settings"}
    command = [sys.executable, "manage.py", "supervise_deployments", "--drain-seconds", "5"]
    with (stack.data_dir / f"worker-{len(stack.workers)}.log").open("wb") as log:
        process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=log, stderr=subprocess.STDOUT)
    stack.workers.append(process)
    return process


def processes_of_replicas(variable: str = NAME_VARIABLE) -> dict[str, set[int]]:
    """Maps the name of each running replica to the sessions of its processes. A replica that runs twice has two
    sessions."""
    ours = set(Deployment.objects.values_list("pk", flat=True))
    sessions: defaultdict[str, set[int]] = defaultdict(set)
    for pid, name in endpoint_processes(variable).items():
        try:
            if name.split("-")[0] in ours:
                sessions[name].add(os.getsid(pid))
        except ProcessLookupError:
            continue  # the process has ended meanwhile
    return dict(sessions)


def recorded_processes() -> dict[str, set[int]]:
    """Maps the name of each replica in the database to the process id that its row has."""
    replicas = Replica.objects.exclude(pid=None)
    return {f"{row.deployment_id}-{row.number}-{row.generation}": {row.pid or 0} for row in replicas}


def holds_nothing(pid: int) -> bool:
    """Whether the supervisor with this process id holds no replica."""
    return not Replica.objects.filter(supervisor__contains=f":{pid}:").exists()


def all_ready_and_as_recorded(variable: str = NAME_VARIABLE) -> bool:
    """Whether all deployments are ready and the running processes are exactly those in the database."""
    states = set(Deployment.objects.values_list("state", flat=True))
    return states == {Deployment.State.READY} and recorded_processes() == processes_of_replicas(variable)


@pytest.mark.wide
@pytest.mark.skipif(not Path("/proc/self/stat").exists(), reason="the processes of a machine are listed in /proc")
def test_killed_supervisors_and_engines_leave_no_orphaned_and_no_duplicate_engine(stack: LiveStack) -> None:
    chance = random.Random(SEED)
    deployments = [
        deployment_create(organization=stack.organization, name=f"endpoint-{number}", base_model=stack.base_model)
        for number in range(NUM_DEPLOYMENTS)
    ]
    supervisors = [start_supervisor(stack) for _ in range(3)]
    try:
        stack.wait_until(all_ready_and_as_recorded, SECONDS)
        for _ in range(NUM_KILLS):
            untouched = recorded_processes()
            victim = chance.choice(supervisors)
            supervisors.remove(victim)
            kill_9(victim)
            name = chance.choice(sorted(untouched))
            (engine,) = untouched.pop(name)
            os.killpg(engine, signal.SIGKILL)
            supervisors.append(start_supervisor(stack))
            stack.wait_until(partial(holds_nothing, victim.pid), SECONDS)
            stack.wait_until(all_ready_and_as_recorded, SECONDS)
            assert recorded_processes().items() >= untouched.items(), "an engine that was not killed has been replaced"
        for deployment in deployments:
            deployment_stop(deployment=deployment)
        stack.wait_until(lambda: not processes_of_replicas() and not recorded_processes(), SECONDS)
        assert set(Deployment.objects.values_list("state", flat=True)) == {Deployment.State.STOPPED}
    finally:
        stack.close()
        for pid, started in Replica.objects.exclude(pid=None).values_list("pid", "process_started"):
            ProcessIdentity(pid or 0, started).kill()
