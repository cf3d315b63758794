"""Django's backend for SQLite, with an order of the waiting writers. Django requires the name of the module `base`."""
