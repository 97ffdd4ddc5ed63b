"""Reading a model's folder, and the errors of malformed ones."""

import json

import pytest

from epp.adapters.tokens.local.model_folder import read_folder
from epp.errors import ConfigError
from tests.adapters.tokens.folders import (
    CHATML,
    MARKED,
    byte_level,
    long_words,
    prepended,
    split_then_bytes,
    write,
)

HELLO = {"messages": [{"role": "user", "content": "hello"}]}


@pytest.fixture
def folder(tmp_path):
    return write(tmp_path / "model", byte_level())


def config(folder, **fields):
    path = folder / "tokenizer_config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | fields))


def ids(folder, text):
    read = read_folder(folder)
    packed = read.vocabulary.encode([text])[text]
    return [int.from_bytes(packed[at : at + 4], "little") for at in range(0, len(packed), 4)]


def test_a_folder(folder):
    read = read_folder(folder)
    assert read.template is not None
    assert read.template.render(HELLO).startswith("<|im_start|>user\nhello<|im_end|>")
    assert read.vocabulary.cuts == ("<|im_end|>", "<|im_start|>")
    assert read.ends == {"<|im_end|>"}


def test_the_file_itself_will_do(folder):
    assert read_folder(folder / "tokenizer.json").ends == {"<|im_end|>"}


@pytest.mark.parametrize(
    "fields",
    [
        {"additional_special_tokens": ["<new>"]},
        {"extra_special_tokens": ["<new>"]},
        {"extra_special_tokens": {"image_token": "<new>"}},
        {"bos_token": "<new>"},
        {"bos_token": {"content": "<new>", "lstrip": False}},
        {"added_tokens_decoder": {"9": {"content": "<s>"}, "999": {"content": "<new>"}}},
    ],
)
def test_tokens_that_only_the_configuration_lists(folder, fields):
    plain = ids(folder, "<new>")
    assert len(plain) > 1
    config(folder, **fields)
    (made,) = ids(folder, "<new>")
    assert made > max(plain)


def test_special_tokens_may_be_text(folder):
    config(folder, split_special_tokens=True)
    assert len(ids(folder, "<|im_end|>")) > 1
    assert read_folder(folder).vocabulary.cuts == ()


def test_special_tokens_of_an_older_file(folder):
    (folder / "special_tokens_map.json").write_text('{"bos_token": "<s>", "eos_token": "x"}')
    (folder / "chat_template.jinja").write_text("{{ bos_token }}{{ eos_token }}")
    template = read_folder(folder).template
    assert template is not None
    assert template.render(HELLO) == "<s><|im_end|>"


def test_affixes_are_the_tokenizers_not_the_configurations(tmp_path):
    folder = write(tmp_path / "m", split_then_bytes(), add_bos_token=False)
    before, after = read_folder(folder).vocabulary.affixes or (b"", b"?")
    assert (len(before), after) == (4, b"")


def templates(folder, *, jinja=None, sidecar=None, **fields):
    (folder / "chat_template.jinja").unlink()
    if jinja is not None:
        (folder / "chat_template.jinja").write_text(jinja)
    if sidecar is not None:
        (folder / "chat_template.json").write_text(json.dumps({"chat_template": sidecar}))
    config(folder, **fields)


@pytest.mark.parametrize(
    ("given", "rendered"),
    [
        ({"chat_template": "a"}, "a"),
        ({"chat_template": [{"name": "default", "template": "b"}]}, "b"),
        ({"sidecar": "c"}, "c"),
        ({"sidecar": "c", "chat_template": "a"}, "a"),
        ({"jinja": "d", "chat_template": "a", "sidecar": "c"}, "d"),
    ],
)
def test_where_templates_are_found(folder, given, rendered):
    templates(folder, **given)
    template = read_folder(folder).template
    assert template is not None
    assert template.render(HELLO) == rendered


def test_a_further_template_is_for_tools(folder):
    (folder / "additional_chat_templates").mkdir()
    (folder / "additional_chat_templates" / "tool_use.jinja").write_text("tools")
    tools = [{"type": "function", "function": {"name": "f"}}]
    template = read_folder(folder).template
    assert template is not None
    assert template.render(HELLO | {"tools": tools}) == "tools"


def test_a_given_template_goes_first(folder, tmp_path):
    path = tmp_path / "own.jinja"
    path.write_text("{{ x }}")
    template = read_folder(folder, path, {"x": "mine"}).template
    assert template is not None
    assert template.render(HELLO) == "mine"


