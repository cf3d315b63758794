"""The OpenAPI document: what every route takes and answers, in one table."""
