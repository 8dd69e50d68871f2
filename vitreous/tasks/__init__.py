"""One file a task: everything that differs between tasks, and nothing that does not."""
