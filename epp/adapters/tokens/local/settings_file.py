"""The configuration files of a model's folder, as far as tokens depend on them."""

from collections.abc import Iterator
from pathlib import Path
from typing import TypeVar

import msgspec

from epp.errors import ConfigError
from epp.protocol.bodies.coercion import UNREADABLE

T = TypeVar("T")

NAMED = ("bos_token", "eos_token", "unk_token", "sep_token", "pad_token", "cls_token", "mask_token")
"""Special tokens that templates may refer to by name."""


class Token(msgspec.Struct, frozen=True):
    """An added token and how it is matched; `normalized` None: the opposite of `special`."""

    content: str
    single_word: bool = False
    lstrip: bool = False
    rstrip: bool = False
    normalized: bool | None = None
    special: bool = False


class NamedTemplate(msgspec.Struct, frozen=True):
    """One of several chat templates."""

    name: str
    template: str


class TokenizerConfig(msgspec.Struct, frozen=True):
    """`tokenizer_config.json`; other fields are ignored."""

    bos_token: str | Token | None = None
    """Begins a text."""
    eos_token: str | Token | None = None
    """Ends a text."""
    unk_token: str | Token | None = None
    """Stands for what the vocabulary lacks."""
    sep_token: str | Token | None = None
    """Stands between two texts."""
    pad_token: str | Token | None = None
    """Fills a batch."""
    cls_token: str | Token | None = None
    """Stands for a whole text."""
    mask_token: str | Token | None = None
    """Stands for what is to be guessed."""
    additional_special_tokens: list[str | Token] | None = None
    """Further special tokens."""
    extra_special_tokens: list[str | Token] | dict[str, str | Token] | None = None
    """The same, as Transformers 5 writes it."""
    added_tokens_decoder: dict[int, Token] | None = None
    """Tokens that were added to the vocabulary, by id."""
    split_special_tokens: bool = False
    """Whether a special token in a text is text."""
    tokenizer_class: str | None = None
    """The name of the class in Transformers."""
    add_prefix_space: bool | None = None
    """Whether a text begins with a space."""
    legacy: bool | None = None
    """Whether Transformers treats spaces after special tokens as it did before 4.31."""
    chat_template: str | list[NamedTemplate] | None = None
    """The Jinja template, or several by name."""

    def special(self) -> Iterator[tuple[str, str]]:
        """Yield the names and texts of special tokens that have both."""
        named = ((name, getattr(self, name)) for name in NAMED)
        yield from ((name, text_of(token)) for name, token in named if token is not None)
        if isinstance(self.extra_special_tokens, dict):
            for name, token in self.extra_special_tokens.items():
                yield name, text_of(token)

    def further(self) -> Iterator[str]:
        """Yield the texts of special tokens without a name."""
        # transformers 5: `extra_special_tokens` replaces `additional_special_tokens`.
        extra = self.extra_special_tokens
        listed = self.additional_special_tokens if extra is None else extra
        yield from map(text_of, listed if isinstance(listed, list) else ())


class ModelConfig(msgspec.Struct, frozen=True):
    """`config.json`."""

    model_type: str = ""


class Sidecar(msgspec.Struct, frozen=True):
    """`chat_template.json`."""

    chat_template: str | list[NamedTemplate] | None = None


def text_of(token: str | Token) -> str:
    """Return the text of a token, given as a string or as an object."""
    return token.content if isinstance(token, Token) else token


def read_json(path: Path, kind: type[T]) -> T:
    """Read a JSON file; the defaults if it is absent. Raises `ConfigError` for a malformed one."""
    try:
        return msgspec.json.decode(path.read_bytes(), type=kind)
    except FileNotFoundError:
        return kind()
    except (OSError, *UNREADABLE) as error:
        raise ConfigError(f"cannot read {path.name}: {error}") from error
