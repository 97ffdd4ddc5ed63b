from epp.protocol.openai.object_scanner import Watch as Watch
