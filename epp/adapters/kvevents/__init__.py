"""KV events over ZMQ: a subscription per endpoint or one for all, and replays of missing batches.

Needs pyzmq (`pip install 'warmpick[events]'`). The frames are read by `epp.protocol.kvevents`.
"""
