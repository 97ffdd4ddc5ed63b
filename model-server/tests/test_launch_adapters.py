"""LoRA adapters in step with a file: the launcher, with the simulator as its engine."""

import json

import pytest
from model_server.adapters import Adapter, InvalidAdapters, Load, Unload, Wanted, read, steps

from .launched import SIMULATED, Launched, ask, eventually

SQL, CHAT = Adapter("sql", "hub/sql"), Adapter("chat", "hub/chat")
OTHER = Adapter("sql", "hub/sql-2")


def wanting(*adapters, absent=()):
    return Wanted({each.name: each for each in adapters}, frozenset(absent))


@pytest.mark.parametrize(
    ("wanted", "loaded", "own", "expected"),
    [
        (wanting(), {}, set(), []),
        (wanting(SQL, CHAT), {}, set(), [Load(SQL), Load(CHAT)]),
        (wanting(SQL), {"sql": "hub/sql"}, {"sql"}, []),
        (wanting(OTHER), {"sql": "hub/sql"}, {"sql"}, [Load(OTHER, replace=True)]),
        (wanting(CHAT), {"sql": "hub/sql"}, {"sql"}, [Unload("sql"), Load(CHAT)]),
        (wanting(), {"theirs": "x"}, set(), []),
        (wanting(absent=["theirs"]), {"theirs": "x"}, set(), [Unload("theirs")]),
        (wanting(absent=["gone"]), {}, set(), []),
    ],
)
def test_steps(wanted, loaded, own, expected):
    assert list(steps(wanted, loaded, own)) == expected


SYNCER = """
vLLMLoRAConfig:
  name: any
  host: localhost
  port: 8000
  defaultBaseModel: base
  ensureExist:
    models:
    - {id: sql, source: hub/sql, base-model: base}
  ensureNotExist:
    models:
    - {id: old, source: hub/old}
"""


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", wanting()),
        ("adapters: []", wanting()),
        ("adapters: [{name: sql, path: hub/sql}]", wanting(SQL)),
        ("adapters: [{name: sql, path: hub/sql}, {name: sql, path: hub/sql}]", wanting(SQL)),
        (SYNCER, wanting(SQL, absent=["old"])),
        ("vLLMLoRAConfig: {}", wanting()),
    ],
)
def test_both_forms_are_read(text, expected):
    assert read(text, "base") == expected


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("adapters: {", "not YAML"),
        ("[sql]", "this must be a mapping, such as"),
        ("adapters: [{name: sql}]", "missing required field `path` - at `$.adapters[0]`"),
        ("adapters: [{name: sql, path: 3}]", "Expected `str`, got `int` - at `$.adapters[0].path`"),
        ("adapters: [{name: '', path: x}]", "name and path must not be empty"),
        ("adapters: [{name: a, path: x, rank: 8}]", "unknown field `rank`"),
        ("adapter: []", "unknown field `adapter`"),
        ("adapters: [{name: a, path: x}, {name: a, path: y}]", "a is listed twice"),
        ("adapters: [{name: base, path: x}]", "base is the name of the model itself"),
        ("vLLMLoRAConfig: {ensureExist: {models: [{source: x}]}}", "missing required field `id`"),
        (
            "vLLMLoRAConfig: {ensureExist: &a {models: [{id: a, source: x}]}, ensureNotExist: *a}",
            "a: listed in both ensureExist and ensureNotExist",
        ),
    ],
)
def test_what_makes_no_sense_is_refused_with_its_place(text, says):
    with pytest.raises(InvalidAdapters) as refused:
        read(text, "base")
    assert says in str(refused.value)


@pytest.fixture
def mounted(tmp_path):
    """A folder as Kubernetes mounts a ConfigMap: a link that is turned when its content changes."""

    class Mounted:
        file = tmp_path / "mounted" / "adapters.yaml"
        version = 0

        def write(self, text):
            self.version += 1
            folder = self.file.parent / f"..{self.version}"
            folder.mkdir(parents=True)
            (folder / self.file.name).write_text(text)
            link = self.file.parent / "..new"
            link.symlink_to(folder.name)
            link.replace(self.file.parent / "..data")
            if not self.file.is_symlink():
                self.file.symlink_to(f"..data/{self.file.name}")

        def want(self, **adapters):
            entries = [{"name": name, "path": path} for name, path in adapters.items()]
            self.write(json.dumps({"adapters": entries}))

    return Mounted()


