from tests.workers.supervisor.conftest import stack as stack
