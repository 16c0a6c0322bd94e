"""Rules of the source code: layers, light imports, no pickle, explicit encodings, the register of test ids."""

from __future__ import annotations

import ast
import importlib
import re
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path

import pytest

import mingyue

SOURCE = Path(mingyue.__file__).parent
MOST_LINES = 380

# A package imports only packages of lower layers; packages of one layer are independent, except for NEIGHBOURS.
LAYERS = (
    {"errors", "lazy", "printable", "words"},
    {"files", "paths", "parsing", "runtime", "config", "interrupts", "reprs"},
    {"nn", "text"},
    {"models", "data"},
    {"bundle", "graphs"},
    {"training", "generation", "interop"},
    {"scoring", "charts", "display"},
    {"inspection"},
    {"diagnostics"},
    {"runs"},
    {"api"},
    {"claims"},
    {"serve"},
    {"cli"},
)
NEIGHBOURS = {
    ("errors", "printable"),
    ("errors", "words"),
    ("printable", "words"),
    ("words", "errors"),
    ("config", "files"),
    ("config", "paths"),
    ("paths", "files"),
    ("runtime", "config"),
    ("runtime", "files"),
}
FORBIDDEN = {("training", "generation"), ("training", "scoring"), ("training", "inspection"), ("data", "models")}
NO_TORCH_AT_TOP = (
    "__init__",
    "__main__",
    "errors",
    "printable",
    "words",
    "files",
    "parsing",
    "config",
    "runtime",
    "cli",
    "diagnostics",
)


def layer(part: str) -> int:
    for height, parts in enumerate(LAYERS):
        if part in parts:
            return height
    raise AssertionError(
        f"mingyue.{part} has no layer: add it to LAYERS in tests/test_architecture.py and to docs/architecture.md"
    )


def modules() -> list[Path]:
    return sorted(SOURCE.rglob("*.py"))


def part_of(path: Path) -> str:
    return path.relative_to(SOURCE).parts[0].removesuffix(".py")


def where(path: Path, node: ast.AST) -> str:
    return f"{path.relative_to(SOURCE.parent)}:{getattr(node, 'lineno', 0)}"


def tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text(encoding="utf-8"), filename=str(path))


def imported(node: ast.AST, path: Path) -> Iterator[str]:
    """Full names of the modules that an import statement brings in."""
    if isinstance(node, ast.Import):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.ImportFrom):
        base = node.module or ""
        if node.level:
            package = (*path.relative_to(SOURCE.parent).parent.parts,)
            base = ".".join([*package[: len(package) - node.level + 1], *([base] if base else [])])
        yield base
        yield from (f"{base}.{alias.name}" for alias in node.names)


def at_top(module: ast.Module) -> Iterator[ast.stmt]:
    """Statements that run when the module is imported (not those under TYPE_CHECKING, nor inside functions)."""
    waiting: list[ast.stmt] = list(module.body)
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        yield node
        for field in ("body", "orelse", "finalbody", "handlers"):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                waiting += getattr(node, field, [])


def without_annotation_imports(module: ast.Module) -> Iterator[ast.AST]:
    """Every node, but for what stands under `if TYPE_CHECKING`."""
    waiting: list[ast.AST] = [module]
    while waiting:
        node = waiting.pop()
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            waiting += node.orelse
            continue
        yield node
        waiting += ast.iter_child_nodes(node)


def calls(path: Path) -> Iterator[tuple[ast.Call, str]]:
    for node in ast.walk(tree(path)):
        if isinstance(node, ast.Call):
            yield node, ast.unparse(node.func)


@pytest.mark.parametrize("package", ["api", "generation", "graphs", "models", "runs", "training"])
def test_every_name_of_a_package_is_found_and_is_no_module(package):
    """A lazy name that a module of the package has too would be the module, once that is imported."""
    found = importlib.import_module(f"mingyue.{package}")
    for path in (SOURCE / package).glob("*.py"):
        importlib.import_module(f"mingyue.{package}.{path.stem}")
    modules_of_it = [name for name in found.__all__ if isinstance(getattr(found, name), types.ModuleType)]
    assert modules_of_it == []


