"""Command lines in the forms of Go's flags (spf13/pflag), which manifests of llm-d-router use.

`-flag value`, `--flag value` and `--flag=value` are the same, and so are `--poolName`, as flags of
old releases are spelt, and `--pool-name`. A command line of flags alone is one of `epp serve`.
"""

import argparse
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any, NoReturn

from epp.config.schema import near
from epp.printable import printable

_ABOUT_THE_PROGRAM = ("-h", "--help", "--version")
_SERVE = "serve"


class GoArgumentParser(argparse.ArgumentParser):
    """A parser that reads Go's forms of flags, and names what an unknown word resembles.

    `commands`, if there are any, are the words that it may begin with. `words_go_to` names the
    argument that takes words wherever they stand among flags. `build` adds what there is to parse,
    when it is first asked to: the parser of a command that is not used stays empty.
    """

    commands: Collection[str] = ()
    words_go_to = ""
    build: "Callable[[GoArgumentParser], None] | None" = None

    def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 (argparse's own)
        super().__init__(*arguments, **more | {"allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """End the program with a usage, and what is wrong as one line."""
        super().error(printable(message))

    def plain(self, words: Sequence[str]) -> list[str]:
        """Return a command line in argparse's form.

        Empty words that are not a flag's value are left out: templates leave them behind.
        """
        known = self._option_string_actions
        made: list[str] = []
        rest = iter(words)
        for word in rest:
            flag, sign, value = word.partition("=")
            name = _spelt(flag, known)
            if name not in known:
                made += [word] if word else []
            elif sign or known[name].nargs is not None:
                made.append(f"{name}{sign}{value}")
            else:  # what follows is its value, whatever it looks like
                following = next(rest, None)
                made.append(name if following is None else f"{name}={following}")
        return made

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 (argparse's own)
        """Parse words in Go's forms; end the program if a flag is not known."""
        build, self.build = self.build, None
        if build:
            build(self)
        if not self.commands:
            args = self.plain(args)
        elif args and not args[0].startswith("-") and args[0] not in self.commands:
            known = ", ".join(self.commands)
            hint = near("up" if "://" in args[0] else args[0], self.commands)
            hint = hint or f": choose from {known}"
            self.error(f"argument COMMAND: invalid choice: {args[0]!r}{hint}")
        found, unknown = super().parse_known_args(args, namespace)
        if self.words_go_to:  # argparse takes those of one place only
            words = [word for word in unknown if not word.startswith("-")]
            setattr(found, self.words_go_to, [*getattr(found, self.words_go_to), *words])
            unknown = [word for word in unknown if word.startswith("-")]
        if unknown:
            hint = near(unknown[0].partition("=")[0], self._option_string_actions)
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


def _spelt(flag: str, known: Mapping[str, object]) -> str:
    """Return a flag as it is known: with two dashes, and dashes for capitals."""
    if not flag.startswith("-") or (flag in known and f"-{flag}" not in known):
        return flag
    name = "--" + flag.lstrip("-")
    return name if name in known else re.sub(r"(?<=[a-z])([A-Z])", r"-\1", name).lower()


def with_command(words: Sequence[str]) -> list[str]:
    """Return a command line that names its command: without one it is `serve`."""
    words = list(words)
    while words and not words[0]:
        del words[0]
    if words and words[0].startswith("-") and words[0] not in _ABOUT_THE_PROGRAM:
        return [_SERVE, *words]
    return words
