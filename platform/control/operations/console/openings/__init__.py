"""What the page of an object begins with: the figures, progress and text for which a customer opens the page."""
