"""Example ids of invoices, for the tests that cover all routes."""

from tests.control.world import Ids

IDS: Ids = {
    "period": lambda world: "2001-01",  # every organization has this invoice, which is empty
}
