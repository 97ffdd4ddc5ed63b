"""KV events over ZMQ: one subscription an endpoint, and requests to send again what is missing.

Needs pyzmq (`pip install 'warmpick[events]'`). What frames mean: `epp.protocol.kvevents`.
"""
