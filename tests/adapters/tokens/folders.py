"""Folders with small tokenizers of every kind that matters, trained in a moment."""

import json
from collections.abc import Callable, Sequence
from pathlib import Path

from tokenizers import (
    AddedToken,
    Regex,
    Tokenizer,
    decoders,
    models,
    normalizers,
    pre_tokenizers,
    processors,
    trainers,
)

CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
UNKNOWN = "<unk>"
SPECIAL = ("<s>", "<|im_end|>", "<|im_start|>", UNKNOWN)
WORDS = (
    "the keeper of the lighthouse counted 42 boats and 1729 gulls on the third day, "
    "didn't he? \n\n\tdef f(x):\n    return {'a': 1} naïve für Größe 東京 タワー 🙂 e\u0301 "
)
MARKED = "कि "
"""A letter of Hindi with a mark, which is no letter."""
_SPLIT = Regex(
    r"(?i:'s|'t|'re)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}| ?[^\s\p{L}\p{N}]+[\r\n]*|"
    r"\s*[\r\n]+|\s+(?!\S)|\s+"
)


def _trained(tokenizer: Tokenizer, **more: object) -> Tokenizer:
    alphabet = pre_tokenizers.ByteLevel.alphabet() if more.pop("bytes", False) else []
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        special_tokens=list(SPECIAL),
        initial_alphabet=alphabet,
        show_progress=False,
    )
    tokenizer.train_from_iterator([WORDS * 3, *WORDS.split()], trainer)
    return tokenizer


def byte_level() -> Tokenizer:
    """GPT-2's kind, as the tiny model has it."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = decoders.ByteLevel()
    return _trained(made, bytes=True)


def byte_level_prefix() -> Tokenizer:
    """GPT-2's kind with a space before the first word."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
    made.decoder = decoders.ByteLevel()
    return _trained(made, bytes=True)


def split_then_bytes() -> Tokenizer:
    """Qwen's and Llama 3's kind: composed characters, a pattern, bytes; a token at the start."""
    made = Tokenizer(models.BPE())
    made.normalizer = normalizers.NFC()
    made.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(_SPLIT, "isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    made.decoder = decoders.ByteLevel()
    made = _trained(made, bytes=True)
    around = [("<s>", made.token_to_id("<s>"))]
    made.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=around)
    return made


def long_words() -> Tokenizer:
    """One without words, whose tokens join letters with their marks and with what follows."""
    made = Tokenizer(models.BPE())
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=400,
        special_tokens=list(SPECIAL),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    made.train_from_iterator([WORDS, MARKED * 9], trainer)
    return made


def _sentencepiece() -> Tokenizer:
    return Tokenizer(models.BPE(unk_token=UNKNOWN, fuse_unk=True))


def metaspace(scheme: str) -> Callable[[], Tokenizer]:
    """Sentencepiece's kind, with its prefix space first, always or never."""

    def make() -> Tokenizer:
        made = _sentencepiece()
        made.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme, split=False)
        made.decoder = decoders.Metaspace(prepend_scheme=scheme)
        made = _trained(made)
        ids = [("<s>", made.token_to_id("<s>")), ("<|im_end|>", made.token_to_id("<|im_end|>"))]
        made.post_processor = processors.TemplateProcessing(
            single="<s> $A <|im_end|>", special_tokens=ids
        )
        return made

    return make


def prepended() -> Tokenizer:
    """Llama 2's kind: the space is put there by the normalizer."""
    made = _sentencepiece()
    made.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    return _trained(made)


def lower_case() -> Tokenizer:
    """BERT's kind: normalized beyond recognition."""
    made = Tokenizer(models.WordPiece(unk_token=UNKNOWN))
    made.normalizer = normalizers.BertNormalizer(lowercase=True)
    made.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    trainer = trainers.WordPieceTrainer(
        vocab_size=400, special_tokens=list(SPECIAL), show_progress=False
    )
    made.train_from_iterator([WORDS * 3], trainer)
    return made


def _with(*tokens: AddedToken) -> Callable[[], Tokenizer]:
    def make() -> Tokenizer:
        made = byte_level()
        made.add_special_tokens(list(tokens))
        return made

    return make


KINDS: dict[str, Callable[[], Tokenizer]] = {
    "byte level": byte_level,
    "byte level, prefix": byte_level_prefix,
    "split, bytes, start": split_then_bytes,
    "long words": long_words,
    "metaspace first": metaspace("first"),
    "metaspace always": metaspace("always"),
    "metaspace never": metaspace("never"),
    "prepended": prepended,
    "lower case": lower_case,
    "takes blanks": _with(
        AddedToken("<left>", lstrip=True, normalized=False),
        AddedToken("<right>", rstrip=True, normalized=False),
    ),
    "single word": _with(AddedToken("<word>", single_word=True, normalized=False)),
    "overlapping": _with(
        AddedToken("<|im_start|>system", normalized=False),
        AddedToken("x<|im", normalized=False),
        AddedToken("\n\n", normalized=False),
    ),
    "normalized": _with(AddedToken("keeper", normalized=True)),
}
ODD = ("<left>", "<right>", "<word>", "<|im_start|>system", "x<|im", "\n\n")
"""Further tokens of the kinds above."""


def write(
    folder: Path, tokenizer: Tokenizer, template: str | None = CHATML, **config: object
) -> Path:
    """Write a folder as vLLM serves it."""
    folder.mkdir(exist_ok=True)
    tokenizer.save(str(folder / "tokenizer.json"))
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "eos_token": "<|im_end|>"} | config
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    if template is not None:
        (folder / "chat_template.jinja").write_text(template)
    return folder


def texts() -> Sequence[str]:
    """Pieces that texts are made of, special tokens and blanks among them."""
    return (*SPECIAL, *ODD, *WORDS.split(" "), MARKED, " ", "  ", "\n", "\t", "word", "_", "x", "A")
