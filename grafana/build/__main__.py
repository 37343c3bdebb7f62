"""`python -m grafana.build [--check]`: write the dashboards, or say which of them are out of date."""

from __future__ import annotations

import json
import sys
from pathlib import Path

from grafana_foundation_sdk.cog.encoder import JSONEncoder

from grafana.build import operations, overview, run
from grafana.build.ask import Ask
from grafana.traceql import BY_DEFAULT, SPANS_PER_TRACE

HERE = Path(__file__).resolve().parent.parent
FOLDERS = {
    "dashboards": (Ask(), SPANS_PER_TRACE),
    "dashboards-portable": (Ask(resets=False), BY_DEFAULT),
}
"""For compose.yaml; and for what others have: Prometheus before 3.16, other PromQL, Tempo as it comes."""


def files() -> dict[Path, str]:
    """Every file and what should be in it."""
    found: dict[Path, str] = {}
    for folder, (ask, spans) in FOLDERS.items():
        boards = {"overview": overview.build(ask), "run": run.build(spans), "ops": operations.build(ask)}
        for name, board in boards.items():
            text = json.dumps(board, cls=JSONEncoder, indent=2, ensure_ascii=False)
            found[HERE / folder / f"otel-smol-{name}.json"] = text + "\n"
    return found


def main() -> int:
    """Write them, or with `--check` only compare."""
    only_check = "--check" in sys.argv
    changed = {path: text for path, text in files().items() if not path.exists() or path.read_text() != text}
    for path, text in changed.items():
        print("differs:" if only_check else "wrote:", path.relative_to(HERE.parent))
        if not only_check:
            path.parent.mkdir(exist_ok=True)
            path.write_text(text)
    return int(only_check and bool(changed))


if __name__ == "__main__":
    sys.exit(main())
