"""The appearance of the console: Django's setting UNFOLD."""

from typing import Any

UNFOLD: dict[str, Any] = {
    "SITE_TITLE": "Slipstream",
    "SITE_HEADER": "Slipstream",
    "SITE_SUBHEADER": "Console",
    "SITE_SYMBOL": "air",
    "SITE_URL": None,
    "SITE_FAVICONS": [{"rel": "icon", "type": "image/svg+xml", "href": "/static/console/favicon.svg"}],
    "SHOW_HISTORY": False,
    "SHOW_VIEW_ON_SITE": False,
    "SHOW_BACK_BUTTON": True,
    "BORDER_RADIUS": "6px",
    "DASHBOARD_CALLBACK": "control.operations.console.dashboard.dashboard",
    "STYLES": ["/static/console/console.css"],
    "SCRIPTS": ["/static/console/live.js"],
    "ACCOUNT": {"navigation": "control.operations.console.sidebar.account_links"},
    "SIDEBAR": {"show_search": True, "navigation": "control.operations.console.sidebar.navigation"},
}
