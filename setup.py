"""Builds the compiled kernels where that can be done; everything else is in pyproject.toml.

Without a C compiler or nghttp2's headers the kernels are left out, and their twins do the work;
with WARMPICK_NATIVE=require in the environment that is an error. WARMPICK_SANITIZE=address builds
them with the address and undefined-behaviour sanitizers, WARMPICK_SANITIZE=fuzzer (with clang) with
what atheris needs beside the first (`make test-native`, `tests/native/fuzz.py`).

The modules that `epp/compiled.py` lists are compiled as they stand, by mypyc.
"""

import os
import runpy
import sys
from pathlib import Path

from Cython.Build import cythonize
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

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
    "hashset": (),
    "http2": ("nghttp2",),
    "index": (),
    "ledger": (),
    "lengths": (),
    "pins": (),
    "pool": (),
    "watch": (),
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


REQUIRED = os.environ.get("WARMPICK_NATIVE") == "require"
COMPILED = runpy.run_path("epp/compiled.py")
"""What says which modules are compiled as they stand, and writes down what they were."""


def as_they_stand() -> list[Extension]:
    """Compile the modules that every request passes; none where mypyc cannot, unless it must."""
    if os.environ.get("WARMPICK_SANITIZE"):
        return []
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 (what needs no extension needs no mypyc)

        paths = [COMPILED["path_of"](module) for module in COMPILED["MODULES"]]
        return mypycify(
            ["--config-file=", "--ignore-missing-imports", "--follow-imports=silent", *paths],
            opt_level="2",
            debug_level="0",
            group_name="epp",
        )
    except (ImportError, SystemExit) as error:
        if REQUIRED:
            raise
        print(f"the modules of epp stay as they are: {error}", file=sys.stderr)  # noqa: T201
        return []


class Build(build_ext):
    """Builds kernels, and the modules that are compiled as they stand: these all, or none."""

    def finalize_options(self) -> None:
        """Add the modules that are compiled as they stand; this is what takes mypyc's time."""
        self._compiled = as_they_stand()
        for extension in self._compiled:
            extension.optional = not REQUIRED
        self.distribution.ext_modules += self._compiled
        super().finalize_options()

    def run(self) -> None:
        """Build, and write down what was compiled, where it all was.

        In place, what was compiled before goes first: an extension of a module that is no longer
        listed would still come before its source.
        """
        if self.inplace:
            for path in Path("epp").rglob("*.so"):
                if path.parent.name != "native":
                    path.unlink()
        super().run()
        root = Path() if self.inplace else Path(self.build_lib)
        record = root / "epp" / COMPILED["RECORD"]
        built = [self.get_ext_fullpath(each.name) for each in self._compiled]
        if built and all(Path(each).exists() for each in built):
            record.write_text(COMPILED["record"](Path()), encoding="ascii")
        else:
            record.unlink(missing_ok=True)


modules = cythonize(
    [kernel(name, libraries) for name, libraries in LIBRARIES.items()],
    build_dir="build",
    language_level=3,
    quiet=True,
)
for module in modules:  # cythonize does not hand this on
    module.optional = not REQUIRED

setup(ext_modules=modules, cmdclass={"build_ext": Build})
