"""The jobs that run models (batches, trainings, evaluations), and the supervisor that runs them in child processes."""
