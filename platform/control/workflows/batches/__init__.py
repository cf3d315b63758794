"""OpenAI batches: validation of the rows, and the output and error files assembled from shards."""
