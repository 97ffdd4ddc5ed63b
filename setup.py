"""Builds the compiled kernels where that can be done; everything else is in pyproject.toml.

Without a C compiler or nghttp2's headers the kernels are left out, and their twins do the work;
with WARMPICK_NATIVE=require in the environment that is an error. WARMPICK_SANITIZE=1 builds them
with the address and undefined-behaviour sanitizers (`make test-native`).
"""

import os

from Cython.Build import cythonize
from setuptools import Extension, setup

SANITIZERS = ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-O1", "-g"]


def kernel(name: str, *libraries: str) -> Extension:
    """Describe one, of `epp/native/NAME.pyx`."""
    sanitized = bool(os.environ.get("WARMPICK_SANITIZE"))
    return Extension(
        f"epp.native.{name}",
        [f"epp/native/{name}.pyx"],
        libraries=list(libraries),
        include_dirs=["epp/native"],
        extra_compile_args=SANITIZERS if sanitized else ["-O2"],
        extra_link_args=SANITIZERS[:1] if sanitized else [],
        optional=os.environ.get("WARMPICK_NATIVE") != "require",
    )


setup(
    ext_modules=cythonize(
        [kernel("framing"), kernel("http2", "nghttp2")],
        build_dir="build",
        language_level=3,
        quiet=True,
    )
)
