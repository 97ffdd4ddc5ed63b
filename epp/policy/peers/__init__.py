"""Other projects' routing policies as plug-ins: a module for each project."""
