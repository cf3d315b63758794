from tests.control.tenants.conftest import postgres as postgres
from tests.workers.supervisor.conftest import stack as stack
