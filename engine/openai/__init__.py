"""OpenAI's wire format: requests are parsed in `requests`, answers are rendered in `responses` and `formats`."""
