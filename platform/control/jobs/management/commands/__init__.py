"""`manage.py runworker` and `manage.py reconcile`."""
