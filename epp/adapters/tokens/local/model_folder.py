"""Reads a model's tokenizer and chat template from the folder that vLLM serves.

Mirrors what transformers 5 (`tokenization_utils_tokenizers.py`, `tokenization_utils_base.py`)
reads there: `tokenizer.json`, whose post-processor adds tokens around a prompt (`add_bos_token`
in the configuration is ignored); `tokenizer_config.json` for special and added tokens;
`chat_template.jinja` before the template in the configuration.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
from tokenizers import AddedToken, Tokenizer

from epp.adapters.tokens.anthropic_chat import MessagesRules
from epp.adapters.tokens.fallback import TextFallback
from epp.adapters.tokens.local.messages_rules import rules_of
from epp.adapters.tokens.local.settings_file import (
    ModelConfig,
    Sidecar,
    Token,
    TokenizerConfig,
    read_json,
)
from epp.adapters.tokens.local.template import ChatTemplate
from epp.adapters.tokens.local.tokenizer_classes import apply_class
from epp.adapters.tokens.local.vocabulary import Vocabulary
from epp.errors import ConfigError

_OTHER_RENDERERS = {
    "deepseek_v32",
    "deepseek_v4",
    "deepseek_v41",
    "gpt_oss",
    "inkling",
    "kimi_k3",
}
"""Model types whose chats vLLM 0.32 renders by its own code, without a template."""
_PROBE = "Wq7z"
_ROLES = ("system", "user", "assistant", "tool")


class ModelFolder(msgspec.Struct, frozen=True):
    """A model's tokenizer and chat template.

    `template` is None if chats cannot be rendered here; `missing` says why. `ends` are the
    special tokens that close a message. `messages` is for requests of Anthropic's.
    """

    vocabulary: Vocabulary
    template: ChatTemplate | None
    ends: frozenset[str]
    missing: str = ""
    messages: MessagesRules = MessagesRules()


def read_folder(
    path: Path, template_path: Path | None = None, defaults: Mapping[str, Any] | None = None
) -> ModelFolder:
    """Read a folder, or the folder of a `tokenizer.json`. Raises `ConfigError` if that fails.

    `template_path` overrides the folder's own template, as vLLM's `--chat-template` does;
    `defaults` are variables of the template (`--default-chat-template-kwargs`).
    """
    file = path / "tokenizer.json" if path.is_dir() else path
    config = read_json(file.with_name("tokenizer_config.json"), TokenizerConfig)
    legacy = read_json(file.with_name("special_tokens_map.json"), TokenizerConfig)
    model = read_json(file.with_name("config.json"), ModelConfig).model_type
    special = dict(legacy.special()) | dict(config.special())
    tokenizer = _tokenizer(file)
    apply_class(tokenizer, config, model)
    _complete(tokenizer, config, special)
    texts, missing = _texts(file.parent, config, model, template_path)
    template = ChatTemplate(texts, special, defaults) if texts else None
    source = "" if template is None else "".join([*_probes(template), *template.texts.values()])
    added = (token.content for token in tokenizer.get_added_tokens_decoder().values())
    cuts = [token for token in added if token in source or token in special.values()]
    vocabulary = Vocabulary(tokenizer, cuts)
    if template is None:
        return ModelFolder(vocabulary, None, frozenset(), missing)
    ends = frozenset(_ends(template, vocabulary))
    return ModelFolder(vocabulary, template, ends, messages=rules_of(template))


def _tokenizer(file: Path) -> Tokenizer:
    try:
        return Tokenizer.from_buffer(file.read_bytes())
    except OSError as error:
        raise ConfigError(f"cannot read {file}: {error.strerror}") from error
    except Exception as error:  # the library raises `Exception` itself
        raise ConfigError(f"{file} is not a tokenizer: {error}") from error


def _complete(tokenizer: Tokenizer, config: TokenizerConfig, special: Mapping[str, str]) -> None:
    """Add the tokens that only the configuration lists, in the order of their ids."""
    known = {token.content for token in tokenizer.get_added_tokens_decoder().values()}
    listed = sorted((config.added_tokens_decoder or {}).items())
    tokens = [_added(token) for _, token in listed]
    further = [*special.values(), *config.further()]
    tokens += [AddedToken(text, special=True, normalized=False) for text in further]
    for token in tokens:
        if token.content not in known:
            known.add(token.content)
            tokenizer.add_tokens([token])
    tokenizer.encode_special_tokens = config.split_special_tokens


def _added(token: Token) -> AddedToken:
    flags = msgspec.structs.asdict(token)
    if token.normalized is None:
        flags["normalized"] = not token.special
    return AddedToken(**flags)


def _texts(
    folder: Path, config: TokenizerConfig, model: str, given: Path | None
) -> tuple[dict[str, str], str]:
    """Return the texts of templates by name; and why there are none, if there are none."""
    if given is None and model in _OTHER_RENDERERS:
        return {}, f"chats of `{model}` are not rendered by a template"
    if given is None and any(folder.glob("tekken.json")):
        return {}, "chats of Mistral's own tokenizer are not rendered by a template"
    sources = {"default": _text(given)} if given else dict(_sources(folder, config))
    return sources, "there is no chat template"


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"cannot read {path}: {error}") from error


def _sources(folder: Path, config: TokenizerConfig) -> Iterator[tuple[str, str]]:
    """Yield names and texts of templates; for a repeated name the last one counts."""
    sidecar = read_json(folder / "chat_template.json", Sidecar)
    for given in (sidecar.chat_template, config.chat_template):
        if isinstance(given, str):
            yield "default", given
        for named in given if isinstance(given, list) else ():
            yield named.name, named.template
    if (folder / "chat_template.jinja").exists():
        yield "default", _text(folder / "chat_template.jinja")
    for path in sorted(folder.glob("additional_chat_templates/*.jinja")):
        yield path.stem, _text(path)


def _probes(template: ChatTemplate) -> Iterator[str]:
    """Yield the rendering of one message of each role that the template accepts alone."""
    for role in _ROLES:
        body = {"messages": [{"role": role, "content": _PROBE}], "add_generation_prompt": False}
        try:
            yield template.render(body)
        except TextFallback:
            continue


def _ends(template: ChatTemplate, vocabulary: Vocabulary) -> Iterator[str]:
    for rendered in _probes(template):
        _, _, after = rendered.partition(_PROBE)
        for piece in vocabulary.pieces(after):
            closing = next((cut for cut in vocabulary.cuts if piece.startswith(cut)), None)
            if closing:
                yield closing
                break
