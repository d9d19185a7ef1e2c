"""What the documentation site adds to `pages`: guides, the files that they link to, Mermaid, and the gallery.

The build fails if a public name has no docstring or no place in the reference, if a script of the gallery fails, and,
by `strict`, on a broken link.
"""

from __future__ import annotations

import ast
import importlib
import inspect
import os
import re
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from importlib.metadata import distribution
from pathlib import Path
from posixpath import normpath, relpath
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "deploy" / "docs"
PACKAGES = ("anytime", "anytime_service", "anytime_service.client")

_LINK = re.compile(r"(?<=\]\()([^)\s#:]+)(?=[)#])")
_PICTURES = (".svg", ".png")
_FENCE = "``````"
_UNSEARCHED = "---\nsearch:\n  exclude: true\n---\n"


def undocumented(package: str) -> list[str]:
    """Return the names that a package exports, and their public members from this project, without a docstring."""
    module = importlib.import_module(package)
    return [name for name in module.__all__ for name in _undocumented(name, getattr(module, name))]


def _undocumented(name: str, exported: Any) -> Iterator[str]:
    if callable(exported) and not inspect.getdoc(exported):
        yield name
    yield from (f"{name}.{member}" for member in members(exported) if not inspect.getdoc(getattr(exported, member)))


def members(exported: Any) -> list[str]:
    """Return the public methods and properties of a class that this project defines; none of another object."""
    ours = [base for base in getattr(exported, "__mro__", ()) if base.__module__.startswith("anytime")]
    found = {n for base in ours for n, m in vars(base).items() if inspect.isroutine(m) or isinstance(m, property)}
    return sorted(n for n in found if not n.startswith("_") and not n.endswith("_request"))  # those are scikit-learn's


def not_in_reference(package: str) -> list[str]:
    """Return the names that a package exports and that no page of the reference has."""
    pages = "\n".join(path.read_text(encoding="utf-8") for path in (DOCS / "pages" / "reference").glob("*.md"))
    shown = set(re.findall(r"^::: (\S+)$", pages, flags=re.MULTILINE))
    return [name for name in importlib.import_module(package).__all__ if f"{package}.{name}" not in shown]


def on_config(config: MkDocsConfig) -> None:
    """Check the public names, and let Mermaid and the anchors be as the guides expect them."""
    from mkdocs.exceptions import PluginError  # noqa: PLC0415  (tests import this module without the site's packages)
    from pymdownx.slugs import slugify  # noqa: PLC0415
    from pymdownx.superfences import fence_code_format  # noqa: PLC0415

    for package in PACKAGES:
        if missing := undocumented(package):
            raise PluginError(f"{package}: no docstring of {', '.join(missing)}; write one")
        if missing := not_in_reference(package):
            raise PluginError(f"{package}: no page of deploy/docs/pages/reference has {', '.join(missing)}; add them")
    mermaid = {"name": "mermaid", "class": "mermaid", "format": fence_code_format}
    config.mdx_configs["pymdownx.superfences"] = {"custom_fences": [mermaid]}
    config.mdx_configs["toc"] |= {"slugify": slugify(case="lower")}


def on_files(files: Files, *, config: MkDocsConfig) -> None:
    """Add the guides of the navigation, all that they link to, the gallery, and Mermaid."""
    from mkdocs.structure.files import File  # noqa: PLC0415

    def add(path: str, content: str | bytes) -> None:
        if path not in files.src_uris:
            files.append(File.generated(config, path, content=content))

    scripts = sorted((DOCS / "gallery").glob("*.py"))
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        for script, (page, plot) in zip(scripts, pool.map(gallery_page, scripts), strict=True):
            add(f"gallery/{script.stem}.md", page)
            add(f"gallery/{script.stem}.svg", plot)
    mermaid = distribution("mmdc").locate_file("mmdc/assets/mermaid.js")  # npm's mermaid.min.js; nothing is imported
    add("assets/mermaid.js", Path(str(mermaid)).read_bytes())
    guides = [path for path in _paths(config.nav) if path not in files.src_uris]
    for guide in guides:
        text = (ROOT / guide).read_text(encoding="utf-8")
        add(guide, text)
        for target in linked(guide, text):
            _add_source(target, add)


