"""`python -m grafana.build [--check]`: write the dashboards, or say which of them are out of date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana.build import operations, overview, run
from grafana.build.ask import Ask

HERE = Path(__file__).resolve().parent.parent
FOLDERS = {"dashboards": Ask(), "dashboards-portable": Ask(resets=False)}
"""As in compose.yaml, and for Prometheus before 3.16 and other backends that speak PromQL."""


def files() -> dict[Path, str]:
    """Every file and what should be in it."""
    found: dict[Path, str] = {}
    for folder, ask in FOLDERS.items():
        boards = {"overview": overview.build(ask), "run": run.build(), "ops": operations.build(ask)}
        for name, board in boards.items():
            text = json.dumps(board, cls=JSONEncoder, indent=2, ensure_ascii=False)
            found[HERE / folder / f"otel-smol-{name}.json"] = text + "\n"
    return found


def main() -> int:
    """Write them, or with `--check` only compare."""
    changed = [path for path, text in files().items() if not path.exists() or path.read_text() != text]
    for path in changed:
        print(("differs: " if "--check" in sys.argv else "wrote: ") + str(path.relative_to(HERE.parent)))
        if "--check" not in sys.argv:
            path.parent.mkdir(exist_ok=True)
            path.write_text(files()[path])
    return int("--check" in sys.argv and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
