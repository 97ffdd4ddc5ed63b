"""Builds the extensions that `epp/compiled.py` lists; everything else is in pyproject.toml.

Without a C compiler or a library's headers, extensions are left out and the sources run; with
WARMPICK_NATIVE=require in the environment that is an error. WARMPICK_ONLY is a pattern: only the
modules whose names match it are built, what mypyc compiles all or none (`*.prefix_index.*`).
WARMPICK_SANITIZE=address builds what Cython compiles with the address and undefined-behaviour
sanitizers, WARMPICK_SANITIZE=fuzzer (with clang) with what atheris needs beside the first
(`make test-native`, `tests/native/fuzz.py`). WARMPICK_PROFILE=record builds with gcc what writes a
profile into build/profile as it ends, WARMPICK_PROFILE=use lays the code out by that one
(`.ci/profiled-wheel`); either builds all again.
"""

import os
import runpy
import sys
from fnmatch import fnmatch
from itertools import chain
from pathlib import Path

from Cython.Build import cythonize
from Cython.Build.Dependencies import create_dependency_tree
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext

LOCAL_CALLS = ["-fvisibility=hidden", "-fno-semantic-interposition", "-fno-plt"]
"""What an extension calls of its own is called directly, and of others without a detour."""
FIRST = ["epp/acyclic.h", "epp/calls.h"]
"""What mypyc compiles includes these first."""
SANITIZE = {
    "": ["-O2"],
    "address": ["-fsanitize=address,undefined", "-fno-omit-frame-pointer", "-O1", "-g"],
    "fuzzer": ["-fsanitize=address,fuzzer-no-link", "-fno-omit-frame-pointer", "-O1", "-g"],
}
_PROFILES = Path("build/profile").resolve()
PROFILE = {
    "": [],
    "record": ["-fprofile-generate", f"-fprofile-dir={_PROFILES}", "-fprofile-update=atomic"],
    # What was not played is compiled as without a profile, not for size.
    "use": [f"-fprofile-use={_PROFILES}", "-fprofile-partial-training", "-Wno-missing-profile"],
}[os.environ.get("WARMPICK_PROFILE", "")]
SANITIZER = os.environ.get("WARMPICK_SANITIZE", "")
REQUIRED = os.environ.get("WARMPICK_NATIVE") == "require"
COMPILED = runpy.run_path("epp/compiled.py")
ONLY = os.environ.get("WARMPICK_ONLY", "*")


def wanted(compiler: str) -> list[str]:
    """Return the modules that a compiler is to build."""
    found = [module for module, by in COMPILED["MODULES"].items() if by == compiler]
    matching = [module for module in found if fnmatch(module, ONLY)]
    return found if compiler == "mypyc" and matching else matching


def sources(module: str) -> list[str]:
    """Return the files that an extension is built from, and its module's own source."""
    source = COMPILED["path_of"](module)
    if COMPILED["MODULES"][module] == "mypyc":
        return [source]
    pyx = COMPILED["cython_source_of"](Path(), module)
    included = [os.path.relpath(each) for each in create_dependency_tree().all_dependencies(pyx)]
    ours = {each for each in included if each.startswith("epp" + os.sep)}
    return sorted({pyx, *ours, *([source] if Path(source).exists() else [])})


def by_cython() -> list[Extension]:
    """Describe what Cython compiles, each from its `.pyx`."""
    flags = [*SANITIZE[SANITIZER], *LOCAL_CALLS, *PROFILE]
    extensions = [
        Extension(
            module,
            [COMPILED["cython_source_of"](Path(), module)],
            libraries=list(COMPILED["LIBRARIES"].get(module, ())),
            include_dirs=[str(Path(COMPILED["path_of"](module)).parent)],
            extra_compile_args=flags,
            extra_link_args=flags[:1] if SANITIZER else PROFILE[:1],
        )
        for module in wanted("cython")
    ]
    return cythonize(extensions, build_dir="build/cython", language_level=3, quiet=True)


def by_mypyc() -> list[Extension]:
    """Describe what mypyc compiles; nothing where it cannot, unless it must."""
    modules = wanted("mypyc")
    if SANITIZER or not modules:
        return []
    try:
        from mypyc.build import mypycify  # noqa: PLC0415 (what needs no extension needs no mypyc)

        extensions = mypycify(
            [
                "--config-file=",
                "--ignore-missing-imports",
                "--follow-imports=silent",
                *map(COMPILED["path_of"], modules),
            ],
            opt_level="2",
            debug_level="0",
            group_name="epp",
            target_dir="build/mypyc",
        )
    except (ImportError, SystemExit) as error:
        if REQUIRED:
            raise
        print(f"mypyc compiles nothing: {error}", file=sys.stderr)  # noqa: T201
        return []
    flags = [*LOCAL_CALLS, *PROFILE, *chain.from_iterable(("-include", each) for each in FIRST)]
    for extension in extensions:  # which share one list of flags
        extension.extra_compile_args = [*extension.extra_compile_args, *flags]
        extension.extra_link_args = [*extension.extra_link_args, *PROFILE[:1]]
        extension.depends = [*extension.depends, *FIRST]
    return extensions


class Build(build_ext):
    """Builds extensions, two at a time, and writes down what they were built from."""

    def finalize_options(self) -> None:
        """Add what mypyc compiles; that takes its time, which only a build should cost."""
        self._failed: list[str] = []
        self._by_mypyc = by_mypyc()
        self.distribution.ext_modules += self._by_mypyc
        for extension in self.distribution.ext_modules:
            extension.optional = not REQUIRED
        super().finalize_options()
        self.parallel = self.parallel or min(2, os.cpu_count() or 1)
        self.force = self.force or bool(PROFILE)  # setuptools looks at times, not at flags

    def build_extension(self, extension: Extension) -> None:
        """Build one; nothing is left of what cannot be built."""
        try:
            super().build_extension(extension)
        except Exception:
            Path(self.get_ext_fullpath(extension.name)).unlink(missing_ok=True)
            self._failed.append(extension.name)
            raise

    def run(self) -> None:
        """Build. In place, an extension of a module that is no longer listed goes first."""
        if self.inplace:
            for path in Path("epp").rglob("*.so"):
                if str(path.with_name(path.name.split(".")[0])).replace("/", ".") not in listed:
                    path.unlink()
        super().run()
        for name in self._failed:  # in place lies what was built before
            Path(self.get_ext_fullpath(name)).unlink(missing_ok=True)
        root = Path() if self.inplace else Path(self.build_lib)
        self._record(root / "epp" / COMPILED["RECORD"])

    def _record(self, record: Path) -> None:
        """Write down what was built, beside what was built before and is still listed."""
        mypyc = [Path(self.get_ext_fullpath(each.name)) for each in self._by_mypyc]
        if not all(path.exists() for path in mypyc):  # they call each other: all or none
            for path in mypyc:
                path.unlink(missing_ok=True)
        built = {}
        if record.exists():
            for line in record.read_text(encoding="ascii").splitlines(keepends=True):
                module = line.split()[1]
                built[module] = built.get(module, "") + line
        for module in [*wanted("cython"), *wanted("mypyc")]:
            built[module] = COMPILED["record_of"](Path(), module, sources(module))
        kept = [
            lines
            for module, lines in sorted(built.items())
            if module in COMPILED["MODULES"] and Path(self.get_ext_fullpath(module)).exists()
        ]
        if kept:
            record.write_text("".join(kept), encoding="ascii")
        else:
            record.unlink(missing_ok=True)


listed = COMPILED["MODULES"]
setup(ext_modules=by_cython(), cmdclass={"build_ext": Build})
