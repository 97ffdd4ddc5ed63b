"""What joins a process with its workers: a link to each, one port for all, and their pages."""
