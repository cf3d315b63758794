"""OpenAI batches: validation of rows, shards in, output and error files out."""
