"""The top of an object's page: the figures, progress and text for which a customer opens the page."""
