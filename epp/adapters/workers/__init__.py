"""What joins a process with its workers: a link to each, and their pages."""
