"""Files and multi-part uploads of customers."""
