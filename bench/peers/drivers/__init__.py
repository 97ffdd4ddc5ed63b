"""Routers in process: each reads steps as JSON from stdin and writes what it picks to a file.

They run in the environment of the routers, not in this project's; the file is their last argument.
"""
