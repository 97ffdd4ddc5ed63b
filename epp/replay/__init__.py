"""Replay: the product's fleet and policies in front of simulated engines, in virtual time."""
