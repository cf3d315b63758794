"""What it will cost to let a model answer a dataset: tokens counted, answers measured on a few rows first."""
