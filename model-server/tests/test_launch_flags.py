import json
import socket

import pytest
from model_server.engine import address_of, reserve_port
from model_server.flags import environment, serve_arguments
from model_server.launch import parse
from model_server.settings import Settings

CPU = Settings(model="m", served_model_name="m", device="cpu", port=1, block_size=32)
GPU = Settings(model="m", served_model_name="m", device="gpu", port=1)


def pairs(arguments):
    return dict(zip(arguments, [*arguments[1:], ""], strict=True))


def test_what_an_epp_needs_is_always_on():
    for settings in (CPU, GPU):
        arguments = serve_arguments(settings)
        assert {"--enable-prefix-caching", "--enable-prompt-tokens-details"} <= set(arguments)
        assert pairs(arguments)["--prefix-caching-hash-algo"] == "sha256"


def test_cpu_differs_from_gpu():
    assert "--enforce-eager" in serve_arguments(CPU)
    assert "--enforce-eager" not in serve_arguments(GPU)
    assert environment(CPU)["VLLM_CPU_OMP_THREADS_BIND"] == "nobind"
    assert environment(CPU)["OMP_NUM_THREADS"] == "1"
    assert "OMP_NUM_THREADS" not in environment(GPU)


def test_who_binds_threads_to_cores_is_obeyed():
    given = environment(CPU, {"VLLM_CPU_OMP_THREADS_BIND": "0-31"})
    assert "VLLM_CPU_OMP_THREADS_BIND" not in given


def test_an_unset_value_is_left_to_vllm():
    arguments = serve_arguments(GPU)
    assert not {"--block-size", "--kv-cache-memory-bytes", "--max-model-len"} & set(arguments)


def test_extra_arguments_come_last_so_that_they_win():
    launch = parse(["m", "--max-num-seqs", "4", "--", "--max-num-seqs", "8", "--seed", "1"])
    assert serve_arguments(launch.settings)[-4:] == ["--max-num-seqs", "8", "--seed", "1"]


def test_kv_events_are_published_where_a_picker_looks_for_them():
    assert "--kv-events-config" not in serve_arguments(parse(["m"]).settings)
    flags = ["--kv-events-port", "5557", "--kv-replay-port", "5558", "--pod-name", "pod-3"]
    for replay in (True, False):
        settings = parse(["hub/model", *(flags if replay else flags[:2] + flags[4:])]).settings
        config = json.loads(pairs(serve_arguments(settings))["--kv-events-config"])
        expected = {
            "enable_kv_cache_events": True,
            "publisher": "zmq",
            "endpoint": "tcp://*:5557",
            "topic": "kv@pod-3@hub/model",
        }
        assert config == expected | ({"replay_endpoint": "tcp://*:5558"} if replay else {})


def test_defaults_of_the_command_line():
    on_cpu = parse(["hub/some-model", "--device", "cpu"]).settings
    on_gpu = parse(["hub/some-model", "--device", "gpu"]).settings
    assert (on_cpu.block_size, on_cpu.kv_cache_bytes) == (32, 256 << 20)
    assert (on_gpu.block_size, on_gpu.kv_cache_bytes) == (None, None)
    assert on_cpu.served_model_name == "hub/some-model"
    assert not on_cpu.offline
    for folder in ("/models/some-model/", "./some-model"):
        assert parse([folder, "--device", "cpu"]).settings.served_model_name == "some-model"


def test_a_local_model_never_asks_a_hub(tmp_path):
    settings = parse([str(tmp_path), "--device", "cpu"]).settings
    assert environment(settings)["HF_HUB_OFFLINE"] == "1"
    assert "HF_HUB_OFFLINE" not in environment(CPU)


@pytest.mark.parametrize(
    ("text", "size"),
    [("7", 7), ("64K", 64 << 10), ("512M", 512 << 20), ("2GiB", 2 << 30), ("2gb", 2 << 30)],
)
def test_sizes(text, size):
    assert parse(["m", "--kv-cache-bytes", text]).settings.kv_cache_bytes == size


@pytest.mark.parametrize(
    ("arguments", "says"),
    [
        (["--device", "cpu", "--block-size", "16"], "multiple of 32"),
        (["--device", "cpu", "--block-size", "-32"], "positive"),
        (["--kv-cache-bytes", "lots"], "not a size"),
        (["--kv-cache-bytes", "0"], "positive"),
        (["--drain-seconds", "-1"], "0 or more"),
        (["--kv-events-port", "0"], "positive"),
        (
            ["--device", "cpu", "--num-gpu-blocks", "128", "--max-model-len", "4096"],
            "needs 129, including the null block",
        ),
    ],
)
def test_what_vllm_would_refuse_late_is_refused_at_once(arguments, says, capsys):
    with pytest.raises(SystemExit) as exit_:
        parse(["m", *arguments])
    assert exit_.value.code == 2
    assert says in capsys.readouterr().err


def test_one_block_more_is_enough():
    options = ["--device", "cpu", "--num-gpu-blocks", "129", "--max-model-len", "4096"]
    assert parse(["m", *options]).settings.num_gpu_blocks == 129


def test_a_reserved_port_is_free_for_the_engine_and_nobody_is_given_it():
    with reserve_port("127.0.0.1", 0) as reserved:
        port = reserved.getsockname()[1]
        with socket.socket() as engine, socket.socket() as other:
            engine.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            engine.bind(("127.0.0.1", port))
            engine.listen()
            with pytest.raises(OSError, match="in use"):
                other.bind(("127.0.0.1", port))
            with pytest.raises(OSError, match="in use"):
                reserve_port("127.0.0.1", port)


@pytest.mark.parametrize(
    ("host", "address"),
    [
        ("10.0.0.1", "10.0.0.1:80"),
        ("::2", "[::2]:80"),
        ("0.0.0.0", "127.0.0.1:80"),  # noqa: S104 - nothing is bound
        ("::", "[::1]:80"),
    ],
)
def test_addresses(host, address):
    assert address_of(host, 80) == address
