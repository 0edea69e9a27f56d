"""`__all__` is sorted and complete, and every file says what it is for."""

import ast

import pytest

from architecture.source import FILES, module_name, tree

MODULES = [file for file in FILES if file.name not in ("__init__.py", "__main__.py")]


def exported(module):
    for node in module.body:
        if isinstance(node, ast.Assign) and [target.id for target in node.targets if isinstance(target, ast.Name)] == [
            "__all__"
        ]:
            return ast.literal_eval(node.value)
    return None


def defined(module, kinds):
    return [node.name for node in module.body if isinstance(node, kinds)]


def sort_key(name):
    """As ruff sorts: constants, then classes, then the rest."""
    return (0 if name.isupper() else 1 if name[0].isupper() else 2, name)


@pytest.mark.parametrize("file", MODULES, ids=module_name)
def test_exports_are_sorted_and_complete(file):
    module = tree(file)
    names = exported(module)
    assert names is not None, "no __all__"
    assert names == sorted(names, key=sort_key)
    public = [name for name in defined(module, (ast.FunctionDef, ast.ClassDef)) if not name.startswith("_")]
    assert set(public) <= set(names), "public, and not in __all__"
    assigned = {
        target.id
        for node in module.body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in ast.walk(node)
        if isinstance(target, ast.Name) and isinstance(target.ctx, ast.Store)
    }
    assert set(names) <= set(defined(module, (ast.FunctionDef, ast.ClassDef))) | assigned, "in __all__, and not there"


@pytest.mark.parametrize("file", [file for file in FILES if file.name == "__init__.py"], ids=module_name)
def test_packages_are_empty_but_for_a_docstring(file):
    body = tree(file).body
    allowed = file.parent.name == "iddpm"  # its version
    assert len(body) <= 1 + allowed
    assert all(isinstance(node, ast.Expr | ast.Assign) for node in body)


@pytest.mark.parametrize("file", MODULES, ids=module_name)
def test_every_module_says_what_it_is_for(file):
    assert ast.get_docstring(tree(file))
