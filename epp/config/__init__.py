"""The configuration file as types: plug-ins by name, producers, profiles."""
