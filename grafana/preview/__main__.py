"""`python -m grafana.preview [ANSWERS.json]`: draw the pictures, from new answers or from those of an earlier call.

Needs the programs of `make stack`, Node 20 and the extras `grafana` and `test`; takes about a minute.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path

from grafana.preview.draw import picture

HERE = Path(__file__).resolve().parent


def main() -> None:
    """Collect, keep the answers where the argument says, draw."""
    kept = Path(sys.argv[1]) if len(sys.argv) > 1 else None
    if kept is not None and kept.exists():
        answers = json.loads(kept.read_text())
    else:
        from grafana.preview.collect import collect

        with tempfile.TemporaryDirectory() as folder:
            answers = json.loads(json.dumps(collect(Path(folder))))
        if kept is not None:
            kept.write_text(json.dumps(answers))
    for name, answered in answers["boards"].items():
        path = HERE / f"otel-smol-{name}.svg"
        path.write_text(picture(answered))
        print(f"{path.name}: {path.stat().st_size:,} bytes")


if __name__ == "__main__":
    main()
