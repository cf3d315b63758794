"""The supervisor of jobs: claims a job, runs it in a child process and commits the results. It never imports torch."""
