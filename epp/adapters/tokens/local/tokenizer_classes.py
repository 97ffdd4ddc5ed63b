"""Tokenizer classes of transformers that override parts of `tokenizer.json`.

Mirrors transformers 5.19, which vLLM 0.32 loads tokenizers with: a class named in the
configuration, or known for the model's type, may replace normalizer and pre-tokenizer
(`models/qwen2/tokenization_qwen2.py`, `models/qwen3_5/tokenization_qwen3_5.py`,
`models/llama/tokenization_llama.py`; which class it is, `models/auto/tokenization_auto.py`).
Published models have the same in both places; converted and trained ones may not.
"""

from tokenizers import Regex, Tokenizer, normalizers, pre_tokenizers
from tokenizers.models import BPE

from epp.adapters.tokens.local.settings_file import TokenizerConfig

_QWEN_TYPE, _LLAMA_TYPE = "qwen2", "llama"
_QWEN_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}|"
    r" ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
# Their configurations may name Qwen2's class, which is not used.
_QWEN_3_5_TYPES = frozenset(("qwen3_5", "qwen3_5_moe", "qwen3_5_moe_text", "qwen4_exp"))
_QWEN_3_5_WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}|"
    r" ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)


def apply_class(tokenizer: Tokenizer, config: TokenizerConfig, model_type: str) -> None:
    """Replace the parts of a tokenizer that its class overrides."""
    named = (config.tokenizer_class or "").removesuffix("Fast")
    if model_type in _QWEN_3_5_TYPES or named == "Qwen3_5Tokenizer":
        _qwen(tokenizer, config, _QWEN_3_5_WORDS)
    elif model_type == _QWEN_TYPE or named == "Qwen2Tokenizer":
        _qwen(tokenizer, config, _QWEN_WORDS)
    elif model_type == _LLAMA_TYPE and named == "LlamaTokenizer":
        _llama(tokenizer, config)


def _qwen(tokenizer: Tokenizer, config: TokenizerConfig, words: str) -> None:
    _encode_unknown(tokenizer, fall_back=False)
    space = bool(config.add_prefix_space)
    tokenizer.normalizer = normalizers.NFC()
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(words), "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=space, use_regex=False),
        ]
    )


def _llama(tokenizer: Tokenizer, config: TokenizerConfig) -> None:
    """Prefix a space to the first word only; with `legacy` also after special tokens."""
    _encode_unknown(tokenizer, fall_back=True)
    scheme = "always" if config.legacy else "first"
    if config.add_prefix_space is False:
        scheme = "never"
    tokenizer.normalizer = None
    tokenizer.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)


def _encode_unknown(tokenizer: Tokenizer, *, fall_back: bool) -> None:
    """Encode text of no token as tokens of its bytes (`fall_back`), else as nothing."""
    model = tokenizer.model
    if isinstance(model, BPE):
        model.unk_token, model.fuse_unk, model.byte_fallback = None, fall_back, fall_back
        tokenizer.model = model
