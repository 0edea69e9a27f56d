"""A reader can hold any file in mind: 300 lines a file, 60 a function, a median near 8; and only `cli` prints."""

import ast
import statistics

import pytest

from architecture.source import FILES, functions, module_name, tree


def length(node):
    return node.end_lineno - node.lineno + 1


@pytest.mark.parametrize("file", FILES, ids=module_name)
def test_file_and_its_functions_are_short(file):
    assert len(file.read_text(encoding="utf-8").splitlines()) <= 300
    assert [f"{node.name}: {length(node)} lines" for node in functions(file) if length(node) > 60] == []


def test_most_functions_are_very_short():
    assert statistics.median(length(node) for file in FILES for node in functions(file)) <= 10


@pytest.mark.parametrize("file", [file for file in FILES if "cli" not in file.parts], ids=module_name)
def test_nothing_but_cli_prints(file):
    calls = [node.func for node in ast.walk(tree(file)) if isinstance(node, ast.Call)]
    assert [call.lineno for call in calls if isinstance(call, ast.Name) and call.id == "print"] == []
