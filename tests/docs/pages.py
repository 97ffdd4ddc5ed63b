"""The pages of the site and what stands in their fences: commands, snippets, what is printed."""

import re
import shlex
from collections.abc import Iterator
from typing import NamedTuple

from docs.site.pages import ROOT, repository_files

PAGES = {name: (ROOT / name).read_text() for name in repository_files() if name.endswith(".md")}
_BLOCK = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
_SHELL = {"sh", "bash", "console"}
_HERE_DOCUMENT = re.compile(r"<<-?'?(\w+)'?(.*?)\n.*?^\1$", re.MULTILINE | re.DOTALL)
_KEYWORDS = {"do", "done", "then", "fi", "else", "while", "until", "if", "{", "}", "!"}


class Block(NamedTuple):
    """A fence of a page: its language, empty for what is printed, and its text."""

    page: str
    line: int
    language: str
    text: str

    def __str__(self):
        return f"{self.page}:{self.line}"


def blocks(*languages: str) -> list[Block]:
    """Return the fences in these languages, or all, of all pages."""
    return [
        Block(page, text.count("\n", 0, found.start()) + 1, found[1], found[2])
        for page, text in PAGES.items()
        for found in _BLOCK.finditer(text)
        if not languages or found[1] in languages
    ]


def scripts() -> list[Block]:
    """Return the fences that a shell would take, without prompts and what is printed."""
    found = blocks(*_SHELL)
    return [
        each._replace(text="\n".join(re.findall(r"^\$ (.*)", each.text, re.MULTILINE)))
        if each.language == "console"
        else each
        for each in found
    ]


def commands(script: str) -> Iterator[list[str]]:
    """Yield the words of each simple command of a script, without redirections."""
    text = _HERE_DOCUMENT.sub(r"\2", script).replace("\\\n", " ")
    text = re.sub(r"<[a-z ]+>", "PLACEHOLDER", text)
    text = re.sub(r"(?:^|(?<=\s))#.*$", "", text, flags=re.MULTILINE)
    words = shlex.shlex(text, posix=True, punctuation_chars="();<>|&\n")
    words.whitespace = " \t"
    words.whitespace_split = True
    words.commenters = ""
    command: list[str] = []
    for word in (*words, ";"):
        if set(word) <= set("();|&\n"):
            yield from _simple(command)
            command = []
        else:
            command.append(word)


def _simple(words: list[str]) -> Iterator[list[str]]:
    while words and (words[0] in _KEYWORDS or re.match(r"\w+=", words[0])):
        del words[0]
    kept: list[str] = []
    rest = iter(words)
    for word in rest:
        if set(word) <= set("<>&"):
            next(rest, None)
            if kept and kept[-1] in {"1", "2"}:
                kept.pop()
        else:
            kept.append(word)
    if kept and kept[0] != "for":
        yield kept
