#!/usr/bin/env python3
"""Makes a site with search out of README.md and docs/, and checks every link in it.

The pages are copied; links to files of the repository that are no pages lead to the repository. MkDocs does the rest, and refuses
links that lead nowhere; the pages that come of it are then looked through once more, anchors included.

Usage: scripts/site.py SOURCES PAGES      both are made anew; needs mkdocs (`make site` installs it)
"""

from __future__ import annotations

import html.parser
import json
import re
import shutil
import subprocess
import sys
import urllib.parse
from pathlib import Path

TOP = Path(__file__).resolve().parents[1]
REPOSITORY = re.search(r'^repository = "(.*)"', (TOP / "Cargo.toml").read_text(), re.M)[1]
SECTIONS = [("Concepts", "concepts"), ("How to", "how-to"), ("Reference", "reference"), ("Decisions", "decisions")]


def title(page: Path) -> str:
    """The first heading of a page."""
    return re.search(r"^# (.*)", page.read_text(), re.M)[1].replace("`", "")


def copied(page: Path, place: Path, places: dict[Path, Path]) -> str:
    """The text of a page at its place on the site, with links that hold there."""

    def link(found: re.Match[str]) -> str:
        target, _, anchor = found[2].partition("#")
        if not target or re.match(r"[a-z]+:", target):
            return found[0]
        there = (page.parent / target).resolve()
        if there.is_dir() and there / "README.md" in places:
            there = there / "README.md"
        anchor = f"#{anchor}" if anchor else ""
        if there in places:
            up = Path(*[".."] * (len(place.parts) - 1))
            return f"{found[1]}({up / places[there]}{anchor})"
        if not there.exists():
            sys.exit(f"FAILED: {page.relative_to(TOP)}: {found[2]} leads nowhere")
        kind = "tree" if there.is_dir() else "blob"
        return f"{found[1]}({REPOSITORY}/{kind}/main/{there.relative_to(TOP)}{anchor})"

    parts = re.split(r"(```.*?```|`[^`\n]*`)", page.read_text(), flags=re.S)
    for at in range(0, len(parts), 2):
        # What tells a test what to do with a block is not for readers.
        parts[at] = re.sub(r"^ *<!-- .*? -->\n", "", parts[at], flags=re.M)
    text = "".join(parts)
    # A link's text may have code in it, so whole pages are looked through, fenced blocks left out.
    parts = re.split(r"(^```.*?^```)", text, flags=re.S | re.M)
    for at in range(0, len(parts), 2):
        parts[at] = re.sub(r"(\[[^\]]*\])\(([^)\s]+)\)", link, parts[at])
    return "".join(parts)


class Page(html.parser.HTMLParser):
    """The links and anchors of a page of the site."""

    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []
        self.anchors: set[str] = set()

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        for name, value in attributes:
            if value and name in ("href", "src"):
                self.links.append(value)
            elif value and name in ("id", "name"):
                self.anchors.add(value)


def dead(pages: Path) -> list[str]:
    """Links of the site that lead nowhere."""
    read = {}
    for path in pages.rglob("*.html"):
        read[path] = Page()
        read[path].feed(path.read_text())
    found = []
    for path, page in read.items():
        if path.name == "404.html":
            continue  # its links begin at the root of wherever the site will be
        for link in page.links:
            if re.match(r"[a-z]+:|//", link):
                continue
            target, _, anchor = urllib.parse.unquote(link).partition("#")
            there = (path.parent / target).resolve() if target else path
            if there.is_dir():
                there = there / "index.html"
            if not there.exists():
                found.append(f"{path.relative_to(pages)}: {link} leads nowhere")
            elif anchor and there in read and anchor not in read[there].anchors:
                found.append(f"{path.relative_to(pages)}: {link} leads to no heading")
    return found


def main(sources: Path, pages: Path) -> None:
    for directory in (sources, pages):
        shutil.rmtree(directory, ignore_errors=True)
    places = {TOP / "README.md": Path("index.md"), TOP / "examples/README.md": Path("examples.md")}
    for page in sorted((TOP / "docs").rglob("*.md")):
        place = page.relative_to(TOP / "docs")
        places[page] = Path("contents.md") if place == Path("README.md") else place
    for image in (TOP / "docs").rglob("*.svg"):
        places[image] = image.relative_to(TOP / "docs")
    for page, place in places.items():
        to = sources / "docs" / place
        to.parent.mkdir(parents=True, exist_ok=True)
        if page.suffix == ".md":
            to.write_text(copied(page, place, places))
        else:
            shutil.copyfile(page, to)

    def nav(pages: list[Path]) -> list[dict[str, str]]:
        return [{title(page): str(places[page])} for page in pages]

    contents: list[dict[str, object]] = [{"Takt": "index.md"}, {"Contents": "contents.md"}]
    for name, directory in SECTIONS:
        inside = sorted((page for page in places if page.parent == TOP / "docs" / directory), key=lambda page: page.name)
        contents.append({name: nav([page for page in inside if page.suffix == ".md"])})
    contents[3]["How to"].insert(0, {"Examples": "examples.md"})
    rest = [page for page in places if page.parent == TOP / "docs" and page.suffix == ".md" and page.name != "README.md"]
    contents += nav(sorted(rest))
    settings = {
        "site_name": "Takt",
        "repo_url": REPOSITORY,
        "edit_uri": "",
        "docs_dir": "docs",
        "site_dir": str(pages.resolve()),
        # Pages can be read from the file system, without a server.
        "use_directory_urls": False,
        "theme": {"name": "readthedocs", "highlightjs": False, "analytics": {"gtag": None}},
        "plugins": ["search"],
        "markdown_extensions": ["tables", "fenced_code", {"toc": {"permalink": True}}],
        "validation": {"nav": {"omitted_files": "warn"}, "links": {"anchors": "warn", "not_found": "warn"}},
        "nav": contents,
    }
    # JSON is YAML.
    (sources / "mkdocs.yml").write_text(json.dumps(settings, indent=1))
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--strict", "--config-file", str(sources / "mkdocs.yml")]
    if subprocess.run(command).returncode != 0:
        sys.exit("FAILED: mkdocs: see above")
    index = json.loads((pages / "search/search_index.json").read_text())
    if not any("preload" in entry["text"] for entry in index["docs"]):
        sys.exit("FAILED: the search finds nothing")
    if found := dead(pages):
        sys.exit("FAILED: " + "\n".join(found))
    print(f"site: {len(list(pages.rglob('*.html')))} pages in {pages}, no dead links, {len(index['docs'])} sections to search")


if __name__ == "__main__":
    if len(sys.argv) != 3:
        sys.exit(__doc__)
    main(Path(sys.argv[1]), Path(sys.argv[2]))
