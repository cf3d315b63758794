"""Work that customers request: datasets, batches, quotes, distillations, pipelines, evaluations, fine-tuning jobs."""
