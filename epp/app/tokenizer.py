"""Builds the tokenizer that a configuration asks for."""

from pathlib import Path

from epp.adapters.tokens.tokenizer import PromptTokenizer
from epp.config.producers import TokenSettings
from epp.errors import ConfigError

_EXTRA = "pip install 'warmpick[tokens]'"


def build_tokenizer(settings: TokenSettings) -> PromptTokenizer:
    """Return a tokenizer. Raises `ConfigError`, which says what to do."""
    return _in_process(settings) if settings.tokenizer else _of_a_server(settings)


def complaint(settings: TokenSettings | None) -> str:
    """Return a line that says why there would be no tokenizer; empty where there is nothing."""
    try:
        if settings is not None:
            build_tokenizer(settings)
    except ConfigError as error:
        return f"epp: warning: {error}; prompts would be routed as text\n"
    return ""


def _of_a_server(settings: TokenSettings) -> PromptTokenizer:
    from epp.adapters.tokens.render.render_tokenizer import RenderSettings, RenderTokenizer  # noqa: PLC0415 (slow)

    return RenderTokenizer(
        RenderSettings(
            url=settings.url,
            model=settings.model,
            timeout=settings.timeout,
            media_timeout=settings.media_timeout,
            most_bytes=settings.max_bytes,
        )
    )


def _in_process(settings: TokenSettings) -> PromptTokenizer:
    try:
        from epp.adapters.tokens.local.local_tokenizer import LocalLimits, LocalTokenizer  # noqa: PLC0415
        from epp.adapters.tokens.local.model_folder import read_folder  # noqa: PLC0415 (an extra)
    except ImportError as error:
        raise ConfigError(f"`{error.name}` is missing: {_EXTRA}", "tokenizer") from error
    template = Path(settings.chat_template) if settings.chat_template else None
    folder = read_folder(Path(settings.tokenizer), template, settings.chat_template_kwargs)
    limits = LocalLimits(
        most_bytes=settings.max_bytes,
        cache_bytes=settings.cache_bytes,
        patience=settings.patience,
    )
    return LocalTokenizer(folder, limits)
