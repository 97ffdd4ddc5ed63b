"""Builds the compiled kernels where that can be done; everything else is in pyproject.toml.

Without a C compiler or nghttp2's headers the kernels are left out, and their twins do the work;
with WARMPICK_NATIVE=require in the environment that is an error. WARMPICK_SANITIZE=address builds
them with the address and undefined-behaviour sanitizers, WARMPICK_SANITIZE=fuzzer (with clang) with
what atheris needs beside the first (`make test-native`, `tests/native/fuzz.py`).
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZE = {
    "": ["-O2"],
    "address": ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-O1", "-g"],
    "fuzzer": ["-fsanitize=address,fuzzer-no-link", "-fno-omit-frame-pointer", "-O1", "-g"],
}

LIBRARIES: dict[str, tuple[str, ...]] = {
    "body": (),
    "codec": (),
    "framing": (),
    "hashing": (),
    "http2": ("nghttp2",),
    "index": (),
    "ledger": (),
    "lengths": (),
    "pins": (),
}
"""What each kernel, `epp/native/NAME.pyx`, is linked with; `epp.native.KERNELS` names its twin."""


def kernel(name: str, libraries: tuple[str, ...]) -> Extension:
    """Describe one."""
    flags = SANITIZE[os.environ.get("WARMPICK_SANITIZE", "")]
    return Extension(
        f"epp.native.{name}",
        [f"epp/native/{name}.pyx"],
        libraries=list(libraries),
        include_dirs=["epp/native"],
        extra_compile_args=flags,
        extra_link_args=flags[:1] if flags[0].startswith("-fsanitize") else [],
    )


modules = cythonize(
    [kernel(name, libraries) for name, libraries in LIBRARIES.items()],
    build_dir="build",
    language_level=3,
    quiet=True,
)
for module in modules:  # cythonize does not hand this on
    module.optional = os.environ.get("WARMPICK_NATIVE") != "require"

setup(ext_modules=modules)
