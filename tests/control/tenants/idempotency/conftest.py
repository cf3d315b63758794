from tests.workers.tasks.conftest import migrated_database as migrated_database
from tests.workers.tasks.conftest import stack as stack
