from tests.workers.supervisor.conftest import migrated_database as migrated_database
from tests.workers.supervisor.conftest import stack as stack
