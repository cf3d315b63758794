"""What customers ask for: datasets, batches, quotes, distillations, pipelines, evaluations, fine-tuning jobs."""