@pytest.fixture
def launch(tmp_path, mounted):
    def start():
        log = tmp_path / "engine.log"
        flags = ["--lora-file", mounted.file, "--max-loras", 4, "--probe-port", 0]
        return Launched(
            SIMULATED, tmp_path / "told", "--served-model-name=base", "--log-file", log, *flags
        )

    return start


def served(port):
    cards = json.loads(ask(port, "/v1/models")[1])["data"]
    return {card["id"]: card["root"] for card in cards if card["parent"]}


def status(line):
    return json.loads(ask(line["probe_port"], "/status")[1])


def test_adapters_come_change_and_go_with_the_file(launch, mounted):
    mounted.want(sql="hub/sql", chat="hub/chat")
    with launch() as launcher:
        line = launcher.listening()
        port = line["port"]
        assert served(port) == {"sql": "hub/sql", "chat": "hub/chat"}
        theirs = {"lora_name": "theirs", "lora_path": "hub/theirs"}
        assert ask(port, "/v1/load_lora_adapter", theirs)[0] == 200
        mounted.want(sql="hub/sql-2", new="hub/new")
        expected = {"sql": "hub/sql-2", "theirs": "hub/theirs", "new": "hub/new"}
        eventually(lambda: served(port) == expected)
        assert (
            ask(port, "/v1/completions", {"model": "new", "prompt": "hi", "max_tokens": 1})[0]
            == 200
        )
        eventually(lambda: set(status(line)["adapters"]) == {"sql", "new"})
        launcher.process.terminate()
        code, _, errors = launcher.end()
    assert code == 0
    for change in ("sql: loaded from hub/sql-2", "chat: unloaded", "new: loaded from hub/new"):
        assert errors.count(f"adapter {change}\n") == 1


def test_an_adapter_that_fails_is_reported_and_tried_again(launch, mounted, tmp_path):
    late = tmp_path / "late"
    mounted.want(sql="hub/sql", late=str(late))
    with launch() as launcher:
        line = launcher.listening()
        assert ask(line["probe_port"], "/ready")[0] == 200
        adapters = status(line)["adapters"]
        assert adapters["sql"] == {"path": "hub/sql", "loaded": True}
        assert adapters["late"]["loaded"] is False
        assert adapters["late"]["tries"] >= 1
        assert "No adapter found" in adapters["late"]["error"]
        late.mkdir()
        eventually(lambda: "late" in served(line["port"]))
        eventually(lambda: status(line)["adapters"]["late"]["loaded"])


def test_a_file_that_breaks_changes_nothing_and_one_that_is_mended_does(launch, mounted):
    mounted.want(sql="hub/sql")
    with launch() as launcher:
        line = launcher.listening()
        mounted.write("adapters: {")
        said = eventually(lambda: status(line).get("adaptersError"))
        assert "not YAML" in said
        assert served(line["port"]) == {"sql": "hub/sql"}
        assert ask(line["probe_port"], "/ready")[0] == 200
        mounted.want()
        eventually(lambda: served(line["port"]) == {})
        eventually(lambda: "adaptersError" not in status(line))


@pytest.mark.parametrize(
    ("text", "says"),
    [
        (None, "No such file"),
        ("adapters: [{name: base, path: x}]", "base is the name of the model itself"),
    ],
)
def test_a_file_that_is_wrong_from_the_start_is_refused_before_anything_loads(
    launch, mounted, tmp_path, text, says
):
    if text is not None:
        mounted.write(text)
    with launch() as launcher:
        code, output, errors = launcher.end()
    assert (code, output) == (2, "")
    assert says in errors
    assert str(mounted.file) in errors
    assert not (tmp_path / "told").exists()
