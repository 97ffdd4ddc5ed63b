"""The codecs that are there: the twin, and the compiled one where it was built."""

import importlib

from epp.protocol.extproc import protobuf
from tests.native.built import FAULTS, needs

CODECS = {"protobuf": protobuf}
if "codec" not in FAULTS:
    CODECS["compiled"] = importlib.import_module("epp.protocol.extproc.compiled_codec")
needs_compiled = needs("codec", "the compiled codec")