def _paths(nav: Any) -> list[str]:
    """Return the pages of a navigation, in order."""
    if isinstance(nav, str):
        return [nav]
    return [path for item in (nav.values() if isinstance(nav, dict) else nav) for path in _paths(item)]


def linked(page: str, text: str) -> list[Path]:
    """Return the files and folders of the project that a page links to, apart from pages."""
    targets = [ROOT / normpath(f"{Path(page).parent}/{link}") for link in _LINK.findall(text)]
    return [target for target in targets if target.exists() and target.suffix != ".md"]


def _add_source(target: Path, add: Callable[[str, str | bytes], None]) -> None:
    """Add a picture as it is, a file of text as a page, and a folder as a list of such files."""
    path = target.relative_to(ROOT).as_posix()
    if target.suffix in _PICTURES:
        add(path, target.read_bytes())
    elif target.is_file() and _is_text(target):
        from pygments.lexers import guess_lexer_for_filename  # noqa: PLC0415
        from pygments.util import ClassNotFound  # noqa: PLC0415

        text = target.read_text(encoding="utf-8")
        try:
            language = guess_lexer_for_filename(target.name, text).aliases[0]
        except (ClassNotFound, IndexError):
            language = "text"
        add(f"{path}.md", f"{_UNSEARCHED}# {target.name}\n\n`{path}`\n\n{_FENCE}{language}\n{text}\n{_FENCE}\n")
    elif target.is_dir() and not (target / "__init__.py").is_file():
        found = (p for p in target.rglob("*") if p.is_file() and "__pycache__" not in p.parts)
        inside = sorted(p for p in found if p.suffix in _PICTURES or _is_text(p))
        names = {p: p.relative_to(target).as_posix() for p in inside}
        links = [f"- [{name}]({name}{'' if p.suffix in _PICTURES else '.md'})" for p, name in names.items()]
        add(f"{path}/index.md", f"{_UNSEARCHED}# {path}\n\n" + "\n".join(links) + "\n")
        for each in inside:
            _add_source(each, add)


def _is_text(path: Path) -> bool:
    try:
        path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        return False
    return True


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:  # noqa: ARG001
    """Lead links to files and folders to the pages that show them."""
    here = Path(page.file.src_uri).parent.as_posix()

    def shown(found: re.Match[str]) -> str:
        path = normpath(f"{here}/{found[0]}")
        if path in files.src_uris or not (ROOT / path).exists():
            return found[0]
        package = (ROOT / path / "__init__.py").is_file()
        to = ["reference/index.md"] if package else [f"{path}.md", f"{path}/index.md"]
        return next((relpath(each, here) for each in to if each in files.src_uris), found[0])

    return _LINK.sub(shown, markdown)


def gallery_page(script: Path) -> tuple[str, bytes]:
    """Run a script; return its page (its docstring, its plot, its code and what it prints) and its plot."""
    from mkdocs.exceptions import PluginError  # noqa: PLC0415

    code = script.read_text(encoding="utf-8")
    doc = ast.parse(code).body[0]
    title, _, intro = inspect.cleandoc(ast.literal_eval(doc.value) if isinstance(doc, ast.Expr) else "").partition(
        ".\n"
    )
    program = "\n".join(code.splitlines()[doc.end_lineno :]).strip()
    paths = os.pathsep.join([str(ROOT / "models"), str(ROOT / "service")])
    environment = os.environ | {"MPLBACKEND": "svg", "MATPLOTLIBRC": str(DOCS / "matplotlibrc"), "PYTHONPATH": paths}
    with tempfile.TemporaryDirectory() as folder:
        done = subprocess.run(  # noqa: S603  (a script of this project)
            [sys.executable, str(script)], cwd=folder, env=environment, capture_output=True, text=True, check=False
        )
        if done.returncode:
            raise PluginError(f"{script.relative_to(ROOT)} failed:\n{done.stderr}")
        plot = (Path(folder) / f"{script.stem}.svg").read_bytes()
    return (
        f"# {title}\n{intro}\n\n![{title}]({script.stem}.svg)\n\nIt prints:\n\n{_FENCE}text\n{done.stdout}{_FENCE}\n\n"
        f"## The script\n\n`python {script.relative_to(ROOT).as_posix()}`\n\n{_FENCE}python\n{program}\n{_FENCE}\n",
        plot,
    )
