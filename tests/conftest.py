"""Points Django at a data folder that goes away, and leaves out what this machine has no packages for."""

import atexit
import importlib.util
import os
import shutil
import tempfile

collect_ignore: list[str] = []

for _name in [name for name in os.environ if name.startswith("SLIPSTREAM_")]:
    del os.environ[_name]  # a developer's own installation is none of the tests' business

if importlib.util.find_spec("django"):
    _data_dir = tempfile.mkdtemp(prefix="slipstream-tests-")
    atexit.register(shutil.rmtree, _data_dir, ignore_errors=True)
    os.environ["SLIPSTREAM_DATA_DIR"] = _data_dir
    os.environ["DJANGO_SETTINGS_MODULE"] = "control.settings.embedded"

    import django

    django.setup()
else:
    collect_ignore += ["control", "workers/tasks", "e2e", "sdk"]
