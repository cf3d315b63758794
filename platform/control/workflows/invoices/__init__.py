"""Invoices: what an organization owes for a month, computed from the usage ledger."""