def test_packages_import_only_packages_of_lower_layers():
    wrong = []
    for path in modules():
        part = part_of(path)
        if part in ("__init__", "__main__"):
            continue
        for node in ast.walk(tree(path)):
            for name in imported(node, path):
                pieces = name.split(".")
                if pieces[0] != "mingyue" or len(pieces) < 2 or pieces[1] in (part, "__version__"):
                    continue
                other = pieces[1]
                allowed = layer(other) < layer(part) or (part, other) in NEIGHBOURS
                if not allowed or (part, other) in FORBIDDEN:
                    wrong.append(f"{where(path, node)} imports mingyue.{other}")
    assert not wrong, "\n".join(sorted(set(wrong)))


def test_one_reader_of_json_and_toml():
    """Bounds on size, depth and integers hold for every file: data of users, messages and our dictionary are none."""
    allowed = {SOURCE / name for name in ("parsing.py", "words.py", "data/formats.py", "training/distributed.py")}
    readers = ("json.load", "json.loads", "tomllib.load", "tomllib.loads")
    wrong = [
        where(path, node) for path in modules() if path not in allowed for node, name in calls(path) if name in readers
    ]
    assert wrong == []


def test_the_command_line_reaches_models_only_through_api():
    """Imports for annotations alone do not count; the data verb needs no model, so it goes to `data` itself.

    `claims` is in a layer above `api`, so the command line imports it directly.
    """
    allowed = {
        "api",
        "claims",
        "cli",
        "config",
        "data",
        "display",
        "errors",
        "files",
        "interrupts",
        "parsing",
        "paths",
        "printable",
        "runtime",
        "serve",
        "words",
        "__version__",
    }
    wrong = []
    for path in (SOURCE / "cli").rglob("*.py"):
        for node in without_annotation_imports(tree(path)):
            for name in imported(node, path):
                pieces = name.split(".")
                if pieces[0] == "mingyue" and len(pieces) > 1 and pieces[1] not in allowed:
                    wrong.append(f"{where(path, node)} imports {name}")
    assert not wrong, "\n".join(wrong)


def test_light_parts_import_nothing_heavy_when_they_are_imported():
    heavy = {"torch", "numpy", "transformers", "tokenizers", "safetensors", "pyarrow"}
    wrong = [
        f"{where(path, node)} imports {name}"
        for path in modules()
        if part_of(path) in NO_TORCH_AT_TOP
        for node in at_top(tree(path))
        for name in imported(node, path)
        if name.split(".")[0] in heavy
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "module", ["mingyue", "mingyue.errors", "mingyue.config", "mingyue.runtime", "mingyue.cli.app"]
)
def test_importing_a_light_module_loads_no_torch(module):
    code = f"import sys, {module}; print([m for m in ('torch', 'numpy', 'tokenizers') if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert found.stdout.strip() == "[]"


def test_reading_text_loads_no_torch():
    code = "import sys, mingyue.text, mingyue.data; print('torch' in sys.modules)"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, encoding="utf-8")
    assert found.stdout.strip() == "False"


def test_no_module_is_too_long_to_read_in_one_sitting():
    lengths = {path: len(path.read_text(encoding="utf-8").splitlines()) for path in modules()}
    assert not {str(path.relative_to(SOURCE)): lines for path, lines in lengths.items() if lines > MOST_LINES}


def test_only_the_command_line_writes_to_the_screen():
    banned = {"print", "sys.stdout.write", "sys.stderr.write", "pprint", "pprint.pprint"}
    wrong = [
        f"{where(path, node)} calls {name}"
        for path in modules()
        if part_of(path) != "cli"
        for node, name in calls(path)
        if name in banned
    ]
    assert not wrong, "\n".join(wrong)


def test_nothing_is_pickled_or_evaluated():
    banned_modules = {"pickle", "cPickle", "dill", "joblib", "marshal", "shelve", "cloudpickle"}
    banned_calls = {"torch.load", "torch.save", "eval", "exec", "torch.jit.load", "torch.package.PackageImporter"}
    wrong = []
    for path in modules():
        for node in ast.walk(tree(path)):
            wrong += [f"{where(path, node)} imports {name}" for name in imported(node, path) if name in banned_modules]
        wrong += [f"{where(path, node)} calls {name}" for node, name in calls(path) if name in banned_calls]
        wrong += [
            f"{where(path, node)} lets numpy unpickle"
            for node, _ in calls(path)
            if any(word.arg == "allow_pickle" and ast.unparse(word.value) != "False" for word in node.keywords)
        ]
    assert not wrong, "\n".join(wrong)


