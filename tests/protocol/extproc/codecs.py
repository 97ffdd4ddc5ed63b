"""The codecs that are there: over generated code, and compiled where that was built."""

from epp.protocol.extproc import codec, protobuf
from tests.native.built import FAULTS, needs

_NAME = "epp.protocol.extproc.codec"
CODECS = {"protobuf": protobuf} | ({} if _NAME in FAULTS else {"compiled": codec})
needs_compiled = needs(_NAME, "the compiled codec")
