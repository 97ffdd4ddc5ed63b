"""Builds a small random-weight language model on disk, offline and in seconds.

`python -m model_server.tiny_model DIR [--size tiny|small]` writes what `vllm serve DIR` needs:
weights, configuration, a byte-level BPE tokenizer trained on the Python standard library's sources,
and a ChatML template. The text it generates is noise; its cost and its prefix cache are real.

The same Python and packages give the same bytes: the seed is fixed and the corpus is sorted.
"""

import argparse
import json
import os
import shutil
import sys
import sysconfig
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from importlib import import_module
from pathlib import Path

from model_server.engine import HOW_TO_GET_VLLM, is_installed

RECIPE = 1
"""Raised whenever the files below would come out different; an older folder is then rebuilt."""

MARKER = "warmpick-recipe.json"
SEED = 20251
VOCABULARY = 2048
CONTEXT_TOKENS = 16384
CORPUS_FILES = 150
SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
CHATML = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


class Size(StrEnum):
    """tiny: Llama, 0.4 M parameters, seconds of tests. small: Qwen2, 26 M parameters.

    With `small` a prefix hit shows in the time to first token (about 20 times less for 2,000 cached
    tokens) and a running decode leaves the HTTP server time to breathe; with `tiny` neither.
    """

    TINY = "tiny"
    SMALL = "small"


def is_finished(folder: Path, size: Size) -> bool:
    """Whether `folder` holds a complete model of that size, built by this recipe."""
    try:
        return bool(json.loads((folder / MARKER).read_text()) == {"recipe": RECIPE, "size": size})
    except FileNotFoundError:
        return False


def build(folder: Path, size: Size) -> bool:
    """Make `folder` hold the model; False if it already did.

    The folder appears complete or not at all, also when two processes build it at the same time.
    Raises FileExistsError when `folder` holds something that this module did not write.
    """
    if is_finished(folder, size):
        return False
    if folder.exists() and any(folder.iterdir()) and not (folder / MARKER).exists():
        raise FileExistsError(f"{folder} is not empty and holds no model built by this command")
    folder.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=folder.parent, prefix=f".{folder.name}-") as scratch:
        draft = Path(scratch) / "model"
        draft.mkdir()
        _write_tokenizer(draft)
        _write_weights(draft, size)
        (draft / MARKER).write_text(json.dumps({"recipe": RECIPE, "size": size}))
        _publish(draft, folder, size)
    return True


def _publish(draft: Path, folder: Path, size: Size) -> None:
    if folder.exists() and not is_finished(folder, size):
        shutil.rmtree(folder)
    try:
        draft.rename(folder)
    except OSError:
        if not is_finished(folder, size):  # else another process was first, with the same bytes
            raise


def _corpus() -> Iterator[str]:
    library = Path(sysconfig.get_path("stdlib"))
    for path in sorted(library.glob("*.py"))[:CORPUS_FILES]:
        yield path.read_text(encoding="utf-8", errors="replace")


def _write_tokenizer(folder: Path) -> None:
    # Imported by name here, as torch is below: all three come with vLLM and take seconds to load.
    tokenizers = import_module("tokenizers")
    transformers = import_module("transformers")
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE())
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    trainer = tokenizers.trainers.BpeTrainer(
        vocab_size=VOCABULARY,
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=tokenizers.pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_corpus(), trainer)
    end_of_text, _, end_of_message = SPECIAL_TOKENS
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer,
        eos_token=end_of_message,
        pad_token=end_of_text,
        chat_template=CHATML,
        model_max_length=CONTEXT_TOKENS,
        clean_up_tokenization_spaces=False,
    ).save_pretrained(folder)


def _write_weights(folder: Path, size: Size) -> None:
    torch = import_module("torch")
    transformers = import_module("transformers")
    transformers.logging.disable_progress_bar()
    common = {
        "vocab_size": VOCABULARY,
        "max_position_embeddings": CONTEXT_TOKENS,
        "bos_token_id": None,
        "pad_token_id": SPECIAL_TOKENS.index("<|endoftext|>"),
        "eos_token_id": SPECIAL_TOKENS.index("<|im_end|>"),
        "tie_word_embeddings": False,
        "dtype": "bfloat16",
    }
    torch.manual_seed(SEED)
    # Head sizes are ones that vLLM's CPU attention has kernels for: 32 and 64.
    if size is Size.TINY:
        shape = {"hidden_size": 64, "intermediate_size": 128, "num_hidden_layers": 2}
        heads = {"num_attention_heads": 2, "num_key_value_heads": 2}
        configuration = transformers.LlamaConfig(**common, **shape, **heads)
        model = transformers.LlamaForCausalLM(configuration)
    else:
        shape = {"hidden_size": 512, "intermediate_size": 1536, "num_hidden_layers": 8}
        heads = {"num_attention_heads": 8, "num_key_value_heads": 2}
        configuration = transformers.Qwen2Config(**common, **shape, **heads)
        model = transformers.Qwen2ForCausalLM(configuration)
    model.to(torch.bfloat16).save_pretrained(folder)


def main(arguments: list[str] | None = None) -> int:
    """Build the model that the command line names; return 3 if torch or transformers is missing."""
    parser = argparse.ArgumentParser(prog="model_server.tiny_model", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("folder", metavar="DIR", type=Path, help="where the model is, or will be")
    parser.add_argument("--size", type=Size, choices=tuple(Size), default=Size.SMALL)
    options = parser.parse_args(arguments)
    if not is_finished(options.folder, options.size) and not is_installed():
        print(HOW_TO_GET_VLLM, file=sys.stderr)
        return 3
    os.environ.setdefault("HF_HUB_OFFLINE", "1")
    started = time.monotonic()
    try:
        built = build(options.folder, options.size)
    except FileExistsError as refusal:
        print(f"model_server.tiny_model: {refusal}", file=sys.stderr)
        return 1
    spent = f"built in {time.monotonic() - started:.1f} s" if built else "already there"
    print(f"{options.folder}: {options.size} {spent}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