@pytest.mark.parametrize(
    ("name", "text"),
    [("config.json", '{"model_type": "gpt_oss"}'), ("tekken.json", "{}")],
)
def test_chats_that_vllm_renders_by_code_have_no_template(folder, name, text, tmp_path):
    (folder / name).write_text(text)
    read = read_folder(folder)
    assert read.template is None
    assert "not rendered by a template" in read.missing
    own = tmp_path / "own.jinja"
    own.write_text(CHATML)
    assert read_folder(folder, own).template is not None


def test_no_template(folder):
    templates(folder)
    read = read_folder(folder)
    assert (read.template, read.missing) == (None, "there is no chat template")
    assert read.vocabulary.cuts == ("<|im_end|>",)


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("tokenizer.json", b"{", "tokenizer.json is not a tokenizer"),
        ("tokenizer.json", b'{"model": 1}', "tokenizer.json is not a tokenizer"),
        ("tokenizer_config.json", b"[]", "cannot read tokenizer_config.json"),
        ("tokenizer_config.json", b"{", "cannot read tokenizer_config.json"),
        ("tokenizer_config.json", b"[" * 100_000, "cannot read tokenizer_config.json"),
        ("tokenizer_config.json", b'{"added_tokens_decoder": {"x": {}}}', "tokenizer_config.json"),
        ("tokenizer_config.json", b'{"chat_template": [1]}', "tokenizer_config.json"),
        ("chat_template.jinja", b"{% for", "chat template"),
        ("chat_template.jinja", b"\xff", "cannot read"),
    ],
)
def test_malformed_files_are_config_errors(folder, name, content, words):
    (folder / name).write_bytes(content)
    with pytest.raises(ConfigError, match=words):
        read_folder(folder)


def test_a_folder_that_is_not_there(tmp_path):
    with pytest.raises(ConfigError, match=r"cannot read .*nowhere: No such file"):
        read_folder(tmp_path / "nowhere")
    with pytest.raises(ConfigError, match=r"tokenizer\.json: No such file"):
        read_folder(tmp_path)


def test_ends_of_messages_are_learned_from_the_template(tmp_path):
    text = "{% for m in messages %}<|im_start|>{{ m.role }}{{ m.content }}<s>{% endfor %}"
    read = read_folder(write(tmp_path / "m", byte_level(), text))
    assert read.ends == {"<s>"}
    bare = read_folder(write(tmp_path / "n", byte_level(), "{{ messages[0].content }}"))
    assert bare.ends == frozenset()


@pytest.mark.parametrize(
    ("make", "model", "fields", "changes"),
    [
        (byte_level, "qwen2", {}, True),
        (byte_level, "qwen3", {"tokenizer_class": "Qwen2TokenizerFast"}, True),
        (byte_level, "qwen3", {}, False),
        (prepended, "llama", {"tokenizer_class": "LlamaTokenizerFast"}, True),
        (prepended, "llama", {"tokenizer_class": "LlamaTokenizer", "legacy": True}, False),
        (prepended, "mistral", {"tokenizer_class": "LlamaTokenizer"}, False),
        (prepended, "llama", {}, False),
    ],
)
def test_some_classes_know_better_than_the_file(tmp_path, make, model, fields, changes):
    folder = write(tmp_path / "m", make(), **fields)
    (folder / "config.json").write_text(json.dumps({"model_type": model}))
    text = "boats 1729<|im_end|>boats"
    plain = make().encode(text, add_special_tokens=False).ids
    assert (ids(folder, text) != plain) is changes


@pytest.mark.parametrize(
    ("model", "named", "pieces"),
    [
        ("qwen2", "Qwen2Tokenizer", 2),
        ("qwen3", "Qwen2Tokenizer", 2),
        ("qwen3_5", "Qwen2Tokenizer", 1),
        ("qwen3_5_moe", "TokenizersBackend", 1),
        ("qwen3_5_text", "Qwen3_5Tokenizer", 1),
        ("qwen3_5_text", "Qwen2Tokenizer", 2),
    ],
)
def test_a_word_has_its_marks_since_qwen_3_5(tmp_path, model, named, pieces):
    folder = write(tmp_path / "m", long_words(), tokenizer_class=named)
    (folder / "config.json").write_text(json.dumps({"model_type": model}))
    letter, mark = MARKED[0], MARKED[1]
    apart = ids(folder, letter) + ids(folder, mark)
    whole = long_words().encode(letter + mark, add_special_tokens=False).ids
    assert len(whole) < len(apart)
    assert ids(folder, letter + mark) == (whole if pieces == 1 else apart)
