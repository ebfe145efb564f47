"""Write every reference from the code: `make docs`."""

from __future__ import annotations

from tests.support.reference import REFERENCES, ROOT, rendered

if __name__ == "__main__":
    for name in REFERENCES:
        (ROOT / name).write_text(rendered(name), encoding="utf-8")
