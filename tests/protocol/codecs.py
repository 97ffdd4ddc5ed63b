"""The codecs that are there: the twin, and the compiled one where it was built."""

import importlib

import pytest

from epp.protocol import protobuf
from tests.native.built import FAULTS

CODECS = {"protobuf": protobuf}
if "codec" not in FAULTS:
    CODECS["compiled"] = importlib.import_module("epp.protocol.compiled")
needs_compiled = pytest.mark.skipif(
    "codec" in FAULTS, reason=f"NOT TESTED: the compiled codec: {FAULTS.get('codec')}"
)
