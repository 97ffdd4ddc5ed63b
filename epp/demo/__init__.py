"""The demo: Envoy, model servers and the picker on loopback, compared under two policies.

Nothing that serves traffic in a cluster imports this package.
"""
