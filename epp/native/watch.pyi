from epp.protocol.watch import Watch as Watch
