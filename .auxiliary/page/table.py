"""Write the table of the page's bundles: packages, versions, licenses, and hashes."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

HERE = Path(__file__).parent
VENDOR = HERE / "../../sources/vibe_llms/page/vendor"
#: The packages in each bundle.
BUNDLES = {
    "ui.js": ["preact", "htm", "@preact/signals", "@preact/signals-core"],
    "md.js": ["marked"],
    "prism.js": ["prismjs"],
    "math.js": ["temml"],
}
_HEAD = """# Bundles of other packages

`.auxiliary/page/bundle` makes these files and this table. A test compares the hashes. The licenses
are in [LICENSES.txt](LICENSES.txt).

| file | packages and licenses | SHA-256 |
| --- | --- | --- |
"""


def main() -> None:
    """Write the table and the licenses."""
    table, licenses = _HEAD, []
    for name, packages in BUNDLES.items():
        parts = []
        for package in packages:
            folder = HERE / "node_modules" / package
            about = json.loads((folder / "package.json").read_text())
            parts.append(f"{package} {about['version']} ({about['license']})")
            [text] = [one for one in folder.iterdir() if one.name.upper().startswith("LICENSE")]
            licenses.append(f"{package} {about['version']}\n\n{text.read_text().strip()}\n")
        digest = hashlib.sha256((VENDOR / name).read_bytes()).hexdigest()
        table += f"| `{name}` | {', '.join(parts)} | `{digest}` |\n"
    (VENDOR / "README.md").write_text(table)
    (VENDOR / "LICENSES.txt").write_text("\n\n".join(licenses))


if __name__ == "__main__":
    main()
