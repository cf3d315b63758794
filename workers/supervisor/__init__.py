"""The supervisor of jobs: claims a job, runs it in a child process, commits its results. Never imports torch."""
