"""KV events over ZMQ: one subscription per endpoint, and replays of missing batches.

Needs pyzmq (`pip install 'warmpick[events]'`). The frames are read by `epp.protocol.kvevents`.
"""
