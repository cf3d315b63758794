"""Points Django at a temporary data folder, and skips test files that need packages which this machine lacks.

With SLIPSTREAM_TEST_DATABASE=postgres, all tests use PostgreSQL instead of SQLite.
"""

import atexit
import gc
import importlib.util
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

# Must be set before torch is loaded. OpenMP threads otherwise spin while they wait, which makes a forward pass up to 25
# times slower on a shared machine.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
if importlib.util.find_spec("triton"):
    from kernels.cuda.interpreter import interpret_without_gpu

    interpret_without_gpu()

collect_ignore: list[str] = []


if not importlib.util.find_spec("pytest_timeout"):

    def pytest_addoption(parser: pytest.Parser) -> None:
        """Registers the `timeout` option of pyproject.toml, which pytest would otherwise reject as unknown."""
        parser.addini("timeout", "seconds a test may take; needs pytest-timeout")


_skipped_files: dict[str, frozenset[str]] = {}


def pytest_ignore_collect(collection_path: Path) -> bool | None:
    """Skips files whose imports need a package that this machine lacks; the summary names the packages."""
    if collection_path.name.startswith("test_") and collection_path.suffix == ".py":
        from tests.missing import missing

        if lacking := missing(collection_path):
            _skipped_files[str(collection_path)] = lacking
            return True
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Puts tests that wait for other processes first, because a run that ends with them leaves the processor idle."""
    folders = [Path(__file__).parent / name for name in ("e2e", "workers/supervisor")]
    items.sort(key=lambda item: not any(item.path.is_relative_to(folder) for folder in folders))


def pytest_collection_finish() -> None:
    """Freezes imported objects, because each garbage collection over them takes a second."""
    gc.freeze()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    if _skipped_files:
        packages = ", ".join(sorted(frozenset().union(*_skipped_files.values())))
        terminalreporter.write_line(
            f"{len(_skipped_files)} files skipped, because these packages are missing: {packages}"
        )


@pytest.fixture
def progress(request: pytest.FixtureRequest) -> Callable[[str], None]:
    """Returns a function that shows a line at once. Without -v, as in `make test`, it shows nothing."""
    plugins = request.config.pluginmanager
    terminal, capture = plugins.getplugin("terminalreporter"), plugins.getplugin("capturemanager")

    def show(line: str) -> None:
        if request.config.get_verbosity() >= 0:
            with capture.global_and_fixture_disabled():
                terminal.ensure_newline()
                terminal.write_line(f"  {line}")
                terminal.flush()

    return show


_test_database = os.environ.get("SLIPSTREAM_TEST_DATABASE", "sqlite")
for _name in [name for name in os.environ if name.startswith("SLIPSTREAM_")]:
    del os.environ[_name]  # tests must not use a developer's installation

_temporary = tempfile.mkdtemp(prefix="slipstream-tests-")
atexit.register(shutil.rmtree, _temporary, ignore_errors=True)

if importlib.util.find_spec("django"):
    os.environ["SLIPSTREAM_DATA_DIR"] = _temporary
    os.environ["SLIPSTREAM_MODEL_ROOTS"] = f"{_temporary}/models/{{organization}}, s3://models"
    os.environ["DJANGO_SETTINGS_MODULE"] = "control.core.settings.embedded"
    if _test_database == "postgres":
        from tests.databases import postgres_server
        from tests.postgres import OWNER

        os.environ["SLIPSTREAM_DATABASE_URL"] = postgres_server().url("slipstream", OWNER)

    import django

    django.setup()
    os.environ.pop("SLIPSTREAM_DATABASE_URL", None)  # a process that a test starts must not use this database

    from django.core.signals import request_finished, request_started
    from django.db import close_old_connections, connection

    from control.tenants.row_security.policies import APPEND_ONLY_TABLES
    from control.tenants.row_security.scope import Across, across_tenants
    from tests.migrated import POSTGRES_DATABASE, sqlite_file

    if connection.vendor == "sqlite":
        # A file, as in an installation. Django's default is shared memory, where a reader does not wait for a writer
        # in another thread but fails at once with "database table is locked".
        connection.settings_dict["TEST"]["NAME"] = f"{_temporary}/tests.sqlite3"

    @pytest.fixture(scope="session")
    def django_db_modify_db_settings() -> None:
        """Makes the test database a copy of a migrated one. Each test process has its own folder or server."""
        if connection.vendor == "sqlite":
            shutil.copy(sqlite_file(), connection.settings_dict["TEST"]["NAME"])
        else:
            connection.settings_dict["TEST"]["TEMPLATE"] = POSTGRES_DATABASE

    @pytest.fixture(scope="session")
    def django_db_keepdb() -> bool:
        return connection.vendor == "sqlite"  # the copied file, which would otherwise be deleted

    @pytest.fixture(autouse=True)
    def _all_tenants() -> Iterator[None]:
        """Test code runs with an operator's access; requests over HTTP start without a tenant, as in production."""
        with across_tenants(Across.COMMAND):
            yield

    @pytest.fixture(autouse=True)
    def _append_only_tables_can_be_emptied(request: pytest.FixtureRequest) -> Iterator[None]:
        """Empties the append-only tables after a test with transactions; on SQLite their triggers refuse DELETE."""
        marker = request.node.get_closest_marker("django_db")
        is_transactional = "transactional_db" in request.fixturenames or (marker and marker.kwargs.get("transaction"))
        if is_transactional:
            request.getfixturevalue("transactional_db")  # so that this fixture is torn down first
        yield
        if is_transactional and connection.vendor == "sqlite":
            with connection.cursor() as cursor:
                for table in (*APPEND_ONLY_TABLES, "audit_auditexport"):
                    trigger_of_table = "SELECT name, sql FROM sqlite_master WHERE tbl_name = %s AND name LIKE %s"
                    cursor.execute(trigger_of_table, [table, "%_no_delete"])
                    trigger, definition = cursor.fetchone()
                    cursor.execute(f"DROP TRIGGER {trigger}")
                    cursor.execute(f"DELETE FROM {table}")
                    cursor.execute(definition)

    @pytest.fixture
    def one_connection(db: None) -> Iterator[None]:
        """Keeps the test's transaction open during requests that are not sent by Django's test client.

        Without this fixture, Django would close the connection at each such request.
        """
        signals = (request_started, request_finished)
        for signal in signals:
            signal.disconnect(close_old_connections)
        yield
        for signal in signals:
            signal.connect(close_old_connections)

    @pytest.fixture
    def database_kind() -> str:
        """Returns `sqlite` or `postgresql`. A test that needs one of them overrides this fixture in `parametrize`."""
        return str(connection.vendor)

else:
    collect_ignore += ["control", "workers/supervisor", "e2e", "sdk"]

if importlib.util.find_spec("hypothesis"):
    from hypothesis import HealthCheck, configuration, settings

    configuration.set_hypothesis_home_dir(f"{_temporary}/hypothesis")
    # No deadline per example, because examples may be slow on a busy machine.
    settings.register_profile("slipstream", deadline=None, database=None, suppress_health_check=[HealthCheck.too_slow])
    settings.load_profile("slipstream")
