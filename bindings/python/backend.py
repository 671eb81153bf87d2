"""Builds the wheel: takt with libtakt.so and libtakt_embedded.so inside. A PEP 517 backend that needs nothing but Python.

`python3 backend.py DIRECTORY` does the same from the command line (`make wheel`). The libraries are those in $TAKT_LIBRARIES, else in
target/release; `make build` makes them.
"""

from __future__ import annotations

import base64
import hashlib
import os
import re
import sys
import sysconfig
import zipfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
REPOSITORY = HERE.parent.parent


def version() -> str:
    manifest = (REPOSITORY / "Cargo.toml").read_text()
    found = re.search(r'^version = "([^"]+)"', manifest, re.MULTILINE)
    if not found:
        raise SystemExit("backend.py: Cargo.toml names no version")
    return found[1]


def build_wheel(wheel_directory: str, config_settings: object = None, metadata_directory: object = None) -> str:
    libraries = Path(os.environ.get("TAKT_LIBRARIES", REPOSITORY / "target/release"))
    platform = sysconfig.get_platform().replace("-", "_").replace(".", "_")
    tag = f"py3-none-{platform}"
    info = f"takt-{version()}.dist-info"
    files = {f"takt/{path.name}": path.read_bytes() for path in sorted((HERE / "takt").glob("*")) if path.name.endswith((".py", "py.typed"))}
    for name, inside in (("libtakt.so", "libtakt.so.0"), ("libtakt_embedded.so", "libtakt_embedded.so")):
        library = libraries / name
        if not library.exists():
            raise SystemExit(f"backend.py: {library} is missing: run `make build`, or name another place in TAKT_LIBRARIES")
        files[f"takt/{inside}"] = library.read_bytes()
    files[f"{info}/METADATA"] = (
        f"Metadata-Version: 2.1\nName: takt\nVersion: {version()}\n"
        "Summary: Deterministic, accelerated networking as a service: channels in Python\n"
        "License: Apache-2.0\nRequires-Python: >=3.9\nDescription-Content-Type: text/markdown\n\n"
        + (HERE / "README.md").read_text()
    ).encode()
    files[f"{info}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: takt\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    record = f"{info}/RECORD"
    digest = lambda content: base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    lines = [f"{name},sha256={digest(content)},{len(content)}" for name, content in files.items()]
    files[record] = ("\n".join([*lines, f"{record},,"]) + "\n").encode()
    name = f"takt-{version()}-{tag}.whl"
    with zipfile.ZipFile(Path(wheel_directory) / name, "w", zipfile.ZIP_DEFLATED) as wheel:
        for path, content in files.items():
            # The same bytes from the same files, whenever it is built.
            entry = zipfile.ZipInfo(path, (1980, 1, 1, 0, 0, 0))
            entry.external_attr = 0o644 << 16
            entry.compress_type = zipfile.ZIP_DEFLATED
            wheel.writestr(entry, content)
    return name


if __name__ == "__main__":
    directory = Path(sys.argv[1] if len(sys.argv) > 1 else "dist")
    directory.mkdir(parents=True, exist_ok=True)
    print(directory / build_wheel(str(directory)))
