"""Measures how long a worker takes to claim the next job if many jobs are queued.

    python -m benchmarks.job_claims [--database-url postgresql://ROLE@HOST/NAME] [--jobs 10000] [--organizations 100]

The command fills a database with queued jobs, unevenly distributed over organizations. Then worker processes claim jobs
and mark them as succeeded, one after the other. --database-url must name an empty database. The command creates its
tables and does not delete the jobs. It prints one line of JSON for each number of workers:

    {"database": "postgresql", "jobs": 10000, "organizations": 100, "workers": 4, "claims": 500,
     "p50_ms": 4.1, "p95_ms": 7.9, "max_ms": 15.2}
"""

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import time
from multiprocessing.synchronize import Barrier
from pathlib import Path

NUM_CLAIMS = 500
NUM_WORKERS = (1, 4)
INSERT_ROWS = 1_000


def main() -> int:
    options = _parser().parse_args()
    with tempfile.TemporaryDirectory() as folder:
        os.environ["SLIPSTREAM_DATA_DIR"] = folder
        if options.database_url is not None:
            os.environ["SLIPSTREAM_DATABASE_URL"] = options.database_url
        _set_up_django()
        _migrate()
        _fill(options.jobs, options.organizations)
        for num_workers in NUM_WORKERS:
            print(json.dumps(_measure(options.jobs, options.organizations, num_workers)), flush=True)
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.job_claims", description=(__doc__ or "").split("\n")[0])
    database = "URL of an empty PostgreSQL database (default: SQLite in a temporary folder)"
    parser.add_argument("--database-url", help=database)
    parser.add_argument("--jobs", type=int, default=10_000, help="number of queued jobs (default 10,000)")
    organizations = "number of organizations that have jobs (default 100)"
    parser.add_argument("--organizations", type=int, default=100, help=organizations)
    return parser


def _set_up_django() -> None:
    sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "platform"))
    os.environ["DJANGO_SETTINGS_MODULE"] = "control.core.settings.embedded"
    import django

    django.setup()


def _migrate() -> None:
    from django.core.management import call_command

    call_command("migrate", verbosity=0)


def _fill(num_jobs: int, num_organizations: int) -> None:
    """Creates the jobs. The n-th organization has 1/n as many jobs as the first (Zipf's law)."""
    from django.db import connection

    from control.queue.jobs.models import Job
    from control.tenants.accounts.models import Organization
    from control.tenants.administration.services import organization_create
    from control.tenants.row_security.scope import Across, across_tenants

    with across_tenants(Across.COMMAND):
        owners: list[Organization] = []
        total = sum(1 / n for n in range(1, num_organizations + 1))
        for n in range(1, num_organizations + 1):
            owner = organization_create(name=f"organization {n}")
            owners += [owner] * max(1, round(num_jobs / n / total))
        jobs = (Job(organization=owner, kind=Job.Kind.TRAINING) for owner in owners[:num_jobs])
        Job.objects.bulk_create(jobs, batch_size=INSERT_ROWS)
    with connection.cursor() as cursor:
        cursor.execute("ANALYZE")  # updates the planner's statistics, which autovacuum does in production


def _measure(num_jobs: int, num_organizations: int, num_workers: int) -> dict[str, object]:
    from django.db import connection

    claims_of_each = [NUM_CLAIMS // num_workers] * num_workers
    context = multiprocessing.get_context("spawn")
    with context.Pool(num_workers, _start_worker, (context.Barrier(num_workers),)) as pool:
        seconds = [taken for worker in pool.map(_claim_jobs, claims_of_each, chunksize=1) for taken in worker]
    return {
        "database": connection.vendor,
        "jobs": num_jobs,
        "organizations": num_organizations,
        "workers": num_workers,
        "claims": len(seconds),
        "p50_ms": round(statistics.median(seconds) * 1e3, 1),
        "p95_ms": round(statistics.quantiles(seconds, n=20)[-1] * 1e3, 1),
        "max_ms": round(max(seconds) * 1e3, 1),
    }


def _start_worker(barrier: Barrier) -> None:
    """Runs once in each worker process, and waits until all of them are ready."""
    _set_up_django()
    barrier.wait()


def _claim_jobs(num_claims: int) -> list[float]:
    """Runs in a worker process: claims jobs and marks them as succeeded. Returns the seconds that each claim took."""
    from control.queue.jobs.services import job_claim_next, job_succeed
    from control.tenants.row_security.scope import as_tenant

    seconds = []
    for _ in range(num_claims):
        started = time.perf_counter()
        claim = job_claim_next(worker=f"worker-{os.getpid()}")
        seconds.append(time.perf_counter() - started)
        if claim is not None:
            with as_tenant(claim.organization_id, None):
                job_succeed(claim=claim, result={})
    return seconds


if __name__ == "__main__":
    sys.exit(main())
