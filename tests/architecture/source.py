"""The product's source as syntax trees."""

import ast
from functools import cache
from pathlib import Path

__all__ = ["FILES", "ROOT", "functions", "imported", "module_name", "tree"]

ROOT = Path(__file__).parents[2] / "src"
FILES = sorted((ROOT / "iddpm").rglob("*.py"))


def module_name(file: Path) -> str:
    """The name a file is imported by."""
    parts = file.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


@cache
def tree(file: Path) -> ast.Module:
    """A file's syntax tree."""
    return ast.parse(file.read_text(encoding="utf-8"))


def functions(file: Path) -> list[ast.FunctionDef | ast.AsyncFunctionDef]:
    """All functions and methods of a file."""
    return [node for node in ast.walk(tree(file)) if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)]


@cache
def imported(file: Path) -> set[str]:
    """Full names of the modules that a file imports, anywhere in it."""
    names = set()
    for node in ast.walk(tree(file)):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{file}, line {node.lineno}: modules are imported by their full path"
            names.add(node.module)
    return names
