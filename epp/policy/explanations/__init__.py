"""Explanations of decisions; nothing here runs until one is requested."""
