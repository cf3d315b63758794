"""A day in the life of a deployment, from the first speculator to one that is rolled back (`make day`)."""