def opens_text_without_encoding(node: ast.Call, name: str) -> bool:
    words = {word.arg: word.value for word in node.keywords}
    if None in words or "encoding" in words:
        return False
    method = name.rsplit(".", 1)[-1]
    if method == "read_text":
        return not node.args
    if method == "write_text":
        return len(node.args) < 2
    if name in ("open", "io.open", "gzip.open", "bz2.open", "lzma.open") or method == "open":
        place = 1 if name in ("open", "io.open", "gzip.open", "bz2.open", "lzma.open") else 0
        mode = words.get("mode", node.args[place] if len(node.args) > place else None)
        binary_by_default = name in ("gzip.open", "bz2.open", "lzma.open")
        if mode is None:
            return not binary_by_default and name not in ("os.open", "webbrowser.open", "tarfile.open")
        text = isinstance(mode, ast.Constant) and isinstance(mode.value, str) and "b" not in mode.value
        return text and name not in ("os.open", "tarfile.open", "zipfile.open")
    if method in ("run", "Popen", "check_output") and name.startswith("subprocess."):
        return any(word in words for word in ("text", "universal_newlines"))
    return False


def test_text_files_are_never_opened_in_the_encoding_of_the_platform():
    """D5: a platform whose default code page is not UTF-8 reads and writes the same characters."""
    wrong = [
        f"{where(path, node)}: {ast.unparse(node)[:80]}"
        for path in modules()
        for node, name in calls(path)
        if opens_text_without_encoding(node, name)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("code", "bad"),
    [
        ("open('x')", True),
        ("open('x', 'w')", True),
        ("open('x', 'rb')", False),
        ("open('x', encoding='utf-8')", False),
        ("path.open()", True),
        ("path.open('wb')", False),
        ("path.open('w', encoding='utf-8')", False),
        ("path.read_text()", True),
        ("path.read_text('utf-8')", False),
        ("path.write_text(text)", True),
        ("path.write_text(text, encoding='utf-8')", False),
        ("gzip.open('x')", False),
        ("gzip.open('x', 'rt')", True),
        ("subprocess.run(['x'], text=True)", True),
        ("subprocess.run(['x'])", False),
        ("os.open('x', os.O_RDONLY)", False),
    ],
)
def test_the_search_for_missing_encodings_finds_them(code, bad):
    node = ast.parse(code, mode="eval").body
    assert isinstance(node, ast.Call)
    assert opens_text_without_encoding(node, ast.unparse(node.func)) is bad


def test_every_module_says_what_it_is_for():
    assert not [str(path.relative_to(SOURCE)) for path in modules() if not ast.get_docstring(tree(path))]


def test_the_settings_reference_is_the_one_that_the_code_gives():
    from mingyue.cli.help import localized_help
    from mingyue.config.reference import reference

    docs = SOURCE.parents[1] / "docs"
    assert (docs / "settings.md").read_text(encoding="utf-8") == reference(), "run `make docs`"
    assert (docs / "settings.zh.md").read_text(encoding="utf-8") == reference("zh", localized_help), "run `make docs`"


def test_the_register_lists_exactly_the_ids_of_the_tests():
    tests = Path(__file__).parent
    used: set[str] = set()
    for path in tests.rglob("test_*.py"):
        for node in ast.walk(tree(path)):
            if isinstance(node, ast.FunctionDef) and node.name.startswith("test_"):
                opening = re.match(r"[ADNSTV]\d+\b[^.:]*", ast.get_docstring(node) or "")
                used.update(re.findall(r"\b[ADNSTV]\d+\b", opening[0]) if opening else ())
    listed = re.findall(r"^\| ([A-Z]\d+) \|", (tests / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    assert len(listed) == len(set(listed)) and set(listed) == used
