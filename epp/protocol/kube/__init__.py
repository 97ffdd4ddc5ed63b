"""Kubernetes objects, lists and watch streams as data, and the state that they add up to."""
