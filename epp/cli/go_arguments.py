"""Command lines in the forms of Go's flags (spf13/pflag), which manifests of llm-d-router use.

`-flag value`, `--flag value` and `--flag=value` are the same. So are `--poolName`, the spelling of
old releases, and `--pool-name`. A command line with only flags is one of `epp serve`.
"""

import argparse
import re
from collections.abc import Callable, Collection, Sequence
from typing import Any, NoReturn

from epp.config.schema import near
from epp.printable import printable

_ABOUT_THE_PROGRAM = ("-h", "--help", "--version")
_SERVE = "serve"


class GoArgumentParser(argparse.ArgumentParser):
    """A parser of Go's flag syntax that suggests a known word for an unknown one.

    `commands` are the subcommands, if there are any. `words_go_to` names the positional argument
    whose words may stand anywhere among the flags. `build` adds the arguments before the first
    parse, so that only the command that is used has to import them.
    """

    commands: Collection[str] = ()
    words_go_to = ""
    build: "Callable[[GoArgumentParser], None] | None" = None

    def __init__(self, *arguments: Any, **more: Any) -> None:  # noqa: ANN401 (argparse's own)
        super().__init__(*arguments, **more | {"allow_abbrev": False})

    def error(self, message: str) -> NoReturn:
        """Exit with the usage, and the error as one line."""
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
            name = _spelt(flag)
            if name not in known:
                made += [word] if word else []
            elif sign or known[name].nargs is not None:
                made.append(f"{name}{sign}{value}")
            else:  # the next word is its value, even if it looks like a flag
                following = next(rest, None)
                made.append(name if following is None else f"{name}={following}")
        return made

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:  # noqa: ANN401 (argparse's own)
        """Parse words in Go's syntax; exit if a flag is not known."""
        build, self.build = self.build, None
        if build:
            build(self)
        if not self.commands:
            args = self.plain(args)
        elif not args:
            self.error(f"COMMAND is missing: choose from {', '.join(self.commands)}")
        elif not args[0].startswith("-") and args[0] not in self.commands:
            known = ", ".join(self.commands)
            hint = near("up" if "://" in args[0] else args[0], self.commands)
            hint = hint or f": choose from {known}"
            self.error(f"argument COMMAND: invalid choice: {args[0]!r}{hint}")
        found, unknown = super().parse_known_args(args, namespace)
        if self.words_go_to:  # argparse takes only those that stand together
            setattr(found, self.words_go_to, [*getattr(found, self.words_go_to), *unknown])
            unknown = list(filter(_is_flag, unknown))
        if unknown:
            hint = near(unknown[0].partition("=")[0], self._option_string_actions)
            if "://" in unknown[0]:
                hint = "; servers by their URLs are for `epp up`"
            self.error(f"unrecognized arguments: {' '.join(unknown)}{hint}")
        return found, unknown


def _is_flag(word: str) -> bool:
    return word.startswith("-") and word != "-"  # the latter is standard input


def _spelt(flag: str) -> str:
    """Return a flag as it is spelt here: `--pool-name` for `-poolName`; a word as it is."""
    name = "--" + flag.lstrip("-")
    return re.sub(r"(?<=[a-z])([A-Z])", r"-\1", name).lower() if flag.startswith("-") else flag


def with_command(words: Sequence[str]) -> list[str]:
    """Return a command line with its command; `serve` if it names none."""
    words = list(words)
    while words and not words[0]:
        del words[0]
    if words and words[0].startswith("-") and words[0] not in _ABOUT_THE_PROGRAM:
        return [_SERVE, *words]
    return words
