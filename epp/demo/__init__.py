"""Everything on loopback: Envoy, model servers and the picker, started, loaded and compared.

Nothing that serves traffic in a cluster imports this package.
"""
